"""Hints on what a run waits for: its input, the host, the memory; and a rate that cannot be."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import mfu
from topsmon.diagnosis.observe import is_live, mean, recent
from topsmon.diagnosis.sharing import STARVED_SAMPLES, is_sawtooth
from topsmon.diagnosis.training.watched import Watched, found, known
from topsmon.diagnosis.training.words import seconds_text
from topsmon.units import percent

FEWEST_STEPS = 20
STALL, LONG_STALL = 0.2, 0.5
"""Share of the time in which the loop waits for its data loader."""
NO_STALL = 0.05
IDLE = 0.7
"""Mean busy time of a GPU below which the host does not keep it fed."""
LOOK_BACK = 20
SHORT_STEP_SECONDS = 0.02
FULL_CORE, LAZY_CORE = 0.9, 0.5
"""CPU cores that the process takes: one Python thread at its end, or mostly asleep."""
MEMORY_BUSY, KERNELS_BUSY = 0.6, 0.8


def input_stall(watched: Watched) -> Iterator[events.Finding]:
    """The training loop waits for its data loader: input-bound, no fault of the device."""
    sample = watched.sample
    if sample is None:
        return
    ratio = known(sample.window.data_wait_ratio)
    if ratio is None or ratio < STALL or sample.window.steps < FEWEST_STEPS:
        return
    step = known(sample.window.mean_step_seconds)
    workers = watched.identity.data_workers
    evidence = [f"mean of the last {sample.window.steps:,} steps"]
    if step is not None:
        evidence.append(f"{seconds_text(ratio * step)} of a step of {seconds_text(step)}")
    if workers is not None:
        evidence.append(f"{workers} data loader workers")
    if not watched.ended:
        evidence += _device_evidence(watched)
    yield found(
        watched,
        code="input-stall",
        severity="warn" if ratio >= LONG_STALL else "info",
        word="WAIT",
        title=f"{'waited' if watched.ended else 'waits'} for its input "
        f"{percent(ratio, 0)} of the time",
        cause="input-bound: data loading does not keep up, no fault of the device",
        evidence=tuple(evidence),
        remedy=_stall_remedy(workers),
        basis=f"time in the data loader / step time, chosen limit {STALL:.0%}",
    )


def _stall_remedy(workers: int | None) -> str:
    if workers == 0:
        return (
            "The data loader has num_workers=0: it loads in the training process. Set num_workers "
            "to a few per device, pin_memory=True and persistent_workers=True."
        )
    return (
        "More data loader workers, prefetch_factor, pin_memory=True; store the data decoded and on "
        "a local disk; look at CPU load and disk."
    )


def _device_evidence(watched: Watched) -> Iterator[str]:
    device, host = watched.device, watched.state.host_sample
    if device is not None:
        busy = [value for value in list(device.busy)[-STARVED_SAMPLES:] if value is not None]
        if busy:
            shape = ", in bursts" if is_sawtooth(busy) else ""
            yield f"{device.label} busy {percent(mean(busy), 0)} on average{shape}"
    if host is not None and host.cpu_busy_ratio is not None:
        yield f"host CPU {percent(host.cpu_busy_ratio, 0)} busy"


def host_bound(watched: Watched) -> Iterator[events.Finding]:
    """A GPU that idles although the run steps: launches, synchronisation, or unseen waits."""
    sample, device = watched.sample, watched.device
    if sample is None or device is None or watched.run.condition != "running":
        return
    if device.identity.kind != "gpu" or not is_live(watched.state, device, watched.now):
        return
    wait = known(sample.window.data_wait_ratio)
    step = known(sample.window.step_seconds)
    readings = recent(device, LOOK_BACK)
    busy = mean(one.busy_ratio for one in readings)
    if len(readings) < LOOK_BACK or step is None or sample.window.steps < FEWEST_STEPS:
        return
    if busy is None or busy >= IDLE or (wait is not None and wait >= NO_STALL):
        return
    cores = _cores(device, watched.identity)
    yield found(
        watched,
        code="host-bound",
        severity="info",
        word="note",
        title=f"{device.label} is busy only {percent(busy, 0)} of the time while the run steps",
        cause=_host_cause(step, cores),
        evidence=tuple(_host_evidence(step, wait, cores)),
        remedy=(
            "Larger batches, torch.compile or CUDA graphs, fused optimizers; no .item(), print() "
            "or .cpu() of device values in each step. topsmon run --profile-step N shows which."
        ),
        basis=f"mean of {LOOK_BACK} samples of NVML's busy time, chosen limit {IDLE:.0%}",
    )


def _cores(device: DeviceState, identity: events.Run) -> float | None:
    entries = device.processes.entries if device.processes is not None else None
    own = [one for one in entries or () if one.pid == identity.pid and one.local]
    return known(own[0].cpu_cores) if own else None


def _host_cause(step: float, cores: float | None) -> str:
    if cores is not None and cores < LAZY_CORE:
        return "the process mostly sleeps: it waits for data, disk, or another rank"
    if cores is not None and cores >= FULL_CORE and step < SHORT_STEP_SECONDS:
        return "launch-bound: short steps, and the Python thread works all the time"
    return "launch-bound or held up by synchronisation: which of them, only a profile tells"


def _host_evidence(step: float, wait: float | None, cores: float | None) -> Iterator[str]:
    yield f"median step {seconds_text(step)}"
    if wait is not None:
        yield f"waits for its data loader {percent(wait, 0)} of the time"
    else:
        yield "no PyTorch data loader was seen: a wait for input is not excluded"
    if cores is not None:
        yield f"its process takes {cores:.1f} CPU cores"
    else:
        yield "CPU use of its process is not known"


def memory_bound(watched: Watched) -> Iterator[events.Finding]:
    """Kernels that run all the time and mostly move data."""
    device, sample = watched.device, watched.sample
    if sample is None or device is None or watched.run.condition != "running":
        return
    if device.identity.kind != "gpu" or not is_live(watched.state, device, watched.now):
        return
    samples = recent(device, LOOK_BACK)
    busy = mean(one.busy_ratio for one in samples)
    memory = mean(one.memory_busy_ratio for one in samples)
    if len(samples) < LOOK_BACK or busy is None or memory is None:
        return
    if busy < KERNELS_BUSY or memory < MEMORY_BUSY:
        return
    yield found(
        watched,
        code="memory-bound",
        severity="info",
        word="note",
        title=f"memory is read or written {percent(memory, 0)} of the time",
        cause="memory-bound: kernels wait for memory, not for arithmetic",
        evidence=(f"{device.label} busy {percent(busy, 0)}, mean of {LOOK_BACK} samples",),
        remedy="Fuse element-wise operations (torch.compile), fused optimizers, larger batches.",
        basis=f"NVML's memory utilisation, chosen limit {MEMORY_BUSY:.0%}",
    )


def rate_impossible(watched: Watched) -> Iterator[events.Finding]:
    """A model FLOPs utilisation above 100 %: the count, the step time or the ceiling is wrong."""
    rate = mfu.of_run(watched.state, watched.run)
    if not rate.doubtful or watched.sample is None:
        return
    yield found(
        watched,
        code="mfu-above-ceiling",
        severity="warn",
        word="note",
        title=f"the run's rate is {percent(rate.ratio)} of the ceiling: that cannot be",
        cause="the FLOPs or tokens per step, or the precision, are not what they are taken for",
        evidence=(mfu.words(rate),),
        remedy="Give the FLOPs of one step and rank: topsmon run --flops NUMBER or --flops sample.",
        basis="a rate above the rated ceiling is a wrong count",
    )

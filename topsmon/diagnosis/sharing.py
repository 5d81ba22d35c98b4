"""Rules about the work of others: who is on a device, and whether that work uses it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.memory import fill_ratio
from topsmon.diagnosis.observe import is_live, live_gpus, mean, other_processes, power_share, recent
from topsmon.diagnosis.words import finding, process
from topsmon.state import State
from topsmon.units import binary_bytes, percent

CPU_SHARE = 0.25
"""Others count on the CPU from this share of its usable cores on."""

BUSY_SAMPLES = 8
BUSY_RATIO = 0.95
LOW_POWER_SHARE = 0.30
MEMORY_BOUND_RATIO = 0.50
"""With memory busy for this share of the time, low power is not a sign of idling."""

STARVED_SAMPLES = 30
STARVED_FEWEST = 12
LOW, HIGH = 0.20, 0.60
IDLE_SAMPLES = 60
IDLE_RATIO = 0.05
HELD_RATIO = 0.50


def shared(state: State, _now: float) -> Iterator[events.Finding]:
    """Other compute processes on a device: benchmarks wait until they are asked for."""
    for device in state.ordered():
        others = other_processes(device)
        if device.processes is None or not others or device.condition != "ok":
            continue
        if device.identity.kind == "cpu" and not _cpu_is_taken(state, device, others):
            continue
        others = tuple(sorted(others, key=_weight, reverse=True))
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        measuring = device.prober.measuring is not None
        yield finding(
            device.processes,
            device,
            code="device-shared",
            severity="info",
            word="SHARED",
            title=f"used by {process(others[0], 32)}{more}",
            cause=(
                "it is measured beside this work: its rates are marked as shared"
                if measuring
                else "benchmarks are not started beside other work"
            ),
            evidence=tuple(_weighed(entry) for entry in others[:3]),
            remedy="" if measuring else "Press b to measure anyway.",
        )


def _cpu_is_taken(state: State, device: DeviceState, others: Sequence[events.ProcessEntry]) -> bool:
    """On the CPU something always runs: judge by its cores, and only where it is measured."""
    ready = device.prober.ready
    if ready is None and any(state.gpus()):
        return False
    cores = sum(entry.cpu_cores or 0.0 for entry in others)
    if ready is not None and ready.usable_cpus:
        return cores >= CPU_SHARE * ready.usable_cpus
    busy = device.sample.busy_ratio if device.sample is not None else None
    return busy is not None and busy >= CPU_SHARE and cores >= CPU_SHARE


def _weight(entry: events.ProcessEntry) -> tuple[float, int]:
    return entry.cpu_cores or 0.0, entry.memory_bytes or 0


def _weighed(entry: events.ProcessEntry) -> str:
    parts = [process(entry)]
    if entry.memory_bytes is not None:
        parts.append(binary_bytes(entry.memory_bytes))
    if entry.cpu_cores is not None:
        parts.append(f"{entry.cpu_cores:.1f} CPU cores")
    return ", ".join(parts)


def busy_not_working(state: State, now: float) -> Iterator[events.Finding]:
    """Busy all the time at little power: tiny kernels, a slow link, a wait inside a kernel."""
    for device in live_gpus(state, now):
        samples = recent(device, BUSY_SAMPLES)
        busy = [sample.busy_ratio for sample in samples if sample.busy_ratio is not None]
        power = mean(power_share(sample) for sample in samples)
        if len(busy) < BUSY_SAMPLES or min(busy) < BUSY_RATIO or power is None:
            continue
        memory = mean(sample.memory_busy_ratio for sample in samples)
        if power >= LOW_POWER_SHARE or (memory is not None and memory >= MEMORY_BOUND_RATIO):
            continue
        evidence = [f"{percent(power, 0)} of the power limit on average"]
        if memory is not None:
            evidence.append(f"memory busy {percent(memory, 0)} of the time")
        yield finding(
            samples[-1],
            device,
            code="busy-not-working",
            severity="info",
            word="note",
            title=f"busy {percent(mean(busy), 0)} of the time at {percent(power, 0)} of its power",
            cause="busy but not working: it only says that some kernel ran, however small",
            evidence=tuple(evidence),
            remedy="Profile one step: larger batches, fused kernels or CUDA graphs; waits for "
            "other ranks (NCCL) count as busy too.",
            basis="NVIDIA nvml.h, nvmlUtilization_t: percent of time in which a kernel ran",
        )


def starved(state: State, now: float) -> Iterator[events.Finding]:
    """A run that waits for its input: busy time is a sawtooth, or stays near 0 with memory held."""
    for device in state.gpus():
        others = other_processes(device)
        if not others or device.sample is None or not is_live(state, device, now):
            continue
        busy = [value for value in list(device.busy)[-IDLE_SAMPLES:] if value is not None]
        window = busy[-STARVED_SAMPLES:]
        waits = is_sawtooth(window)
        fill = fill_ratio(device.sample)
        idles = (
            len(busy) == IDLE_SAMPLES
            and sum(busy) / len(busy) < IDLE_RATIO
            and fill is not None
            and fill >= HELD_RATIO
        )
        if not waits and not idles:
            continue
        average = mean(window if waits else busy)
        evidence = [f"busy {percent(average, 0)} on average, {process(others[0])}"]
        host = state.host_sample
        if host is not None and host.cpu_busy_ratio is not None:
            evidence.append(f"host CPU {percent(host.cpu_busy_ratio, 0)} busy")
        yield finding(
            device.sample,
            device,
            code="input-bound",
            severity="info",
            word="note",
            title=(
                f"works in bursts, {percent(average, 0)} busy on average: looks input-bound"
                if waits
                else f"holds {percent(fill, 0)} of its memory but hardly works"
            ),
            cause="the run seems to wait for data, the disk or another rank: no fault of the GPU",
            evidence=tuple(evidence),
            remedy="More data loader workers, pinned memory and prefetching; look at disk and CPU.",
            basis=f"share of the last {len(window)} samples below {LOW:.0%} and above {HIGH:.0%}",
        )


def is_sawtooth(busy: Sequence[float]) -> bool:
    """True when work and rest take turns: a good share of both, and at least four changes."""
    if len(busy) < STARVED_FEWEST:
        return False
    low = sum(value < LOW for value in busy) / len(busy)
    high = sum(value > HIGH for value in busy) / len(busy)
    sides = [value > HIGH for value in busy if not LOW <= value <= HIGH]
    changes = sum(a != b for a, b in itertools.pairwise(sides))
    return low >= 0.3 and high >= 0.15 and changes >= 4

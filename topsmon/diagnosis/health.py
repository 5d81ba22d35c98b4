"""Rules about a board that is broken though it answers: memory errors, rates of zero."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import live_gpus
from topsmon.diagnosis.words import board, finding, joined, label, nvidia_smi
from topsmon.state import State
from topsmon.units import plain

BASIS = "NVIDIA GPU Memory Error Management; Azure/azurehpc-health-checks"


def memory_errors(state: State, now: float) -> Iterator[events.Finding]:
    """Uncorrectable errors since the driver was loaded, or rows that could not be remapped."""
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None or not (sample.ecc_uncorrected_volatile or sample.row_remap_failed):
            continue
        title = f"{sample.ecc_uncorrected_volatile} uncorrectable memory errors"
        if not sample.ecc_uncorrected_volatile:
            title = "a memory row could not be remapped"
        yield finding(
            sample,
            device,
            code="memory-errors",
            severity="fail",
            word="FAIL",
            title=title,
            cause="the board's memory is failing",
            evidence=_errors(device, sample),
            remedy="Drain the node; reset the GPU to remap rows; replace it if they come back.",
            command=nvidia_smi(state, device, "-q -d ECC,ROW_REMAPPER", changes=False),
            basis=BASIS,
        )


def _errors(device: DeviceState, sample: events.DeviceSample) -> tuple[str, ...]:
    counts = (
        (sample.ecc_uncorrected_aggregate, "over the board's life"),
        (sample.ecc_corrected_volatile, "corrected"),
    )
    told = [f"{count} {words}" for count, words in counts if count]
    return (f"{board(device)} {plain(device.identity.uuid or '', 80)}".rstrip(), *told)


def row_remap_pending(state: State, now: float) -> Iterator[events.Finding]:
    """A row that will be remapped at the next reset: planned work, no failure yet."""
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None or not sample.row_remap_pending:
            continue
        yield finding(
            sample,
            device,
            code="row-remap-pending",
            severity="warn",
            word="note",
            title="a memory row waits to be remapped",
            cause="memory errors came before",
            remedy="Reset the GPU or reboot when its jobs have ended.",
            command=nvidia_smi(state, device, "-q -d ROW_REMAPPER", changes=False),
            basis=BASIS,
        )


def nothing_computed(state: State, _now: float) -> Iterator[events.Finding]:
    """A measured rate of zero is no missing number: the device did nothing."""
    for device in state.ordered():
        zero = [
            result
            for known in device.rates.values()
            if (result := known.latest) is not None
            and result.rate_ops_per_second is not None
            and result.rate_ops_per_second <= 0
        ]
        if not zero:
            continue
        names = [label(result.precision) for result in zero]
        yield finding(
            max(zero, key=lambda result: result.monotonic),
            device,
            code="nothing-computed",
            severity="fail",
            word="FAIL",
            title=f"rate 0 in {joined(names)}",
            cause="the benchmark ran and nothing was computed",
            remedy="Check the driver, the kernel log (Xid) and the torch build.",
            basis="huggingface/gpu-fryer issue 10: zero must not count as healthy",
        )


def readings_impossible(state: State, now: float) -> Iterator[events.Finding]:
    """A driver that answers, and all of whose answers about a GPU's work cannot be.

    One impossible value is a flaw of some driver versions, clock and temperature together are not:
    but on a Jetson, whose driver answers 0 to what it does not measure.
    """
    jetson = state.host is not None and state.host.jetson
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None:
            continue
        reasons = {field: sample.unavailable.get(field, "") for field in ESSENTIAL_READINGS}
        if not all(reason.startswith(IMPLAUSIBLE) for reason in reasons.values()):
            continue
        evidence = tuple(
            f"{name}: {plain(reasons[field], 80)}" for field, name in ESSENTIAL_READINGS.items()
        )
        if jetson:
            yield _silent_jetson(sample, device, evidence)
            continue
        yield finding(
            sample,
            device,
            code="readings-impossible",
            severity="fail",
            word="FAIL",
            title="power, clock and temperature cannot be real",
            cause="the driver answers, but not with readings of this board",
            evidence=evidence,
            remedy="See the kernel log (Xid); reset the GPU or reload the driver.",
            command=nvidia_smi(state, device, "-q -d POWER,CLOCK,TEMPERATURE", changes=False),
            basis="a board that runs draws power, has a clock and is warmer than 0 degC",
        )


def _silent_jetson(
    sample: events.DeviceSample, device: DeviceState, evidence: tuple[str, ...]
) -> events.Finding:
    return finding(
        sample,
        device,
        code="readings-impossible",
        severity="info",
        word="note",
        title="NVML does not tell power, clock and temperature of a Jetson",
        cause="its driver answers success without values",
        evidence=evidence,
        remedy="See tegrastats or jtop.",
        basis="wentbackward/nv-monitor pull request 17",
    )


ESSENTIAL_READINGS = {
    "power_watts": "power",
    "sm_clock_mhz": "clock",
    "temperature_celsius": "temperature",
}
IMPLAUSIBLE = "implausible"

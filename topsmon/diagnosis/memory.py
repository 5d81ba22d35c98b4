"""Rule: memory nearly full."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import is_live
from topsmon.diagnosis.words import finding, process
from topsmon.state import State
from topsmon.units import binary_bytes, gibibytes, percent

NEARLY_FULL = 0.95


def fill_ratio(sample: events.DeviceSample) -> float | None:
    """(used + reserved) / total, or None; the driver's own share cannot be had either."""
    if sample.memory_used_bytes is None or not sample.memory_total_bytes:
        return None
    taken = sample.memory_used_bytes + (sample.memory_reserved_bytes or 0)
    return taken / sample.memory_total_bytes


def memory_full(state: State, now: float) -> Iterator[events.Finding]:
    """From `NEARLY_FULL` on the next allocation may fail."""
    for device in state.ordered():
        sample = device.sample
        if sample is None or not is_live(state, device, now):
            continue
        ratio = fill_ratio(sample)
        if ratio is None or ratio < NEARLY_FULL:
            continue
        cpu = device.identity.kind == "cpu"
        used = (sample.memory_used_bytes or 0) + (sample.memory_reserved_bytes or 0)
        total = sample.memory_total_bytes
        yield finding(
            sample,
            device,
            code="memory-full",
            severity="warn",
            word="FULL",
            title=f"memory {percent(ratio)} full: {gibibytes(used)} of {gibibytes(total)} GiB",
            cause="the host may start to swap or kill processes"
            if cpu
            else "the next allocation may fail (out of memory)",
            evidence=_holders(device),
            remedy="End a process that is not needed, or take a smaller batch or model.",
            basis=f"used and reserved from {percent(NEARLY_FULL, 0)} of the total",
        )


def _holders(device: DeviceState) -> tuple[str, ...]:
    """The three processes that hold most, the largest first."""
    entries = device.processes.entries if device.processes is not None else None
    known = [entry for entry in entries or () if entry.memory_bytes is not None]
    known.sort(key=lambda entry: -(entry.memory_bytes or 0))
    return tuple(f"{binary_bytes(entry.memory_bytes)} {process(entry)}" for entry in known[:3])

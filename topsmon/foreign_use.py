"""Who else computes on a device, and what that makes of what was measured or counted meanwhile."""

from __future__ import annotations

import os

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import sharing
from topsmon.diagnosis.observe import other_processes
from topsmon.units import command_words

BUSY_GPU_RATIO = 0.10
"""A GPU busier than this before we start is in use, even if no process can be seen."""
BUSY_CPU_SHARE = sharing.CPU_SHARE
"""The CPU counts as in use when others take more than this share of the usable cores."""
FREE_CPU_SHARE = 0.125
"""Once it counted as in use, it is free again below this share: no coming and going."""


def users_unknown(device: DeviceState) -> str | None:
    """Say so where neither the processes of a GPU nor its load can be read."""
    processes, sample = device.processes, device.sample
    if device.identity.kind == "cpu" or processes is None or processes.entries is not None:
        return None
    if sample is None or sample.busy_ratio is not None:
        return None
    return f"cannot see who uses {device.label} ({processes.reason or 'processes not read'})"


def foreign_use(device: DeviceState, *, held_back: bool = False) -> str | None:
    """Who else computes on a device, in words; None where it is free.

    On the CPU others count only from `BUSY_CPU_SHARE` of the usable cores on, while `held_back`
    from `FREE_CPU_SHARE` on.
    """
    others = other_processes(device)
    if device.identity.kind == "cpu":
        taken = sum(entry.cpu_cores or 0.0 for entry in others)
        if taken < (FREE_CPU_SHARE if held_back else BUSY_CPU_SHARE) * usable_cpus():
            return None
    if not others:
        return None
    first = max(others, key=lambda entry: (entry.cpu_cores or 0.0, entry.memory_bytes or 0))
    name = command_words(first.command or first.name or "a process", 60)
    more = f" and {len(others) - 1} more use" if len(others) > 1 else " uses"
    return f"{name} (PID {first.pid}){more} {device.label}"


def mark_shared(
    event: events.RateMeasured | events.ProbeResult, device: DeviceState | None
) -> events.RateMeasured | events.ProbeResult:
    """What was measured while others use the device is kept, but not trusted."""
    users = foreign_use(device) if device is not None and event.valid else None
    if users is None:
        return event
    return msgspec.structs.replace(event, valid=False, invalid_reason=f"shared: {users}")


def mark_burst(
    sample: events.DeviceSample, device: DeviceState | None, ended: float | None
) -> events.DeviceSample:
    """Mark the counters of a time in which topsmon computed on the device itself.

    `ended`: when its last burst ended, by the monotonic clock that stamps the events.
    """
    counters = sample.counters
    if counters is None or device is None:
        return sample
    begun = sample.monotonic - counters.seconds
    if device.prober.measuring is None and (ended is None or ended < begun):
        return sample
    counters = msgspec.structs.replace(counters, during_burst=True)
    return msgspec.structs.replace(sample, counters=counters)


def usable_cpus() -> int:
    """Logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

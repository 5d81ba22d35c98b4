"""A GPU in MIG mode: its instances in words, each with its ceilings and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass

from topsmon import ceilings, events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import bound
from topsmon.state import State
from topsmon.units import gibibytes, percent, plain


@dataclass(frozen=True)
class Part:
    """One instance: its name for people, what NVML tells, its ceilings, what bounds it."""

    label: str
    slice: events.Slice
    ceilings: events.Ceilings
    bound: bound.Bound


def parts(state: State, device: DeviceState, now: float) -> tuple[Part, ...]:
    """The instances of a GPU in the driver's order; none for a GPU that is not in MIG mode."""
    if not device.identity.mig or device.slices is None:
        return ()
    return tuple(
        Part(
            label(one),
            one,
            ceilings.for_slice(device.identity, one),
            bound.of_slice(state, device, one, now),
        )
        for one in device.slices.slices
    )


def label(part: events.Slice) -> str:
    """The name of an instance: its profile and its number, "3g.40gb #2"."""
    profile = plain(part.profile or "instance", 24)
    return profile if part.gpu_instance is None else f"{profile} #{part.gpu_instance}"


def describe(part: Part) -> str:
    """One instance in one line: "3g.40gb #2: 60 SMs, 19.7 of 39.4 GiB, SMs 83% active, ..."."""
    one = part.slice
    words = []
    if one.sm_count is not None:
        words.append(f"{one.sm_count} SMs")
    if one.memory_used_bytes is not None and one.memory_total_bytes is not None:
        words.append(
            f"{gibibytes(one.memory_used_bytes)} of {gibibytes(one.memory_total_bytes)} GiB"
        )
    if one.counters is not None and one.counters.sm_active_ratio is not None:
        words.append(f"SMs {percent(one.counters.sm_active_ratio, 0)} active")
    words.append(part.bound.words)
    return f"{part.label}: {', '.join(words)}"


def summary(device: DeviceState) -> str:
    """The GPU as a whole: how many instances, and where to look for what it does."""
    count = len(device.slices.slices) if device.slices is not None else 0
    if not count:
        return "in MIG mode, no instance is visible: no program can run on it from here"
    plural = "instance" if count == 1 else "instances"
    return f"in MIG mode, {count} {plural}: each has its own SMs and memory, busy time has none"

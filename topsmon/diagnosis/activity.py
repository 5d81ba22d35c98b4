"""The shares that a verdict rests on, averaged over the latest readings of a device.

Readings of times in which topsmon itself computed on the device tell nothing of others and are left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events, power, throttle
from topsmon.diagnosis.observe import mean
from topsmon.diagnosis.trust import trusted
from topsmon.diagnosis.verdict import PUBLISHED, Activity, Reach
from topsmon.diagnosis.words import number
from topsmon.units import percent

SEVERAL = 3
"""A verdict averages over at least so many readings."""
COUNTERS = {
    "engine": "graphics_active_ratio",
    "sm": "sm_active_ratio",
    "dram": "dram_active_ratio",
    "tensor": "tensor_active_ratio",
    "fp32": "fp32_active_ratio",
    "fp64": "fp64_active_ratio",
    "fp16": "fp16_active_ratio",
    "integer": "integer_active_ratio",
}
FAULT_TIMES = {
    "hw_thermal": "HW thermal slowdown",
    "sw_thermal": "SW thermal slowdown",
    "thermal": "thermal slowdown",
    "power_brake": "HW power brake",
}
"""Reasons among the shares of throttled time that are faults; the others are by design."""
TENSOR_PRECISIONS = ("bf16", "fp16", "tf32", "fp8", "fp16_acc16")
MEMORY_WAYS = ("copy", "triad", "read", "write")
LEAST_REACH = 0.5
"""A measured rate below this share of its ceiling is a problem of its own and no measure."""


@dataclass(frozen=True)
class Readings:
    """Distinct readings of the counters, oldest first, and how many were topsmon's own doing."""

    others: tuple[events.GpuCounters, ...]
    own: int

    @property
    def seconds(self) -> float:
        """The time that they cover."""
        return sum(one.seconds for one in self.others)


def readings(found: Iterable[events.GpuCounters | None]) -> Readings:
    """Sort out the counters of consecutive samples.

    A reading is repeated in the samples that come before the next one; it was topsmon's own doing
    if it was so in any of them.
    """
    distinct: list[events.GpuCounters] = []
    own: list[bool] = []
    for counters in found:
        if counters is None:
            continue
        plain = msgspec.structs.replace(counters, during_burst=False)
        if distinct and distinct[-1] == plain:
            own[-1] = own[-1] or counters.during_burst
            continue
        distinct.append(plain)
        own.append(counters.during_burst)
    kept = tuple(one for one, mine in zip(distinct, own, strict=True) if not mine)
    return Readings(kept, sum(own))


def average(found: Sequence[events.GpuCounters], field: str) -> float | None:
    """Mean of one ratio over time; None unless several readings have it."""
    values = [(getattr(one, field), one.seconds) for one in found]
    known = [(value, seconds) for value, seconds in values if value is not None]
    total = sum(seconds for _, seconds in known)
    if len(known) < SEVERAL or total <= 0:
        return None
    return float(sum(value * seconds for value, seconds in known) / total)


def of_counters(found: Readings, *, throttled: float | None, busy: float | None = None) -> Activity:
    """What the counters tell. `busy` stands in for the share of time in which any kernel ran."""
    values = {name: average(found.others, field) for name, field in COUNTERS.items()}
    if values["engine"] is None:
        values["engine"] = busy
    return Activity(throttled=throttled, **values)


@dataclass(frozen=True)
class Throttling:
    """Share of the latest time in which clocks were held down by what should not be, and by what.

    `ratio` None: neither event bits nor times are reported.
    """

    ratio: float | None
    reasons: tuple[str, ...] = ()


def throttling(device: DeviceState) -> Throttling:
    """From the event bits of two samples in a row, and from the counted times."""
    samples = list(device.recent)
    masks = [sample.clock_event_mask for sample in samples if sample.clock_event_mask is not None]
    times = throttle.counted_times(samples)
    limit = power.lowered_limit(device)
    if limit is not None and power.held_down(device):
        of = f"{number(limit.limit)} W of {number(limit.reference)} W"
        return Throttling(1.0, (f"power limit {of}",))
    if not masks and not times:
        return Throttling(None)
    sustained = clock_events.sustained([sample.clock_event_mask for sample in samples])
    faults = sustained & clock_events.FAULTS
    ratio, reasons = 0.0, []
    if faults:
        ratio = sum(bool(mask & faults) for mask in masks) / len(masks)
        reasons.append(clock_events.names(faults))
    longest = max(times, key=lambda reason: times[reason], default=None)
    if longest is not None and times[longest] > ratio:
        ratio = times[longest]
        reasons = reasons or [FAULT_TIMES[longest]]
    return Throttling(ratio, tuple(reasons))


def reach(device: DeviceState) -> Reach:
    """What good kernels reach on this very device where that was measured, else as published."""
    tensor = _best(device, TENSOR_PRECISIONS)
    pipe = _best(device, ("fp32",))
    dram = measured_bandwidth_ratio(device)
    return Reach(
        dram=PUBLISHED.dram if dram is None else dram,
        tensor=PUBLISHED.tensor if tensor is None else tensor,
        pipe=PUBLISHED.pipe if pipe is None else pipe,
    )


def _best(device: DeviceState, precisions: Iterable[str]) -> float | None:
    ratios = [
        ratio
        for precision in precisions
        if trusted(device, precision) is not None
        and (ratio := device.held_ratio(precision)) is not None
        and LEAST_REACH <= ratio <= 1.0
    ]
    return max(ratios, default=None)


def measured_bandwidth_ratio(device: DeviceState) -> float | None:
    """The best bandwidth of topsmon's own memory probe / the theoretical one, if it is sound."""
    result, ceilings = device.probes.get("memory"), device.ceilings
    peak = ceilings.memory_bandwidth_bytes_per_second if ceilings is not None else None
    if result is None or not result.valid or result.correct is False or not peak:
        return None
    rates = [result.values.get(f"{way}_bytes_per_second") or 0.0 for way in MEMORY_WAYS]
    ratio = max(rates) / peak
    return ratio if LEAST_REACH <= ratio <= 1.0 else None


def power_cap(device: DeviceState) -> str | None:
    """The board's own power cap as it holds the clocks, in words; None where it does not."""
    samples = list(device.recent)
    share = mean(sample.throttle_ratios.get("power") for sample in samples)
    mask = clock_events.sustained([sample.clock_event_mask for sample in samples])
    if not mask & clock_events.SW_POWER_CAP and (share is None or share < 0.5):
        return None
    often = "" if share is None else f" for {percent(share, 0)} of the time"
    return f"clocks are held by the board's power cap{often}, which is by design"

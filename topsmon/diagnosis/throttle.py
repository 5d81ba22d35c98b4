"""Rule: clocks cut by heat, by the hardware or by the power supply, also by several at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events
from topsmon.diagnosis.observe import live_gpus, mean, under_load
from topsmon.diagnosis.words import finding, nvidia_smi
from topsmon.state import State
from topsmon.units import percent

NEAR_LIMIT = 5
"""Degrees below the slowdown temperature within which heat is the plain explanation."""
CUT_CLOCK = 0.6
"""A hardware slowdown cuts clocks by 2 or more: at this share of the maximum it shows."""
BASIS = "NVIDIA nvml.h, nvmlClocksEventReasons; two samples in a row"
TIME_BASIS = "NVML's counters of throttled time (NVML_FI_DEV_PERF_POLICY_*, CLOCKS_EVENT_REASON_*)"
LEAST_TIME = 0.05
"""Share of the latest time from which on counted time alone is a fault, however short each blip."""
LEAST_SAMPLES = 4
MANY_SAMPLES, MOST_UNSEEN = 8, 0.5
"""What holds for half of the time is missed by eight samples once in 256 times."""
BITS = {
    "hw_thermal": clock_events.HW_THERMAL,
    "sw_thermal": clock_events.SW_THERMAL,
    "thermal": clock_events.SW_THERMAL,
    "power_brake": clock_events.POWER_BRAKE,
}
"""Counters of throttled time that count a fault, and the event bit that means the same."""


class Fault(NamedTuple):
    """A group of bits with one cause and one remedy."""

    code: str
    mask: int
    word: str
    cause: str
    remedy: str
    sections: str


FAULTS: tuple[Fault, ...] = (
    Fault(
        "thermal-slowdown",
        clock_events.THERMAL,
        "HOT",
        "too hot",
        "Check fans, airflow and inlet temperature; clean it; lower the power limit until then.",
        "TEMPERATURE,PERFORMANCE",
    ),
    Fault(
        "power-brake",
        clock_events.POWER_BRAKE,
        "SLOW",
        "the power supply asks for less (power brake)",
        "Check the power supply, its cables and connectors, and the chassis' power budget.",
        "POWER,PERFORMANCE",
    ),
    Fault(
        "hw-slowdown",
        clock_events.HW_SLOWDOWN,
        "SLOW",
        "hardware slowdown: heat, power brake or a fast trigger",
        "Check cooling and power supply; look for an Xid in the kernel log.",
        "POWER,TEMPERATURE,PERFORMANCE",
    ),
)


def throttled(state: State, now: float) -> Iterator[events.Finding]:
    """Findings of all live GPUs; several faults at once are several findings."""
    for device in live_gpus(state, now):
        yield from of_device(state, device)


def of_device(state: State, device: DeviceState) -> Iterator[events.Finding]:
    """The faults of one device that two samples in a row show, or the counted time.

    A snapshot has one sample: there a second witness beside the bit must confirm it, else it is a
    note.
    """
    sample = device.sample
    if sample is None:
        return
    masks = [past.clock_event_mask for past in device.recent]
    single = len(masks) == 1
    seen = (masks[0] or 0) if single else clock_events.sustained(masks)
    times = counted_times(device.recent)
    mask = seen | _counted_mask(device, times)
    for fault in faults_in(mask):
        once = single and not _is_witnessed(fault, sample, device)
        severe = fault.mask != clock_events.THERMAL or bool(seen & clock_events.HW_THERMAL)
        yield finding(
            sample,
            device,
            code=fault.code,
            severity="info" if once else "fail" if severe and seen & fault.mask else "warn",
            word="note" if once else fault.word,
            title=_title(fault, mask, sample, device) + (" (one sample)" if once else ""),
            cause=_cause(fault, sample, device),
            evidence=_evidence(fault, seen, times, sample),
            remedy=fault.remedy,
            command=nvidia_smi(state, device, f"-q -d {fault.sections}", changes=False),
            basis=BASIS if seen & mask == mask else TIME_BASIS,
        )


def counted_times(samples: Iterable[events.DeviceSample]) -> dict[str, float]:
    """Mean share of time per faulty reason, over the samples that tell it.

    A counter that runs most of the time, and whose bit is in none of many samples, is not believed.
    """
    found = list(samples)
    masks = [sample.clock_event_mask for sample in found if sample.clock_event_mask is not None]
    quiet = len(masks) >= MANY_SAMPLES and not any(mask & clock_events.FAULTS for mask in masks)
    shares = {
        reason: share
        for reason in BITS
        if (share := mean(sample.throttle_ratios.get(reason) for sample in found)) is not None
    }
    return {reason: share for reason, share in shares.items() if not quiet or share <= MOST_UNSEEN}


def _counted_mask(device: DeviceState, times: dict[str, float]) -> int:
    """The bits whose time has been counted for long enough, also between two samples."""
    mask = 0
    for reason, share in times.items():
        told = [sample.throttle_ratios.get(reason) for sample in device.recent]
        rising = sum(bool(value) for value in told)
        if share >= LEAST_TIME and rising >= 2 and len(told) >= LEAST_SAMPLES:
            mask |= BITS[reason]
    return mask


def _evidence(
    fault: Fault, seen: int, times: dict[str, float], sample: events.DeviceSample
) -> tuple[str, ...]:
    lines = []
    if seen & fault.mask:
        lines.append(f"clocks event reasons 0x{seen:x}: {clock_events.names(seen)}")
    held = [share for reason, share in times.items() if BITS[reason] & fault.mask]
    if held and max(held) > 0:
        lines.append(f"clocks held down for {percent(max(held), 0)} of the latest time")
    if fault.code == "thermal-slowdown" and sample.memory_temperature_celsius is not None:
        lines.append(f"memory {sample.memory_temperature_celsius:.0f} C")
    return tuple(lines)


def _is_witnessed(fault: Fault, sample: events.DeviceSample, device: DeviceState) -> bool:
    """True when temperature (for heat) or clock under load (else) agree with a fault's bit."""
    if fault.code == "thermal-slowdown":
        limit, now = device.identity.temperature_slowdown_celsius, sample.temperature_celsius
        return limit is not None and now is not None and now >= limit - NEAR_LIMIT
    most, clock = device.identity.sm_clock_max_mhz, sample.sm_clock_mhz
    cut = most is not None and clock is not None and clock <= CUT_CLOCK * most
    return cut and under_load(device)


def faults_in(mask: int) -> Sequence[Fault]:
    """The faults of a mask. HW slowdown beside a named one is that one's effect."""
    named = [fault for fault in FAULTS[:-1] if mask & fault.mask]
    if named:
        return named
    return [fault for fault in FAULTS[-1:] if mask & fault.mask]


def unknown_reason(state: State, now: float) -> Iterator[events.Finding]:
    """A bit of a newer driver: shown by its number, without a verdict."""
    for device in live_gpus(state, now):
        mask = clock_events.sustained([past.clock_event_mask for past in device.recent])
        unknown = [event for event in clock_events.decode(mask) if event.treatment == "unknown"]
        if unknown and device.sample is not None:
            bits = ", ".join(event.name for event in unknown)
            yield finding(
                device.sample,
                device,
                code="clock-event-unknown",
                severity="info",
                word="note",
                title=f"clocks event reason {bits} is not known to this version",
                cause="a newer driver limits the clocks for a reason that has no name here",
                command=nvidia_smi(state, device, "-q -d PERFORMANCE", changes=False),
                basis=BASIS,
            )


def _title(fault: Fault, mask: int, sample: events.DeviceSample, device: DeviceState) -> str:
    shown = mask & (fault.mask | clock_events.HW_SLOWDOWN)
    text = clock_events.names(shown)
    if sample.sm_clock_mhz is not None:
        text += f": {sample.sm_clock_mhz:.0f} MHz"
        if device.identity.sm_clock_max_mhz:
            text += f" (max {device.identity.sm_clock_max_mhz})"
    return text


def _cause(fault: Fault, sample: events.DeviceSample, device: DeviceState) -> str:
    if fault.code != "thermal-slowdown" or sample.temperature_celsius is None:
        return fault.cause
    text = f"{fault.cause}: {sample.temperature_celsius:.0f} C"
    limit = device.identity.temperature_slowdown_celsius
    if limit is None:
        return text
    if sample.temperature_celsius < limit - NEAR_LIMIT:
        return text + f" at the GPU (slowdown at {limit} C), so the memory or a hot spot"
    return text + f" (slowdown at {limit} C)"

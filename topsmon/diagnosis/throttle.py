"""Rule: clocks cut by heat, by the hardware or by the power supply, also by several at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from topsmon import events
from topsmon.diagnosis import clock_events
from topsmon.diagnosis.observe import live_gpus, under_load
from topsmon.diagnosis.words import finding, nvidia_smi
from topsmon.state import DeviceState, State

NEAR_LIMIT = 5
"""Degrees below the slowdown temperature within which heat is the plain explanation."""
CUT_CLOCK = 0.6
"""A hardware slowdown cuts clocks by 2 or more: at this share of the maximum it shows."""
BASIS = "NVIDIA nvml.h, nvmlClocksEventReasons; two samples in a row"


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
    """The faults of one device that two samples in a row show.

    A snapshot has one sample: there a second witness beside the bit must confirm it, else it is a
    note.
    """
    sample = device.sample
    if sample is None:
        return
    masks = [past.clock_event_mask for past in device.recent]
    single = len(masks) == 1
    mask = (masks[0] or 0) if single else clock_events.sustained(masks)
    for fault in faults_in(mask):
        once = single and not _is_witnessed(fault, sample, device)
        severe = fault.mask != clock_events.THERMAL or bool(mask & clock_events.HW_THERMAL)
        yield finding(
            sample,
            device,
            code=fault.code,
            severity="info" if once else "fail" if severe else "warn",
            word="note" if once else fault.word,
            title=_title(fault, mask, sample, device) + (" (one sample)" if once else ""),
            cause=_cause(fault, sample, device),
            evidence=(f"clocks event reasons 0x{mask:x}: {clock_events.names(mask)}",),
            remedy=fault.remedy,
            command=nvidia_smi(state, device, f"-q -d {fault.sections}", changes=False),
            basis=BASIS,
        )


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

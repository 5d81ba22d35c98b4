"""Why a rate is low, as far as the measurements tell: the clock first, or the kernel.

Two factors make up a rate: held clock / rated clock, and achieved / ceiling at the held clock. The
one that is further from what it should be is named first.
"""

from __future__ import annotations

from dataclasses import dataclass

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events, power, throttle
from topsmon.diagnosis.observe import under_load
from topsmon.diagnosis.words import number, nvidia_smi, where_needed
from topsmon.state import State
from topsmon.units import percent

HELD = 0.95
"""Held / rated clock from which on the clock is no cause."""
USUAL_SHARE = 0.70
"""Share of the ceiling that a GEMM reaches where nothing better is known."""
MEMORY_CLOCK_SHARE = 0.90
"""GeForce boards compute in P2, whose memory clock is 2 to 9 % lower: that is no fault."""


@dataclass(frozen=True)
class Cause:
    """A cause and what to do. `finding` is the rule's own finding about it, where there is one.

    `configured` says that someone set it so: the hardware is not at fault. `by_design` says that
    the board's own power cap holds the clock, as it does under any long GEMM.
    """

    text: str
    remedy: str
    command: str = ""
    finding: events.Finding | None = None
    configured: bool = False
    by_design: bool = False


def clock_factor(device: DeviceState, result: events.RateMeasured) -> float | None:
    """Held clock / rated clock of the precision, None where either is unknown."""
    ceiling = device.ceiling(result.precision)
    if ceiling is None or not ceiling.rated_clock_mhz or result.held_clock_mhz is None:
        return None
    return result.held_clock_mhz / ceiling.rated_clock_mhz


def explain(
    state: State, device: DeviceState, result: events.RateMeasured, share: float | None
) -> Cause:
    """The first cause of a low rate. `share`: the share of the ceiling that was expected."""
    if _clock_comes_first(device, result, share or USUAL_SHARE):
        return _clock_cause(state, device, result)
    return _kernel_cause(device, result)


def _clock_comes_first(
    device: DeviceState, result: events.RateMeasured, expected_share: float
) -> bool:
    factor, kernel = clock_factor(device, result), device.held_ratio(result.precision)
    if factor is None or kernel is None:
        mask = (result.clock_event_mask or 0) | _sustained(device)
        limiting = clock_events.FAULTS | clock_events.SW_POWER_CAP
        return bool(mask & limiting) or power.lowered_limit(device) is not None
    return factor < HELD and factor <= kernel / expected_share


def _sustained(device: DeviceState) -> int:
    return clock_events.sustained([sample.clock_event_mask for sample in device.recent])


def _clock_cause(state: State, device: DeviceState, result: events.RateMeasured) -> Cause:
    for fault in throttle.of_device(state, device):
        return Cause(fault.cause, fault.remedy, fault.command, fault)
    mask = result.clock_event_mask or 0
    for kind in throttle.faults_in(mask):
        return Cause(
            f"{kind.cause} during the burst ({clock_events.names(mask & clock_events.FAULTS)})",
            kind.remedy,
            nvidia_smi(state, device, f"-q -d {kind.sections}", changes=False),
        )
    limit = power.of_device(state, device)
    if limit is not None and power.lowered_limit(device) is not None:
        return Cause(limit.cause, limit.remedy, limit.command, limit, configured=True)
    if (mask | _sustained(device)) & clock_events.SW_POWER_CAP:
        return _power_cap(state, device, result)
    return Cause(
        f"{_held(device, result)}; the driver gives no reason, so clocks may be locked",
        where_needed(state, "reset the clocks, then press b to measure again."),
        nvidia_smi(state, device, "-rgc", changes=True),
        configured=True,
    )


def _power_cap(state: State, device: DeviceState, result: events.RateMeasured) -> Cause:
    """At the default limit: how the board is made, unless it may be raised."""
    sample, most = device.sample, device.identity.power_limit_max_watts
    limit = sample.power_limit_watts if sample is not None else None
    at = f"the power cap of {number(limit)} W" if limit is not None else "the power cap"
    text = f"{_held(device, result)} by {at}, the board's default"
    if limit is None or most is None or most <= limit * (1 + power.TOLERANCE):
        return Cause(
            text, "Limited by its power cap by design: compare at the held clock.", by_design=True
        )
    if power.is_laptop(device):
        lowered = power.LoweredLimit(limit, most, laptop=True)
        return Cause(
            text,
            power.remedy(state, lowered),
            power.command(state, device, lowered),
            by_design=True,
        )
    return Cause(
        text,
        where_needed(
            state,
            f"raise the power cap (up to {number(most)} W) if cooling and supply allow it, or "
            "compare at the held clock.",
        ),
        nvidia_smi(state, device, f"-pl {number(most)}", changes=True),
        by_design=True,
    )


def _held(device: DeviceState, result: events.RateMeasured) -> str:
    ceiling = device.ceiling(result.precision)
    if result.held_clock_mhz is None:
        return "clock held down"
    text = f"clock held at {result.held_clock_mhz:.0f} MHz"
    if ceiling is not None and ceiling.rated_clock_mhz:
        text += f" (rated {number(ceiling.rated_clock_mhz)})"
    return text


def _kernel_cause(device: DeviceState, result: events.RateMeasured) -> Cause:
    sample, most = device.sample, device.identity.memory_clock_max_mhz
    memory_clock = sample.memory_clock_mhz if sample is not None else None
    low = memory_clock is not None and most and memory_clock < MEMORY_CLOCK_SHARE * most
    if low and under_load(device):
        return Cause(
            f"memory clock {memory_clock:.0f} of {most} MHz under load",
            "Reset locked memory clocks (nvidia-smi -rmc); check the performance state.",
        )
    if result.precision == "int8":
        return Cause(
            "library path: torch's INT8 kernel is slow here, which says nothing about the board",
            "Use a column-major right side, K and N multiples of 8, and a newer torch.",
        )
    kernel = device.held_ratio(result.precision)
    if kernel is None:
        return Cause(
            "no clock was measured: clock and kernel cannot be told apart",
            "Check cooling, power limit, driver and torch version.",
        )
    return Cause(
        f"clock held, kernel at {percent(kernel)} of the ceiling there: library, shape, other work",
        "Check torch and driver version, and for work that is not listed; then press b.",
    )

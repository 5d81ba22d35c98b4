"""Rule: a power limit below what the board is made for, and whether it holds the clocks down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events
from topsmon.diagnosis.observe import live_gpus, mean, power_share, recent, under_load
from topsmon.diagnosis.words import finding, number, nvidia_smi, where_needed
from topsmon.state import State

TOLERANCE = 0.01
"""Enforced limits are rounded by the driver; closer than this is the same limit."""
AT_LIMIT = 0.95
"""Power / limit from which on the limit is what holds the clocks, where no reason is reported."""
HELD_DOWN = 0.95
"""Held clock / rated clock below which a burst counts as held down."""
CODE = "power-limit-low"


@dataclass(frozen=True)
class LoweredLimit:
    """A limit below its reference: the board's default, or for a laptop its maximum. Watts."""

    limit: float
    reference: float
    laptop: bool


def is_laptop(device: DeviceState) -> bool:
    """Laptop parts name themselves; their limits are the notebook maker's choice."""
    return "Laptop GPU" in device.identity.name or "Max-Q" in device.identity.name


def default_limit(device: DeviceState) -> float | None:
    """The board's default limit in W: as read last, else as read with its identity."""
    now = device.sample.power_limit_default_watts if device.sample is not None else None
    return now if now is not None else device.identity.power_limit_default_watts


def lowered_limit(device: DeviceState) -> LoweredLimit | None:
    """The enforced limit and its reference where it is lower; None where either is unknown."""
    limit = device.sample.power_limit_watts if device.sample is not None else None
    laptop = is_laptop(device)
    default, most = default_limit(device), device.identity.power_limit_max_watts
    reference = (most or default) if laptop else default
    if limit is None or limit <= 0 or reference is None or limit >= reference * (1 - TOLERANCE):
        return None
    return LoweredLimit(limit, reference, laptop)


def held_down(device: DeviceState) -> bool:
    """True when the limit bites: the driver says so, power is at it, or a burst's clock was low."""
    mask = clock_events.sustained([past.clock_event_mask for past in device.recent])
    if mask & clock_events.SW_POWER_CAP:
        return True
    share = mean(power_share(sample) for sample in recent(device))
    if share is not None and share >= AT_LIMIT and under_load(device):
        return True
    return any(
        _burst_held_down(device, key, state.best)
        for key, state in device.rates.items()
        if not state.is_remembered
    )


def _burst_held_down(
    device: DeviceState, precision: str, result: events.RateMeasured | None
) -> bool:
    ceiling = device.ceiling(precision)
    if result is None or ceiling is None or not ceiling.rated_clock_mhz:
        return False
    if result.held_clock_mhz is None or result.clock_event_mask is None:
        return False
    capped = bool(result.clock_event_mask & clock_events.SW_POWER_CAP)
    return capped and result.held_clock_mhz < HELD_DOWN * ceiling.rated_clock_mhz


def power_limit_low(state: State, now: float) -> Iterator[events.Finding]:
    """Findings of all live GPUs whose limit was lowered."""
    for device in live_gpus(state, now):
        result = of_device(state, device)
        if result is not None:
            yield result


def of_device(state: State, device: DeviceState) -> events.Finding | None:
    """SLOW where the limit holds the clocks down, else a note; a resting laptop gets none."""
    lowered = lowered_limit(device)
    if lowered is None or device.sample is None:
        return None
    biting = held_down(device)
    if lowered.laptop and not biting:
        return None
    return finding(
        device.sample,
        device,
        code=CODE,
        severity="warn" if biting else "info",
        word="SLOW" if biting else "note",
        title=_title(lowered, device.sample),
        cause=_cause(lowered) if biting else "a lower limit was set; it is not reached now",
        evidence=_evidence(device.sample),
        remedy=remedy(state, lowered),
        command=command(state, device, lowered),
        basis="enforced limit against the board's own limits (NVML)",
    )


def _title(lowered: LoweredLimit, sample: events.DeviceSample) -> str:
    of = f"{number(lowered.limit)} W of {number(lowered.reference)} W"
    text = f"power limit {of} possible" if lowered.laptop else f"power limit {of} (default)"
    if sample.sm_clock_mhz is not None:
        text += f", clock {sample.sm_clock_mhz:.0f} MHz"
    return text


def _cause(lowered: LoweredLimit) -> str:
    if lowered.laptop:
        return f"power limit {number(lowered.limit)} W of {number(lowered.reference)} W possible"
    return (
        f"power limit is set to {number(lowered.limit)} W (default {number(lowered.reference)} W)"
    )


def _evidence(sample: events.DeviceSample) -> tuple[str, ...]:
    parts = []
    if sample.power_watts is not None:
        parts.append(f"{sample.power_watts:.0f} W now")
    if sample.clock_event_mask:
        parts.append(f"clocks event reasons: {clock_events.names(sample.clock_event_mask)}")
    return tuple(parts)


def remedy(state: State, lowered: LoweredLimit) -> str:
    """What to do about a lowered limit."""
    if lowered.laptop:
        return (
            "Plug in the charger, choose the maker's performance profile, and run nvidia-powerd "
            "(Dynamic Boost)."
        )
    return where_needed(state, "restore the default limit, then press b to measure again.")


def command(state: State, device: DeviceState, lowered: LoweredLimit) -> str:
    """The exact command; nvidia-smi cannot raise the limit of a laptop."""
    if lowered.laptop:
        return "" if state.host is not None and state.host.wsl else "systemctl status nvidia-powerd"
    return nvidia_smi(state, device, f"-pl {number(lowered.reference)}", changes=True)

"""Counters of throttled time that agree with a scenario's clocks event reasons."""

from __future__ import annotations

from topsmon.simulated.values import Spec

REASONS = {
    "throttle_power_seconds": 0x4,
    "throttle_thermal_seconds": 0x20 | 0x40,
    "throttle_sync_boost_seconds": 0x10,
    "throttle_board_limit_seconds": 0x200,
    "throttle_low_utilisation_seconds": 0x1,
    "throttle_reliability_seconds": 0x400,
    "throttle_software_thermal_seconds": 0x20,
    "throttle_hardware_thermal_seconds": 0x40,
    "throttle_power_brake_seconds": 0x80,
}
"""Bits of NVML's clocks event reasons during which each counter runs."""


def counters(mask: Spec, index: int) -> dict[str, Spec]:
    """Return a counter a reason: 1 s a second while one of its bits is set in `mask`.

    None for a mask that is no constant and no steps of constants: the scenario gives its counters.
    """
    steps = _steps(mask, index)
    if steps is None:
        return {}
    return {field: _running(steps, bits) for field, bits in REASONS.items()}


def _steps(mask: Spec, index: int) -> list[tuple[float, int]] | None:
    if isinstance(mask, dict) and set(mask) == {"steps"}:
        found = []
        for step in mask["steps"]:
            if not isinstance(step, list) or len(step) != 2 or not _is_number(step[0]):
                return None
            value = _constant(step[1], index)
            if value is None:
                return None
            found.append((float(step[0]), value))
        return found
    constant = _constant(mask, index)
    return None if constant is None else [(0.0, constant)]


def _constant(value: Spec, index: int) -> int | None:
    if _is_number(value):
        return int(value)
    pair = value.get("each") if isinstance(value, dict) and set(value) == {"each"} else None
    if isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair)):
        return int(pair[0] + pair[1] * index)
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _running(steps: list[tuple[float, int]], bits: int) -> Spec:
    """The time that has passed in steps with one of the bits, as a sum of ramps."""
    terms: list[Spec] = []
    since: float | None = None
    for start, mask in [*steps, (None, 0)]:
        running = mask & bits != 0
        if running and since is None:
            since = start
        elif not running and since is not None:
            if start is None:
                terms.append({"count": [0, 1, since]})
            else:
                terms.append({"ramp": [0, start - since, since, start]})
            since = None
    return {"sum": terms} if len(terms) > 1 else (terms or [0])[0]

"""Ceilings of a CPU whose real clock was measured to be above every clock that it tells."""

from __future__ import annotations

import msgspec

from topsmon import events

TOLERANCE = 1.02
"""A measured clock this far above the told one is no noise."""
MEASURED = ", the highest clock measured here; told: "


def at_measured_clock(ceilings: events.Ceilings, clock_mhz: float) -> events.Ceilings:
    """Return the ceilings at `clock_mhz` where that is above the clock they stand for.

    A virtual machine tells its nominal clock only, and holds the boost clock: against the nominal
    one, healthy code would show 150 %. The measured clock is the better rated clock.
    """
    told = min((rate.rated_clock_mhz or 0.0 for rate in ceilings.rates), default=0.0)
    if not told or clock_mhz <= told * TOLERANCE:
        return ceilings
    return msgspec.structs.replace(
        ceilings,
        rates=tuple(_scaled(rate, clock_mhz) for rate in ceilings.rates),
        clock_source=f"{clock_mhz:.0f} MHz{MEASURED}{ceilings.clock_source.split(MEASURED)[-1]}",
    )


def at_top_clock(ceilings: events.Ceilings | None) -> bool:
    """True for ceilings at the highest clock that was measured."""
    return ceilings is not None and MEASURED in ceilings.clock_source


def _scaled(rate: events.Ceiling, clock_mhz: float) -> events.Ceiling:
    if not rate.rated_clock_mhz or clock_mhz <= rate.rated_clock_mhz:
        return rate
    factor = clock_mhz / rate.rated_clock_mhz
    low = rate.ops_per_second_low
    return msgspec.structs.replace(
        rate,
        ops_per_second=rate.ops_per_second * factor,
        ops_per_second_low=None if low is None else low * factor,
        rated_clock_mhz=clock_mhz,
    )

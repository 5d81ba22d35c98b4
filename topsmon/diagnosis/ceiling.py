"""Rules about the ceilings themselves: none known, computed, or exceeded."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.trust import trusted
from topsmon.diagnosis.words import board, finding, label, number, of_ceiling
from topsmon.state import State
from topsmon.units import percent, plain, rate

HELD_TOLERANCE = 0.03
"""The held clock is a median of few readings: the ceiling there is known to about this."""


def no_ceiling(state: State, _now: float) -> Iterator[events.Finding]:
    """An unknown board gets no ceiling, and never another board's."""
    for device in state.ordered():
        ceilings = device.ceilings
        if ceilings is None:
            continue
        if ceilings.unknown is not None:
            yield finding(
                ceilings,
                device,
                code="ceiling-unknown",
                severity="info",
                word="note",
                title=f"no ceiling known for {board(device)}",
                cause=plain(_reason(ceilings.unknown), 200),
                remedy="Measured rates are shown without a ratio.",
            )
        elif ceilings.board is None and ceilings.rates and device.identity.kind == "gpu":
            yield finding(
                ceilings,
                device,
                code="ceiling-computed",
                severity="info",
                word="note",
                title=f"{board(device)} is not in the database: ceilings are computed",
                cause=plain(ceilings.matched_by or "from architecture, SM count and clock", 120),
                remedy="Ratios rest on the formula; no verdict on them is given.",
            )


def _reason(unknown: str) -> str:
    """The part that the title does not say already."""
    said, _, reason = unknown.partition(": ")
    return reason if reason and said.startswith("no ceiling known") else unknown


def above_rated(state: State, _now: float) -> Iterator[events.Finding]:
    """Over 100 % is explained and never hidden: a boost above the rated clock, or a doubt."""
    for device in state.ordered():
        above = [
            (key, result)
            for key in device.rates
            if (result := trusted(device, key)) is not None and (device.ratio(key) or 0.0) > 1.0
        ]
        if not above:
            continue
        doubtful = [pair for pair in above if _in_doubt(device, pair[0])]
        key, result = max(doubtful or above, key=lambda pair: device.ratio(pair[0]) or 0.0)
        yield finding(
            result,
            device,
            code="ceiling-doubtful" if doubtful else "rate-above-rated",
            severity="info",
            word="note",
            title=f"{label(key)} {_compared(device, key)} ({percent(device.ratio(key))})",
            cause=_explain(device, key, result),
            evidence=tuple(
                f"{label(other)} {percent(device.ratio(other))} of rated, "
                f"{percent(device.held_ratio(other))} of the ceiling at held clock"
                for other, _ in above
            ),
            remedy=(
                "Compare with the ceiling's source: topsmon specs"
                if doubtful
                else "Nothing to do: the rated ceiling is at the rated boost clock."
            ),
        )


def _in_doubt(device: DeviceState, precision: str) -> bool:
    """True when the held clock does not explain a rate above the ceiling."""
    held = device.held_ratio(precision)
    return held is None or held > 1.0 + HELD_TOLERANCE


def _compared(device: DeviceState, precision: str) -> str:
    result, ceiling = device.rates[precision].best, device.ceiling(precision)
    assert result is not None
    assert ceiling is not None
    return of_ceiling(result.rate_ops_per_second or 0.0, ceiling.ops_per_second, precision)


def _explain(device: DeviceState, precision: str, result: events.RateMeasured) -> str:
    ceiling, held_ratio = device.ceiling(precision), device.held_ratio(precision)
    assert ceiling is not None
    if held_ratio is None:
        source = device.ceilings.clock_source if device.ceilings is not None else ""
        clock = f"; ceiling from: {plain(source, 60)}" if source else ""
        return (
            f"above the ceiling, and no clock was measured: ceiling or formula is in doubt{clock}"
        )
    held = device.held_ceiling(precision)
    if held_ratio > 1.0 + HELD_TOLERANCE:
        return (
            f"ceiling or formula is in doubt: {percent(held_ratio)} even of the "
            f"{rate(held, precision)} at the held clock"
        )
    text = f"boosts to {number(round(result.held_clock_mhz or 0.0))} MHz"
    if ceiling.rated_clock_mhz:
        text += f", rated {number(ceiling.rated_clock_mhz)} MHz"
    return f"{text}: {percent(held_ratio)} of the {rate(held, precision)} at this clock"

"""The values that two benchmarks of one device have in common, and what forbids to compare them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from topsmon.report.bench import noise
from topsmon.report.bench.comparison import Row
from topsmon.report.bench.model import (
    Bandwidth,
    BenchDevice,
    BenchDocument,
    Burst,
    PrecisionResult,
    ProbeValue,
    Shape,
)
from topsmon.report.bench.words import grouped, shape_words
from topsmon.report.shown import NOTHING_COMPUTED


class Pair(NamedTuple):
    """A value that both runs have, before its verdict.

    `gain` is the logarithm of how much better it is now; None where the two cannot be compared.
    `others` are the gains of other shapes, `clock_gain` that of the held clock.
    """

    row: Row
    gain: float | None = None
    parts: tuple[noise.Variance, ...] = ()
    others: tuple[tuple[str, float], ...] = ()
    clock_gain: float | None = None
    clocks: str = ""


def device_pairs(
    one: BenchDevice, other: BenchDevice, old: BenchDocument, new: BenchDocument
) -> list[Pair]:
    """All values of a device that both runs have, or that the second was to have."""
    reason = ""
    if old.simulated != new.simulated:
        reason = "the two runs are not both real, or of two simulations"
    elif one.mig != other.mig:
        reason = "one of the two is a part of the GPU (MIG)"
    drift = noise.of_bursts(_groups(one, other))
    now = {result.precision: result for result in other.precisions}
    pairs = [
        _rate_pair(result, now[result.precision], drift, reason)
        if result.precision in now
        else _lost(result, other)
        for result in one.precisions
        if result.precision in now or result.precision in other.not_measured
    ]
    return pairs + list(_probe_pairs(one, other, reason))


def _lost(result: PrecisionResult, other: BenchDevice) -> Pair:
    """A precision that has no number any more."""
    reason = f"not measured now: {other.not_measured[result.precision]}"
    rate = result.best.rate_ops_per_second
    return Pair(_rate_row(result, before=rate, verdict="cannot tell", reason=reason))


def _rate_row(result: PrecisionResult, **more: object) -> Row:
    return Row(key=result.precision, label=result.label, unit="ops/s", **more)  # type: ignore[arg-type]


def _groups(one: BenchDevice, other: BenchDevice) -> list[list[float]]:
    """Changes of the shapes that both runs measured, a precision each."""
    now = {result.precision: result for result in other.precisions}
    return [
        [_gain(first, second) for first, second in _common(result, now[result.precision])]
        for result in one.precisions
        if result.precision in now
    ]


def _value(burst: Burst) -> float:
    assert burst.rate_ops_per_second is not None
    return burst.rate_ops_per_second


def _gain(before: Burst, now: Burst) -> float:
    return math.log(_value(now) / _value(before))


def _common(before: PrecisionResult, now: PrecisionResult) -> list[tuple[Burst, Burst]]:
    """Bursts of both runs with the same shape, where both can be trusted."""
    if not (before.trusted and now.trusted):
        return []
    old = {burst.shape: burst for burst in before.bursts if burst.trusted}
    return [
        (old[burst.shape], burst)
        for burst in now.bursts
        if burst.trusted and burst.shape is not None and burst.shape in old
    ]


def _rate_pair(
    before: PrecisionResult, now: PrecisionResult, drift: noise.Variance | None, reason: str
) -> Pair:
    common = _common(before, now)
    pair = max(common, key=lambda pair: _value(pair[0]) * _value(pair[1]), default=None)
    first, second = pair if pair is not None else (before.best, now.best)
    row = _rate_row(
        now,
        verdict="cannot tell",
        before=first.rate_ops_per_second,
        now=second.rate_ops_per_second,
        change_ratio=_ratio(first.rate_ops_per_second, second.rate_ops_per_second),
        shape=first.shape if first.shape == second.shape else None,
        wrong=now.best.correct is False or now.nothing_computed,
    )
    if now.nothing_computed and now.best.correct is not False:
        zero = _by_size({burst.shape for burst in now.bursts if burst.nothing_computed})
        where = f" ({', '.join(map(shape_words, zero))})" if zero else ""
        return Pair(msgspec.structs.replace(row, reason=f"{NOTHING_COMPUTED}{where}"))
    if row.wrong:
        error = now.best.invalid_reason or "it differs from the FP64 reference"
        return Pair(msgspec.structs.replace(row, reason=f"wrong now: {error}", change_ratio=None))
    reason = reason or _unlike(before, now, first, second, found=pair is not None)
    parts = [noise.of_calls(burst.iqr_ratio, burst.calls) for burst in (first, second)]
    known = [part for part in parts if part is not None]
    if not reason and len(known) < len(parts):
        reason = "no quartiles, so that nothing tells of the noise"
    if reason:
        return Pair(msgspec.structs.replace(row, reason=reason))
    if drift is not None:
        known.append(drift)
    found = Pair(
        row,
        _gain(first, second),
        tuple(known),
        tuple(
            (shape_words(shape.shape), _gain(shape, other))
            for shape, other in common
            if shape is not first
        ),
    )
    old_clock, clock = first.held_clock_mhz, second.held_clock_mhz
    if old_clock is None or clock is None or min(old_clock, clock) <= 0:
        return found
    words = f"{old_clock:.0f} MHz before, {clock:.0f} MHz now"
    return found._replace(clock_gain=math.log(clock / old_clock), clocks=words)


def _unlike(
    before: PrecisionResult, now: PrecisionResult, first: Burst, second: Burst, *, found: bool
) -> str:
    """Why two results of a precision answer different questions, "" where they do not."""
    for when, result in (("before", before), ("now", now)):
        doubt = _doubt(result)
        if doubt:
            return f"{when} {doubt}"
    if not found:
        return _no_shape(before, now)
    if first.emulated != second.emulated:
        return f"emulated only {'before' if first.emulated else 'now'}"
    threads = (first.threads, second.threads)
    if None not in threads and threads[0] != threads[1]:
        return f"{threads[0]} threads before, {threads[1]} now"
    return ""


def _no_shape(before: PrecisionResult, now: PrecisionResult) -> str:
    """Why no shape can be compared: none is in both runs, or none is valid in both."""
    old, new = ({one.shape: one for one in result.bursts if one.shape} for result in (before, now))
    if not set(old) & set(new):
        words = [", ".join(map(shape_words, _by_size(found))) or "none" for found in (old, new)]
        return f"no shape in common: {words[0]} before, {words[1]} now"
    doubts = [
        (f"{shape_words(shape)} {when}", _burst_doubt(found[shape]))
        for when, found in (("before", old), ("now", new))
        for shape in _by_size(set(old) & set(new))
        if not found[shape].trusted
    ]
    told = "; ".join(f"{names}: {reason}" for names, reason in grouped(doubts))
    return f"no shape is valid in both runs: {told}"


def _by_size(shapes: Iterable[Shape | None]) -> list[Shape]:
    """The least work first."""
    return sorted((one for one in shapes if one), key=lambda shape: (math.prod(shape), shape))


def _burst_doubt(burst: Burst) -> str:
    """Why a burst is not to be compared."""
    if burst.correct is False:
        return "the result was wrong"
    if burst.nothing_computed:
        return "nothing was computed"
    return f"not valid: {burst.invalid_reason or 'no reason is given'}"


def _doubt(result: PrecisionResult) -> str:
    """Why a rate is not to be compared at all, "" where it may be."""
    if result.remembered:
        return "it was of an earlier session"
    if result.nothing_computed:
        return "nothing was computed"
    return "" if result.best.trusted else _burst_doubt(result.best)


def _ratio(before: float | None, now: float | None) -> float | None:
    if before is None or now is None or before <= 0:
        return None
    return now / before - 1


def _probe_pairs(one: BenchDevice, other: BenchDevice, reason: str) -> Iterator[Pair]:
    now = {value.name: value for value in (*other.bandwidths, *other.latencies)}
    for before in (*one.bandwidths, *one.latencies):
        after = now.get(before.name)
        if before.median is None:
            continue
        if after is not None and type(after) is type(before):
            yield _value_pair(before, after, reason)
        elif before.probe in other.not_measured:
            yield Pair(
                Row(
                    key=before.name,
                    label=before.name,
                    unit=_unit(before),
                    before=before.median,
                    verdict="cannot tell",
                    reason=f"not measured now: {other.not_measured[before.probe]}",
                )
            )


def _unit(value: ProbeValue) -> str:
    return "bytes/s" if isinstance(value, Bandwidth) else "s"


def _value_pair(before: ProbeValue, now: ProbeValue, reason: str) -> Pair:
    nothing = isinstance(now, Bandwidth) and now.nothing_moved
    has_spread = before.quartiles[0] is not None or now.quartiles[0] is not None
    row = Row(
        key=before.name,
        label=before.name,
        unit=_unit(before),
        verdict="cannot tell",
        before=before.median,
        now=now.median,
        change_ratio=_ratio(before.median, now.median),
        judged=has_spread or now.correct is False or nothing,
        wrong=now.correct is False or nothing,
    )
    parts = [noise.of_calls(value.iqr_ratio, value.calls) for value in (before, now)]
    known = tuple(part for part in parts if part is not None)
    for when, value in (("before", before), ("now", now)):
        if isinstance(value, Bandwidth) and value.nothing_moved:
            reason = f"nothing was moved {when}: a bandwidth of 0 is a failure"
        elif value.correct is False:
            reason = f"the result was wrong {when}"
        elif not value.trusted:
            reason = reason or f"not valid {when}: {value.invalid_reason or value.unavailable}"
    if not reason and len(known) < len(parts):
        reason = "no spread is measured: the change is shown, not judged"
    if reason or before.median is None or now.median is None:
        return Pair(msgspec.structs.replace(row, reason=reason))
    change = math.log(now.median / before.median)
    return Pair(row, change if isinstance(before, Bandwidth) else -change, known)

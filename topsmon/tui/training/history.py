"""A run's buckets on the columns of a chart, and the axes beside and below it: pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topsmon.events import HistoryBucket
from topsmon.run_state import RunState

Pick = Callable[[HistoryBucket], float | None]
LEAST_OCTAVES = 6
"""An axis of loss scales shows at least this much, so that single halvings stay small."""
LOG_FROM = 30.0
"""A loss that spans more than this factor is drawn on a logarithmic axis."""
LEAST_SPAN = 0.02
"""A linear axis spans at least this share of its values: noise of a flat curve stays flat."""
LOWEST_POWER = -150
"""Below the smallest positive float32, 2^-149."""
DOZENS = (1, 2, 4, 5, 10, 20, 50, 100)


class Steps(NamedTuple):
    """The axis of steps: `buckets` of `stride` steps each, the last ones perhaps still empty."""

    buckets: int
    stride: int

    @property
    def last(self) -> int:
        """The step at the right end."""
        return self.buckets * self.stride


def steps_of(run: RunState) -> Steps:
    """An axis that holds the whole run and grows seldom: in eighths of its length."""
    ends = [_index(bucket, run.stride) + 1 for bucket in run.buckets.values()]
    used = max(ends, default=1)
    grain = max(1, 1 << max(0, used.bit_length() - 4))
    return Steps(max(8, math.ceil(used / grain) * grain), run.stride)


def _index(bucket: HistoryBucket, stride: int) -> int:
    return max(0, bucket.first_step - 1) // max(1, stride)


def columns(run: RunState, steps: Steps, count: int) -> list[list[HistoryBucket]]:
    """Return the buckets that each of `count` columns shows."""
    by_index = {_index(bucket, run.stride): bucket for bucket in run.buckets.values()}
    found = []
    for column in range(count):
        begin = column * steps.buckets // count
        end = max(begin + 1, (column + 1) * steps.buckets // count)
        found.append([by_index[place] for place in range(begin, end) if place in by_index])
    return found


def lowest(found: Sequence[HistoryBucket], pick: Pick) -> float | None:
    """The lowest known value of some buckets."""
    return min((value for one in found if (value := pick(one)) is not None), default=None)


def highest(found: Sequence[HistoryBucket], pick: Pick) -> float | None:
    """The highest known value of some buckets."""
    return max((value for one in found if (value := pick(one)) is not None), default=None)


def mean(found: Sequence[HistoryBucket], pick: Pick) -> float | None:
    """The mean over the steps of some buckets, as far as they are known."""
    known = [(value, one.steps) for one in found if (value := pick(one)) is not None]
    steps = sum(number for _, number in known)
    return sum(value * number for value, number in known) / steps if steps else None


class Tick(NamedTuple):
    """A label and its height on an axis, 0..1."""

    ratio: float
    label: str


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, as powers of `base` where it is one (0: linear).

    `zero` tells that the bottom stands for 0, which no logarithm reaches.
    """

    low: float
    high: float
    base: int = 0
    zero: bool = False

    def ratio(self, value: float | None) -> float | None:
        """Height of a value; None where it is not known or cannot be drawn."""
        if value is None or math.isnan(value):
            return None
        if self.base:
            if value <= 0:
                return 0.0 if self.zero else None
            value = math.log(value, self.base) if math.isfinite(value) else self.high
        return (value - self.low) / (self.high - self.low)

    def ticks(self, rows: int) -> list[Tick]:
        """Labels for an axis of `rows` lines, with a line between two of them."""
        most = max(2, (rows + 1) // 2)
        if self.base:
            return self._power_ticks(most)
        step, first, last = self._linear_ticks(most + 1)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return [
            Tick(
                ((place * step) - self.low) / (self.high - self.low), _label(place * step, decimals)
            )
            for place in range(first, last + 1)
        ]

    def _linear_ticks(self, most: int) -> tuple[float, int, int]:
        """The finest round step with at most so many labels, and its first and last multiple."""
        step = nice_step((self.high - self.low) / most / 5)
        while True:
            first = math.ceil(self.low / step - 1e-9)
            last = math.floor(self.high / step + 1e-9)
            if last - first < most:
                return step, first, last
            step = nice_step(step * 1.5)

    def _power_ticks(self, most: int) -> list[Tick]:
        span = self.high - self.low
        step = next((one for one in DOZENS if span / one <= most), DOZENS[-1])
        bottom = [Tick(0.0, "0")] if self.zero else []
        first = math.ceil(self.low / step) * step
        powers = [
            Tick(
                (power - self.low) / span,
                f"{self.base}^{power}" if self.base == 2 else f"1e{power}",
            )
            for power in range(first, math.floor(self.high) + 1, step)
        ]
        return bottom + [tick for tick in powers if not self.zero or tick.ratio * most > 0.7]


def _label(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if abs(value) < 1e5 else f"{value:.0e}"


def nice_step(least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((one * power for one in (1, 2, 5) if one * power >= least * (1 - 1e-9)), 10 * power)


def scale_axis(run: RunState) -> Axis:
    """Octaves of the loss scale; below the lowest there is a place for 0."""
    values = [
        value
        for bucket in run.buckets.values()
        for value in (bucket.scale_lowest, bucket.scale_highest)
        if value is not None and not math.isnan(value)
    ]
    powers = [math.log2(value) for value in values if 0 < value < math.inf] or [16.0]
    low, high = math.floor(min(powers)) - 1, math.ceil(max(powers)) + 1
    missing = max(0, LEAST_OCTAVES - (high - low))
    low, high = low - (missing + 1) // 2, high + missing // 2
    zero = any(value <= 0 for value in values)
    return Axis(max(low, LOWEST_POWER), high, 2, zero)


def value_axis(values: Sequence[float | None], *, logarithmic: bool | None = None) -> Axis:
    """An axis for losses or norms: logarithmic where asked, or where they span a wide range."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return Axis(0.0, 1.0)
    low, high = min(known), max(known)
    if logarithmic is None:
        logarithmic = low > 0 and high / low > LOG_FROM
    positive = [value for value in known if value > 0]
    if logarithmic and positive:
        low_power, high_power = math.log10(min(positive)), math.log10(max(positive))
        return Axis(
            math.floor(low_power), max(math.ceil(high_power), math.floor(low_power) + 1), 10
        )
    return _linear(low, high)


def _linear(low: float, high: float) -> Axis:
    middle = (low + high) / 2
    least = max(abs(middle) * LEAST_SPAN, 1e-12)
    if high - low < least:
        low, high = middle - least / 2, middle + least / 2
    step = nice_step((high - low) / 6)
    return Axis(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)

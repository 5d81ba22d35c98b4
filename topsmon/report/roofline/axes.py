"""Logarithmic axes and their ticks at 1, 2 and 5 times the powers of ten."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

LEAST_DECADES = 2.0
_STEPS = (1, 2, 5)
_EVERY = (1, 2, 3, 5, 10, 20)
"""Decades from one tick to the next where 1-2-5 does not fit."""
_EPSILON = 1e-9


class Tick(NamedTuple):
    """`value` in the axis's own unit, `label` the number as it is written."""

    value: float
    label: str


class Axis(NamedTuple):
    """A range of positive values, both ends a 1, 2 or 5 times a power of ten.

    `unit` is written beside it and means `scale` of the values it holds (1e12 for TFLOPS).
    """

    low: float
    high: float
    unit: str
    scale: float = 1.0

    def fraction(self, value: float) -> float:
        """Where a value stands: 0 at the low end, 1 at the high end."""
        low, high = math.log10(self.low), math.log10(self.high)
        return (math.log10(value) - low) / (high - low)

    def ticks(
        self, span: Callable[[Tick], tuple[float, float]], gap: float, reserved: float = math.inf
    ) -> list[Tick]:
        """Return as many ticks as fit without their labels coming closer than `gap`.

        `span` tells from where to where a tick's label reaches. Ticks whose label would reach
        beyond `reserved` are left out.
        """
        wanted = [self._fine(), *(self._decades(every) for every in _EVERY)]
        for ticks in wanted:
            kept = [tick for tick in ticks if max(span(tick)) <= reserved]
            spans = sorted(span(tick) for tick in kept)
            if all(
                after[0] - before[1] >= gap - _EPSILON
                for before, after in itertools.pairwise(spans)
            ):
                return kept
        return []

    def _fine(self) -> list[Tick]:
        return [
            tick
            for exponent in self._exponents()
            for step in _STEPS
            if (tick := self._tick(step, exponent)) is not None
        ]

    def _decades(self, every: int) -> list[Tick]:
        return [
            tick
            for exponent in self._exponents()
            if exponent % every == 0 and (tick := self._tick(1, exponent)) is not None
        ]

    def _exponents(self) -> range:
        low, high = self.low / self.scale, self.high / self.scale
        return range(math.floor(math.log10(low)), math.floor(math.log10(high) + _EPSILON) + 1)

    def _tick(self, step: int, exponent: int) -> Tick | None:
        value = float(f"{step}e{exponent}")
        if not -_EPSILON <= self.fraction(value * self.scale) <= 1 + _EPSILON:
            return None
        return Tick(value * self.scale, _number(step, exponent))


def _number(step: int, exponent: int) -> str:
    """A tick's number: 0.05, 1, 200, and from a million on or far below one 2e6, 1e-5."""
    if -3 <= exponent <= 5:
        return f"{step * 10.0**exponent:.{max(0, -exponent)}f}"
    return f"{step}e{exponent}"


def axis(values: Iterable[float], unit: str, scale: float = 1.0) -> Axis:
    """Return an axis that holds all of some positive values, at least two decades."""
    logs = [math.log10(value / scale) for value in values] or [0.0]
    low, high = min(logs), max(logs)
    missing = max(0.0, LEAST_DECADES - (high - low)) / 2
    return Axis(
        _snap(low - missing, down=True) * scale,
        _snap(high + missing, down=False) * scale,
        unit,
        scale,
    )


def _snap(log: float, *, down: bool) -> float:
    """The next 1, 2 or 5 times a power of ten below (or above) a number given as its log10."""
    exponent = math.floor(log)
    candidates = [
        (math.log10(step) + power, float(f"{step}e{power}"))
        for power in (exponent, exponent + 1)
        for step in _STEPS
    ]
    if down:
        return max(item for item in candidates if item[0] <= log + _EPSILON)[1]
    return min(item for item in candidates if item[0] >= log - _EPSILON)[1]

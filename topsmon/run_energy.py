"""Joules per step and per token of a run that has a GPU to itself, by its energy counter."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topsmon import events

POINTS_KEPT = 120
LEAST_SECONDS = 10.0
"""NVML's counter is renewed every 20 to 100 ms: over this span that is at most 1 %."""

Reading = tuple[float, float]
"""Monotonic time in s and the counter in J."""


class _Point(NamedTuple):
    moment: float
    joules: float
    step: int
    tokens: float | None


@dataclass
class EnergyMeter:
    """Mean energy over the last `POINTS_KEPT` samples of a run."""

    points: deque[_Point] = field(default_factory=lambda: deque(maxlen=POINTS_KEPT))
    waiting: events.RunSample | None = None

    def add(self, sample: events.RunSample, readings: Sequence[Reading]) -> None:
        """Take a run's sample and the latest readings of its GPU, oldest first.

        Without readings (the GPU is shared, or has no counter) everything begins anew. The counter
        at a step's end is interpolated, so a sample counts once the readings around it are there.
        """
        if not readings:
            self.points.clear()
            self.waiting = None
            return
        before, self.waiting = self.waiting, sample
        if before is None:
            return
        moment = before.monotonic - (before.time - before.stepped_at)
        joules = _at(readings, moment)
        if joules is None:
            return
        last = self.points[-1] if self.points else None
        if last is not None and (before.step < last.step or joules < last.joules):
            self.points.clear()  # another process under this key, or a counter that began anew
        elif last is not None and before.step == last.step:
            return
        self.points.append(_Point(moment, joules, before.step, before.totals.tokens))

    @property
    def joules_per_step(self) -> float | None:
        """Energy per step tried, None before the points span `LEAST_SECONDS`."""
        ends = self._ends()
        return None if ends is None else (ends[1].joules - ends[0].joules) / _steps(ends)

    @property
    def joules_per_token(self) -> float | None:
        """Energy per token of this run, None where its tokens are not known."""
        ends = self._ends()
        if ends is None or ends[0].tokens is None or ends[1].tokens is None:
            return None
        tokens = ends[1].tokens - ends[0].tokens
        return (ends[1].joules - ends[0].joules) / tokens if tokens > 0 else None

    def _ends(self) -> tuple[_Point, _Point] | None:
        if len(self.points) < 2 or self.points[-1].moment - self.points[0].moment < LEAST_SECONDS:
            return None
        return self.points[0], self.points[-1]


def _steps(ends: tuple[_Point, _Point]) -> int:
    return ends[1].step - ends[0].step


def _at(readings: Sequence[Reading], moment: float) -> float | None:
    """The counter at a moment between two readings; None outside of them."""
    for (earlier, low), (later, high) in itertools.pairwise(readings):
        if earlier <= moment <= later and later > earlier:
            return low + (high - low) * (moment - earlier) / (later - earlier)
    return None

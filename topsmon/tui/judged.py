"""The verdicts behind the checks' tab, and which of them the cursor stands on."""

from __future__ import annotations

from collections.abc import Sequence

from topsmon import events
from topsmon.state import State

SECONDS = 1.0
"""Least time between two judgements."""
WORST_FIRST: tuple[events.CheckState, ...] = ("FAIL", "WARN", "INVALID")


class Judged:
    """Judges a state at most once a second, and only when it has changed."""

    def __init__(self) -> None:
        self.results: tuple[events.CheckResult, ...] = ()
        self._version: int | None = None
        self._at = 0.0
        self._cursor: tuple[str | None, str] | None = None

    def update(self, state: State, now: float, wall: float) -> None:
        """Judge `state`; `now` is the monotonic clock and `wall` the epoch time, in s."""
        fresh = self._version is not None and abs(now - self._at) < SECONDS
        if fresh or state.version == self._version:
            return
        from topsmon import checks

        self.results = checks.judge(state, checks.Moment(wall, now))
        self._version, self._at = state.version, now

    def place(self, device: str | None) -> int:
        """Row of the cursor: where it was put, else on the worst verdict of the device."""
        rows = self.results
        if self._cursor is not None and self._cursor[0] in {None, device}:
            for place, result in enumerate(rows):
                if _key(result) == self._cursor:
                    return place
        own = [place for place, result in enumerate(rows) if result.device == device]
        return min(own, key=lambda place: _badness(rows[place]), default=0)

    def move(self, device: str | None, step: int) -> str | None:
        """Put the cursor `step` rows on; return the device that it stands on, None for none."""
        return self._put(self.place(device) + step)

    def move_device(self, device: str | None, step: int) -> str | None:
        """Put the cursor on the first verdict of the next (1) or the previous (-1) device."""
        starts = _starts(self.results)
        if not starts:
            return None
        here = self.place(device)
        current = max(place for place, start in enumerate(starts) if start <= here)
        return self._put(starts[min(max(current + step, 0), len(starts) - 1)])

    def _put(self, place: int) -> str | None:
        if not self.results:
            return None
        result = self.results[min(max(place, 0), len(self.results) - 1)]
        self._cursor = _key(result)
        return result.device


def _key(result: events.CheckResult) -> tuple[str | None, str]:
    return result.device, result.check


def _badness(result: events.CheckResult) -> int:
    return WORST_FIRST.index(result.state) if result.state in WORST_FIRST else len(WORST_FIRST)


def _starts(results: Sequence[events.CheckResult]) -> list[int]:
    """Rows at which another device begins."""
    return [
        place
        for place, result in enumerate(results)
        if place == 0 or result.device != results[place - 1].device
    ]

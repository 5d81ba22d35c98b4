"""How far a run is, and how long it will take."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from topsmon.state import State

FIRST_GUESS_SECONDS = 4.0
"""Starting a prober with torch; until one has started nothing better is known."""


@dataclass(frozen=True)
class Progress:
    """Things measured and to be measured on all devices, and about how many seconds are left.

    `measuring` names what is measured now, per device label. `total` 0: nothing is planned yet.
    """

    done: int
    total: int
    seconds_left: float | None
    measuring: dict[str, str]

    def text(self) -> str:
        """One line: "measuring 12 of 30: bf16 on GPU 0, about 14 s left"."""
        if not self.total:
            return "looking for devices"
        counted = f"measuring {self.done} of {self.total}"
        keys = list(dict.fromkeys(self.measuring.values()))
        what = f": {', '.join(keys[:3])}" if keys else ""
        where = next(iter(self.measuring), "") if len(self.measuring) == 1 else ""
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
        return f"{counted}{what}{f' on {where}' if where else ''}{left}"


class Pace:
    """Learns from what is done how long the rest takes."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._reached: dict[str, int] = {}

    def begin(self, now: float) -> None:
        """The first prober was started at this monotonic time."""
        if self._began is None:
            self._began = now

    def progress(
        self,
        state: State,
        plans: Mapping[str, Mapping[str, float]],
        finished: AbstractSet[str],
        now: float,
    ) -> Progress:
        """`plans` holds seconds by key for each device; `finished` devices have nothing left."""
        done = 0
        left = spent = 0.0
        measuring: dict[str, str] = {}
        for key, plan in plans.items():
            device = state.devices[key]
            current = device.prober.measuring
            if current is not None and key not in finished:
                measuring[device.label] = current
            reached = self._reach(key, list(plan), current, whole=key in finished)
            seconds = list(plan.values())
            done += reached
            spent = max(spent, sum(seconds[:reached]))
            left = max(left, sum(seconds[reached:]))
        total = sum(len(plan) for plan in plans.values())
        return Progress(done, total, self._estimate(left, spent, now), measuring)

    def _reach(self, key: str, plan: list[str], current: str | None, *, whole: bool) -> int:
        """How many are done: a plan is measured in order, so all before the current one."""
        if whole:
            self._reached[key] = len(plan)
        elif current in plan:
            self._reached[key] = plan.index(current)
        return self._reached.get(key, 0)

    def _estimate(self, left: float, spent: float, now: float) -> float | None:
        if self._began is None:
            return None
        if spent <= 0:
            return max(0.0, left + FIRST_GUESS_SECONDS - (now - self._began))
        slowness = max(1.0, (now - self._began - FIRST_GUESS_SECONDS) / spent)
        return left * slowness

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
        """One line: "checking 12 of 30: bf16 on GPU 0, about 14 s left"."""
        if not self.total:
            return "looking for devices"
        counted = f"checking {self.done} of {self.total}"
        keys = list(dict.fromkeys(self.measuring.values()))
        what = f": {', '.join(keys[:3])}" if keys else ""
        where = next(iter(self.measuring), "") if len(self.measuring) == 1 else ""
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
        return f"{counted}{what}{f' on {where}' if where else ''}{left}"


class Pace:
    """Learns from what is done how long the rest takes."""

    def __init__(self) -> None:
        self._began: float | None = None

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
            over = self._over(list(plan), current, measured(state, key), whole=key in finished)
            done += len(over)
            spent = max(spent, sum(plan[one] for one in over))
            left = max(left, sum(seconds for one, seconds in plan.items() if one not in over))
        total = sum(len(plan) for plan in plans.values())
        return Progress(done, total, self._estimate(left, spent, now), measuring)

    @staticmethod
    def _over(
        keys: list[str], current: str | None, known: AbstractSet[str], *, whole: bool
    ) -> list[str]:
        """What is done: all that stands before what is being measured, else what has a result."""
        if whole:
            return keys
        if current in keys:
            return keys[: keys.index(current)]
        return [key for key in keys if key in known]

    def _estimate(self, left: float, spent: float, now: float) -> float | None:
        if self._began is None:
            return None
        if spent <= 0:
            return max(0.0, left + FIRST_GUESS_SECONDS - (now - self._began))
        slowness = max(1.0, (now - self._began - FIRST_GUESS_SECONDS) / spent)
        return left * slowness


def measured(state: State, key: str) -> set[str]:
    """Precisions and probes of a device that have a result of this session, or were refused."""
    device = state.devices[key]
    rates = {
        name
        for name, known in device.rates.items()
        if known.latest is not None or known.unsupported is not None
    }
    return rates | set(device.probes) | set(device.refused)

"""How fast a count of errors grows: what was there before anyone looked proves nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

RISES_KEPT = 64


class Rise(NamedTuple):
    """What was added to a count: by how much, in how many readings, within which time."""

    added: int
    times: int
    seconds: float

    def per_minute(self) -> float:
        """Added per minute; what was watched for less counts as a whole minute."""
        return self.added * 60.0 / max(self.seconds, 60.0)


@dataclass
class Growth:
    """The rises of one counter. It starts anew when it goes down: the driver was reloaded."""

    since: float | None = None
    latest: int | None = None
    rises: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RISES_KEPT))

    def add(self, monotonic: float, value: int) -> None:
        """Take a reading at a time in seconds."""
        if self.latest is None or value < self.latest:
            self.since = monotonic
            self.rises.clear()
        elif value > self.latest:
            self.rises.append((monotonic, value - self.latest))
        self.latest = value

    def within(self, seconds: float, now: float) -> Rise:
        """The rises of the last `seconds` before `now`, by the clock of the readings."""
        if self.since is None:
            return Rise(0, 0, 0.0)
        recent = [added for at, added in self.rises if at > now - seconds]
        return Rise(sum(recent), len(recent), min(seconds, now - self.since))

"""Training runs for the poller: what reads them is imported once there may be any.

Most machines have none, and a snapshot of a machine must not wait for what it does not need.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from topsmon import events
from topsmon.training.places import own_places, places

if TYPE_CHECKING:
    from topsmon.training.source import TrainingRuns

ALL_PLACES_SECONDS = 10.0
"""Other users' folders are looked for this often: that lists /tmp."""


class Following:
    """`poll` once a tick. `hostname` is the source's name in events."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._own = own_places(os.environ)
        self._runs: TrainingRuns | None = None
        self._next_all = 0.0

    def poll(self) -> list[events.AnyEvent]:
        """Return what is new of training runs since the last call."""
        if self._runs is None:
            if not self._any_there():
                return []
            from topsmon.training.source import TrainingRuns

            self._runs = TrainingRuns(self._hostname)
        return self._runs.poll()

    def _any_there(self) -> bool:
        if any(os.path.lexists(place.path) for place in self._own):
            return True
        now = time.monotonic()
        if now < self._next_all:
            return False
        self._next_all = now + ALL_PLACES_SECONDS
        return any(os.path.lexists(place.path) for place in places())

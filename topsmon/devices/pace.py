"""The common clock of the poller's threads: interval, pause, and the end."""

from __future__ import annotations

import threading
import time

MIN_INTERVAL = 0.1
MAX_INTERVAL = 60.0


class Pace:
    """Shared by all threads of a poller. `code` is the exit code once the poller must end.

    `counters` is True while somebody looks at the GPM counters, which cost the driver more.
    """

    def __init__(self, interval: float, *, counters: bool = False) -> None:
        self._changed = threading.Condition()
        self._interval = interval
        self._paused = False
        self.counters = counters
        self.code: int | None = None

    @property
    def interval(self) -> float:
        """Seconds between two samples."""
        return self._interval

    @property
    def paused(self) -> bool:
        """True while nothing is to be sampled."""
        return self._paused

    @property
    def ending(self) -> bool:
        """True once the poller must end."""
        return self.code is not None

    def set_interval(self, seconds: float) -> None:
        """Change the time between samples, kept within its limits."""
        with self._changed:
            self._interval = min(max(seconds, MIN_INTERVAL), MAX_INTERVAL)
            self._changed.notify_all()

    def pause(self, paused: bool) -> None:
        """Stop or resume sampling."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def leave(self, code: int) -> None:
        """End the poller; the first code given counts."""
        with self._changed:
            if self.code is None:
                self.code = code
            self._changed.notify_all()

    def sleep(self, seconds: float) -> bool:
        """Sleep; return False at once when the poller must end."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self.code is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return True
                self._changed.wait(remaining)
        return False

    def next_tick(self, last: float, patience: float = MAX_INTERVAL) -> float | None:
        """Wait for the tick after the one at `last`; return its time, None when it is not due.

        Returns None after `patience` seconds, and at once when the poller must end. A late reader
        skips the ticks it missed.
        """
        deadline = time.monotonic() + patience
        with self._changed:
            while self.code is None:
                now = time.monotonic()
                due = last + self._interval
                if now >= due and not self._paused:
                    return due if now - due < self._interval else now
                limit = deadline if self._paused else min(due, deadline)
                if now >= limit:
                    return None
                self._changed.wait(limit - now)
        return None

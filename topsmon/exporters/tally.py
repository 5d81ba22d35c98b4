"""What only grows and no single sample holds: Xids seen, time spent throttled.

Fed with every event of the session, so that a scrape every minute misses nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from topsmon import events

XIDS_KEPT = 64
"""Different numbers a device: NVIDIA documents fewer than 200 in all."""
LONGEST_GAP_SECONDS = 60.0
"""A share of a longer time than this is of a sample before a pause."""


class Seen(NamedTuple):
    """How often, and when last (wall-clock time)."""

    times: int
    time: float


class Tally:
    """Counts since the exporter started, by device key."""

    def __init__(self) -> None:
        self._xids: dict[str, dict[int, Seen]] = {}
        self._throttled: dict[str, dict[str, float]] = {}
        self._sampled: dict[str, float] = {}

    def add(self, event: events.AnyEvent) -> None:
        """Take an event of the session."""
        if isinstance(event, events.Xid):
            seen = self._xids.setdefault(event.device, {})
            if event.code in seen or len(seen) < XIDS_KEPT:
                before = seen.get(event.code, Seen(0, 0.0))
                seen[event.code] = Seen(before.times + 1, event.time)
        elif isinstance(event, events.DeviceSample):
            self._add_sample(event)

    def xids(self, device: str) -> dict[int, Seen]:
        """The Xids of a device by number."""
        return self._xids.get(device, {})

    def throttled(self, device: str) -> dict[str, float]:
        """Seconds in which a device's clocks were held down, by reason."""
        return self._throttled.get(device, {})

    def _add_sample(self, sample: events.DeviceSample) -> None:
        before = self._sampled.get(sample.device)
        self._sampled[sample.device] = sample.monotonic
        if before is None or not 0 < sample.monotonic - before <= LONGEST_GAP_SECONDS:
            return
        seconds = self._throttled.setdefault(sample.device, {})
        for reason, share in sample.throttle_ratios.items():
            spent = share * (sample.monotonic - before)
            seconds[reason] = seconds.get(reason, 0.0) + spent

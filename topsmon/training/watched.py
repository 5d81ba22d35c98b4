"""One ring that is being watched: what of it is new since the last look, as events."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from topsmon import events
from topsmon.training import window
from topsmon.training.discovery import activity
from topsmon.training.life import Here, Life, life, visible
from topsmon.training.reader import Bucket, Happening, Identity, Record, RingReader, RingReadError

LAST_WORDS_SECONDS = 60.0
"""After a run's end its launcher may still write how it ended."""
HAPPENINGS_KEPT = 1024


class WatchedRun:
    """A run whose ring is read again and again. The constructor raises RingReadError.

    `settled` is True once it has ended and nothing more is to be expected.
    """

    def __init__(self, path: Path, owner: int, hostname: str, here: Here) -> None:
        self.path = path
        self.settled = False
        self.life: Life | None = None
        self._hostname, self._here = hostname, here
        self._reader = RingReader(path, owner)
        self._identity: Identity | None = None
        self._records: tuple[Record, ...] = ()
        self._stored: tuple[Bucket, ...] = ()
        self._happenings: list[Happening] = []
        self._sample: events.RunSample | None = None
        self._stride = 0
        self._buckets: dict[int, events.HistoryBucket] = {}
        self._ended: float | None = None
        try:
            self._reader.identity()
        except RingReadError:
            self._reader.close()
            raise

    @property
    def key(self) -> str:
        """The run's key in events."""
        return self._reader.key

    @property
    def activity(self) -> float:
        """Time of the last sign of it, in s since the epoch; after the first `poll`."""
        started = 0.0 if self._identity is None else self._identity.process.started
        stepped = window.stepped_at(self._records)
        return activity(started, stepped, self._happenings)

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()

    def removed(self) -> bool:
        """True if its file has no name left; its process may go on, and make it anew."""
        return self._reader.removed()

    def follow(self, path: Path) -> bool:
        """Go on in another file, if it holds the same run."""
        if not self._reader.follow(path):
            return False
        self.path = path
        return True

    def poll(self) -> list[events.AnyEvent]:
        """Return what is new. RingReadError once the ring cannot be read any more."""
        if self.settled:
            return []
        new: list[events.AnyEvent] = []
        identity = self._reader.identity()
        if identity is not self._identity:
            self._identity = identity
            new.append(self._run(identity))
        happenings = self._reader.happenings()
        self._happenings += [happening for _, happening in happenings]
        del self._happenings[:-HAPPENINGS_KEPT]
        records, stored = self._reader.window(), self._reader.history()
        if records is not self._records or stored is not self._stored:
            self._stored = stored
            new += self._history(records, stored)
        if records is not self._records or happenings:
            self._records = records
            new += self._sampled(identity, records)
        new += [self._event(number, happening) for number, happening in happenings]
        new += self._status(identity)
        return new

    def lost(self, reason: str) -> events.RunStatus:
        """The status of a run whose ring has gone or broken."""
        now = time.time()
        return events.RunStatus(
            time=now,
            monotonic=time.monotonic(),
            source=self._source(),
            run=self.key,
            condition="gone",
            since=now,
            detail=reason,
        )

    def _source(self) -> str:
        return f"{self._hostname}/{self.key}"

    def _run(self, identity: Identity) -> events.Run:
        return msgspec.structs.replace(
            identity.run,
            time=time.time(),
            monotonic=time.monotonic(),
            source=self._source(),
            local=visible(identity.process, self._here),
        )

    def _history(
        self, records: tuple[Record, ...], stored: tuple[Bucket, ...]
    ) -> list[events.AnyEvent]:
        stride, buckets = window.history(stored, records)
        if stride != self._stride:
            self._stride, self._buckets = stride, {}
        changed = tuple(b for b in buckets if self._buckets.get(b.first_step) != b)
        self._buckets.update({bucket.first_step: bucket for bucket in changed})
        if not changed:
            return []
        return [
            events.RunHistory(
                time=time.time(),
                monotonic=time.monotonic(),
                source=self._source(),
                run=self.key,
                stride=stride,
                buckets=changed,
            )
        ]

    def _sampled(self, identity: Identity, records: tuple[Record, ...]) -> list[events.AnyEvent]:
        before = self._sample
        sample = window.sample(identity, records, self._happenings)
        if sample is None:
            return []
        sample = msgspec.structs.replace(sample, source=self._source())
        self._sample = sample
        if before is not None:
            stamps = {"time": before.time, "monotonic": before.monotonic}
            if msgspec.structs.replace(sample, **stamps) == before:
                return []
        return [sample]

    def _event(self, number: int, happening: Happening) -> events.RunEvent:
        return events.RunEvent(
            time=happening.time,
            # The clock of events past, so that ages come out right.
            monotonic=time.monotonic() - (time.time() - happening.time),
            source=self._source(),
            run=self.key,
            number=number,
            kind=happening.kind,
            step=happening.step,
            message=happening.message,
            names=happening.names,
            values=happening.values,
        )

    def _status(self, identity: Identity) -> list[events.AnyEvent]:
        stepped = window.stepped_at(self._records)
        high = self._sample.window.high_step_seconds if self._sample is not None else None
        now = time.time()
        before, after = (
            self.life,
            life(identity.process, stepped, high, self._happenings, self._here, now),
        )
        self.life = after
        self._settle(after, now)
        if before is not None and _told(before) == _told(after):
            return []
        return [
            events.RunStatus(
                time=now,
                monotonic=time.monotonic(),
                source=self._source(),
                run=self.key,
                condition=after.condition,
                since=after.since,
                detail=after.detail,
                exit_code=after.exit_code,
            )
        ]

    def _settle(self, after: Life, now: float) -> None:
        """A run that ended a while ago, for certain, is not read any more."""
        if not after.ended or not after.certain:
            self._ended = None
        elif self._ended is None:
            self._ended = time.monotonic() - max(now - self.activity, 0.0)
        self.settled = (
            self._ended is not None and time.monotonic() - self._ended > LAST_WORDS_SECONDS
        )
        if self.settled:
            self._reader.close()


def _told(one: Life) -> tuple[object, ...]:
    """What a status event tells; the growing age in words of a run that is gone is no news."""
    return one.condition, one.exit_code, one.detail if one.certain else ""

"""A state at any moment of a recording: folding on from where it stands, or from a checkpoint."""

from __future__ import annotations

import bisect
import pickle
import time
from collections.abc import Iterator
from typing import NamedTuple

from topsmon import events
from topsmon.recording.clock import Moment, after
from topsmon.recording.reader import Entry, Place, RecordingReader
from topsmon.state import State

CHECKPOINT_SECONDS = 30.0
"""Of recorded time between two checkpoints at the least; twice that whenever there are too many."""
MOST_CHECKPOINTS = 64
EVENTS_BETWEEN_LOOKS = 64
"""Events folded between two looks at the clock."""


class Checkpoint(NamedTuple):
    """A state put by, and where reading goes on from it."""

    now: float
    place: Place | None
    moment: Moment | None
    state: bytes


class Cursor:
    """The fold of a recording up to `now`; `advance` and `seek` move it."""

    def __init__(self, reader: RecordingReader, begin: float) -> None:
        self._reader = reader
        self._decoder = events.LineDecoder()
        self._begin = begin
        self._spacing = CHECKPOINT_SECONDS
        self._versions = 0
        self._checkpoints: list[Checkpoint] = []
        self._restore(Checkpoint(begin, None, None, pickle.dumps(State())))

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.state: State = pickle.loads(checkpoint.state)  # noqa: S301  our own, from this memory
        # Views compare versions to see a change, and going back is one.
        self._versions += 1
        self.state.version = self._versions
        self.now = checkpoint.now
        self._moment = checkpoint.moment
        self._entries: Iterator[Entry] = self._reader.lines(checkpoint.place)
        self._held: tuple[events.AnyEvent, Moment] | None = None

    def seek(self, goal: float) -> None:
        """Go where folding on to `goal` takes least; then `advance`."""
        place = bisect.bisect_right(self._checkpoints, goal, key=lambda one: one.now) - 1
        best = self._checkpoints[place] if place >= 0 else None
        if goal < self.now:
            self._restore(best or Checkpoint(self._begin, None, None, pickle.dumps(State())))
        elif best is not None and best.now > self.now:
            self._restore(best)

    def advance(self, goal: float, seconds: float | None = None) -> bool:
        """Fold what came up to `goal`; True when all of it is, False where `seconds` ran out."""
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        folded = 0
        while True:
            if self._held is None:
                self._held = self._next()
            if self._held is None or self._held[1].now > goal:
                self.now = max(self.now, goal)
                return True
            event, moment = self._held
            self._held = None
            self._moment = moment
            self.now = max(self.now, moment.now)
            self.state.apply(event, min(event.monotonic, moment.now))
            self._versions = max(self._versions, self.state.version)
            folded += 1
            if folded % EVENTS_BETWEEN_LOOKS == 0 and time.monotonic() >= deadline:
                return False

    def _next(self) -> tuple[events.AnyEvent, Moment] | None:
        """The next event and the time once it has come; None at the end."""
        for entry in self._entries:
            if entry.place is not None:
                self._put_by(entry.place)
            event = self._decoder.decode(entry.line)
            if event is not None:
                remembered = isinstance(event, events.RateMeasured) and event.earlier_session
                return event, after(self._moment, event, remembered=remembered)
        return None

    def _put_by(self, place: Place) -> None:
        """Keep the state where it is worth it; what is held is of after it."""
        now = self._moment.now if self._moment is not None else self._begin
        if self._checkpoints and now < self._checkpoints[-1].now + self._spacing:
            return
        self._checkpoints.append(Checkpoint(now, place, self._moment, pickle.dumps(self.state)))
        if len(self._checkpoints) > MOST_CHECKPOINTS:
            self._checkpoints = self._checkpoints[::2]
            self._spacing *= 2

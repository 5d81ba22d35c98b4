"""A recording as a session: what the screen asks of a running one, and how to move in time.

Owned by the screen's event loop; folding is cut into short pieces so that keys are answered at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.recording.cursor import Cursor
from topsmon.recording.index import Index
from topsmon.recording.progress import Progress
from topsmon.recording.reader import RecordingReader
from topsmon.state import State
from topsmon.units import PRECISIONS

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
NOTHING_IS_MEASURED = "this is a replay: nothing is measured"
TICK_SECONDS = 0.1
PIECE_SECONDS = 0.02
"""Longest time of folding between two looks at the keys."""
SEARCH_STEP_SECONDS = 1.0
DIAGNOSES_PER_SECOND = 4


class ReplaySession:
    """A recording being played. It stands still until it is started."""

    def __init__(
        self,
        reader: RecordingReader,
        index: Index,
        *,
        speed: float = 1.0,
        at: float | None = None,
    ) -> None:
        """Begin at the monotonic time `at` of the recording (None: its beginning)."""
        self.index = index
        self.name = reader.path.name
        self.speed = speed
        self.interval = 1.0
        self.precisions: tuple[str, ...] = tuple(PRECISIONS)
        self.paused = False
        self.torch_problem: str | None = NOTHING_IS_MEASURED
        self.listeners: list[Callable[[events.AnyEvent], None]] = []
        self._cursor = Cursor(reader, index.begin.now)
        self._goal = index.begin.now
        self._task: asyncio.Task[None] | None = None
        self._searching: frozenset[tuple[str | None, ...]] | None = None
        self._findings: tuple[events.Finding, ...] = ()
        self._findings_of: tuple[int, float] | None = None
        self._diagnosed = float("-inf")
        if at is not None:
            self.seek_to(at)
            self.settle()

    # What the screen needs ------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What was known at this moment of the recording."""
        return self._cursor.state

    @property
    def progress(self) -> Progress:
        """Where the replay stands."""
        message = ""
        if self._searching is not None:
            message = "searching for the next finding"
        elif self._cursor.now < self._goal:
            message = "reading"
        elif self.at_end:
            message = "the end"
        position = self._cursor.now - self.index.begin.now
        return Progress(self.name, position, self.index.seconds, self.speed, message)

    @property
    def at_end(self) -> bool:
        """True where nothing follows."""
        return self._cursor.now >= self.index.end.now

    def clock(self) -> tuple[float, float]:
        """The monotonic and the wall-clock time at this moment of the recording, in s."""
        return self._cursor.now, self.index.wall(self._cursor.now)

    def findings(self) -> tuple[events.Finding, ...]:
        """The diagnosis at this moment, worst first; a few times a second at the most."""
        key = (self.state.version, self._cursor.now)
        real = time.monotonic()
        if key != self._findings_of and real - self._diagnosed >= 1 / DIAGNOSES_PER_SECOND:
            self._findings = diagnose(self.state, self._cursor.now)
            self._findings_of, self._diagnosed = key, real
        return self._findings

    async def start(self) -> None:
        """Begin to play."""
        if self._task is None:
            self._task = asyncio.create_task(self._play(), name="replay")

    async def stop(self) -> None:
        """Stop playing; it can be started again."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def pause(self, paused: bool) -> None:
        """Stand still, or go on; at the end from the beginning."""
        self.paused = paused
        self._searching = None
        if not paused and self.at_end:
            self.seek_to(self.index.begin.now)

    def set_interval(self, seconds: float) -> None:
        """Do nothing: the sampling interval is the recording's."""

    def set_counters(self, on: bool) -> None:
        """Do nothing: the counters are the recording's."""

    def benchmark(self, device_key: str | None, on: bool) -> None:
        """Do nothing: nothing is measured."""

    def benchmarking(self, device_key: str) -> bool:
        """Tell that nothing is measured."""
        del device_key
        return False

    def choose_precisions(self, keys: tuple[str, ...]) -> None:
        """Show only these precisions."""
        self.precisions = keys

    # Moving in time -------------------------------------------------------------------------------

    def set_speed(self, speed: float) -> None:
        """Play so many recorded seconds in one."""
        self.speed = speed

    def change_speed(self, step: int) -> None:
        """Play at the next higher (1) or lower (-1) of the usual speeds."""
        higher = [speed for speed in SPEEDS if speed > self.speed]
        lower = [speed for speed in SPEEDS if speed < self.speed]
        if step > 0 and higher:
            self.speed = higher[0]
        elif step < 0 and lower:
            self.speed = lower[-1]

    def seek(self, seconds: float) -> None:
        """Go so many seconds on, or back where negative."""
        self.seek_to(self._goal + seconds)

    def seek_to(self, now: float) -> None:
        """Go to a monotonic time of the recording."""
        self._searching = None
        self._go(now)

    def _go(self, now: float) -> None:
        self._goal = min(max(now, self.index.begin.now), self.index.end.now)
        self._cursor.seek(self._goal)

    def next_finding(self) -> bool:
        """Go to where the next finding begins and stand still there; False if there is none.

        Where the recording holds no findings of its own they are searched for, and the answer is
        True though none may come.
        """
        if not self.index.knows_findings:
            self._searching = self._identities()
            return not self.at_end
        later = (when for when, _ in self.index.findings if when > self._cursor.now)
        when = next(later, None)
        if when is None:
            return False
        self.paused = True
        self.seek_to(when)
        return True

    def settle(self) -> None:
        """Fold up to where the replay is to stand, at once."""
        self._cursor.advance(self._goal)
        self.interval = self.state.interval or self.interval

    # Playing --------------------------------------------------------------------------------------

    async def _play(self) -> None:
        before = time.monotonic()
        while True:
            now = time.monotonic()
            passed, before = now - before, now
            if self._cursor.now >= self._goal:
                self._set_goal(passed)
            there = self._cursor.advance(self._goal, PIECE_SECONDS)
            self.interval = self.state.interval or self.interval
            busy = not there or self._searching is not None
            await asyncio.sleep(0 if busy else TICK_SECONDS)

    def _set_goal(self, passed: float) -> None:
        """Where to be next, after so many real seconds."""
        if self._searching is not None:
            current = self._identities()
            if current - self._searching or self.at_end:
                self._searching = None
                self.paused = True
            else:
                self._searching = current
                self._go(self._cursor.now + SEARCH_STEP_SECONDS)
        elif not self.paused and not self.at_end:
            self._go(self._cursor.now + passed * self.speed)

    def _identities(self) -> frozenset[tuple[str | None, ...]]:
        """What makes each present finding that finding."""
        return frozenset(
            (finding.code, finding.device, finding.run)
            for finding in diagnose(self.state, self._cursor.now)
        )

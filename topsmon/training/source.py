"""All training runs of this machine as a source of events: `TrainingRuns.poll`, once a tick."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from topsmon import events
from topsmon.training import discovery
from topsmon.training.discovery import Place
from topsmon.training.life import Here, process_lives
from topsmon.training.reader import RingReader, RingReadError
from topsmon.training.recorder.folder import FolderError
from topsmon.training.watched import WatchedRun

SCAN_SECONDS = 1.0
PLACES_SECONDS = 10.0
"""Other users' folders may come, which root looks for."""
CLEAN_SECONDS = 3600.0
RECENT_RUNS = 32
RECENT_SECONDS = 86400.0
"""Of the runs that had ended before we began, so many and so recent ones are shown."""
TRIES = 5
"""A ring that cannot be read is tried again so often: it may be just being made."""
SUBJECT = "runs"


class TrainingRuns:
    """Finds rings and follows them. `hostname` is the source's name in events.

    `everything`: runs that ended before we began are shown however old or many; `most`: so many
    of the recent ones, None: all.
    """

    def __init__(
        self,
        hostname: str,
        environment: Mapping[str, str] | None = None,
        here: Here | None = None,
        *,
        everything: bool = False,
        most: int | None = RECENT_RUNS,
    ) -> None:
        environment = os.environ if environment is None else environment
        self._hostname = hostname
        self._here = Here.read() if here is None else here
        self._environment = environment
        self._places = discovery.places(environment)
        self._changed: dict[Place, int] = {}
        self._runs: dict[Path, WatchedRun] = {}
        self._passed: dict[Path, int] = {}
        self._broken: dict[Path, str] = {}
        self._everything = everything
        self._most = None if everything else most
        self._problem: str | None = None
        self._next_scan = self._next_clean = 0.0
        self._next_places = time.monotonic() + PLACES_SECONDS

    def poll(self) -> list[events.AnyEvent]:
        """Return what is new since the last call. Never raises for what a ring holds."""
        new: list[events.AnyEvent] = []
        now = time.monotonic()
        if now >= self._next_scan:
            self._next_scan = now + SCAN_SECONDS
            if now >= self._next_places:
                self._next_places = now + PLACES_SECONDS
                self._places = discovery.places(self._environment)
            if now >= self._next_clean:
                self._next_clean = now + CLEAN_SECONDS
                discovery.clean(self._places, self._here)
            new += self._scan()
        for path, run in list(self._runs.items()):
            try:
                new += run.poll()
            except RingReadError as error:  # noqa: PERF203 - one bad run must not end the rest
                new.append(run.lost(str(error)))
                self._forget(path)
        return new

    def problems(self) -> list[str]:
        """What could not be read, in words: refused folders and damaged rings."""
        folders = [] if self._problem is None else [self._problem]
        return [*folders, *self._broken.values()]

    def left_out(self) -> int:
        """How many ended runs were passed over as too old or too many."""
        return len(self._passed.keys() - self._broken.keys())

    def close(self) -> None:
        """Let go of all files."""
        for path in list(self._runs):
            self._forget(path)

    def _forget(self, path: Path) -> None:
        self._runs.pop(path).close()
        self._passed[path] = TRIES

    def _scan(self) -> list[events.AnyEvent]:
        new: list[events.AnyEvent] = []
        problem: str | None = None
        for place in self._places:
            try:
                if self._is_news(place):
                    new += self._take(place, discovery.names(place))
            except (FolderError, OSError) as error:  # noqa: PERF203 - nor one bad folder
                self._changed.pop(place, None)
                problem = problem or (str(error) if place.own else None)
        if problem != self._problem:
            self._problem = problem
            new.append(self._trouble(problem))
        return new

    def _is_news(self, place: Place) -> bool:
        """True if files may have come or gone, or one is to be tried again."""
        try:
            changed = os.lstat(place.path).st_mtime_ns
        except OSError:
            changed = 0
        waiting = any(tries < TRIES for tries in self._passed.values())
        if changed == self._changed.get(place) and not waiting:
            return False
        self._changed[place] = changed
        return True

    def _take(self, place: Place, names: list[str]) -> Iterator[events.AnyEvent]:
        paths = [Path(place.path, name) for name in names]
        for path in [path for path in self._runs if str(path.parent) == place.path]:
            run = self._runs[path]
            if path in paths and not (run.removed() and not run.follow(path)):
                continue
            ended = run.life is not None and run.life.ended
            # A live run makes it anew; until then it is read by the descriptor that we hold.
            if path in paths or ended:
                self._runs.pop(path).close()
                if not ended:
                    yield run.lost("its ring file was removed")
        for path in [path for path in self._passed if str(path.parent) == place.path]:
            if path not in paths:
                del self._passed[path]
                self._broken.pop(path, None)
        recent = set(paths[: self._most])
        for path in reversed(paths):
            if path in self._runs or self._passed.get(path, 0) >= TRIES:
                continue
            if self._follow(path):
                continue
            yield from self._begin(path, place, recent=path in recent)

    def _follow(self, path: Path) -> bool:
        """True if this new file is that of a run whose file was removed, which goes on in it."""
        for old, run in self._runs.items():
            if old.name == path.name and run.removed() and run.follow(path):
                self._runs[path] = self._runs.pop(old)
                return True
        return False

    def _begin(self, path: Path, place: Place, *, recent: bool) -> list[events.AnyEvent]:
        """Follow a ring if it is live or recent; return its first events."""
        run: WatchedRun | None = None
        try:
            if not recent and not _may_live(path, place, self._here):
                self._passed[path] = TRIES
                return []
            run = WatchedRun(path, place.owner, self._hostname, self._here)
            first = run.poll()
        except RingReadError as error:
            self._passed[path] = self._passed.get(path, 0) + 1
            self._broken[path] = str(error)
            if run is not None:
                run.close()
            return []
        ended = run.life is not None and run.life.ended
        if ended and not self._everything and time.time() - run.activity > RECENT_SECONDS:
            run.close()
            self._passed[path] = TRIES
            return []
        self._broken.pop(path, None)
        self._passed.pop(path, None)
        self._runs[path] = run
        return first

    def _trouble(self, problem: str | None) -> events.Problem:
        return events.Problem(
            time=time.time(),
            monotonic=time.monotonic(),
            source=self._hostname,
            subject=SUBJECT,
            code=None if problem is None else "folder",
            message="" if problem is None else f"training runs: {problem}",
        )


def _may_live(path: Path, place: Place, here: Here) -> bool:
    """False for a run whose process has certainly ended; RingReadError."""
    with contextlib.closing(RingReader(path, place.owner)) as reader:
        return process_lives(reader.identity().process, here) is not False

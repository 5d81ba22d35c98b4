"""Writes events into a recording, from a thread of its own.

Whoever gives the events never waits: a slow, hanging or full disk costs lines of the recording, and
says so. What was given `FLUSH_SECONDS` ago can be read back whatever ends the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from topsmon import __version__, events
from topsmon.devices.stamp import stamp
from topsmon.recording import lock, names
from topsmon.recording.known import known_events
from topsmon.recording.outputs import WRONG_NAME
from topsmon.recording.part import Part
from topsmon.state import State

FLUSH_SECONDS = 0.5
SYNCHRONISE_SECONDS = 10.0
MAX_BYTES = 64 << 20
KEPT_PARTS = 8
MOST_WAITING_BYTES = 16 << 20
"""What is kept for a disk that takes nothing; beyond it the oldest lines are given up."""
MOST_WAITING_EVENTS = 100_000
"""The same for a disk that does not even answer."""
CLOSE_SECONDS = 2.0
FIRST_AGAIN_SECONDS = 10.0
AGAIN_SECONDS = 60.0
"""So soon, and then so often, what is known is told again: damage costs what it touches."""


class RecordingError(Exception):
    """A recording that cannot be begun or read: one line for the user."""


class WrongNameError(RecordingError):
    """What the user named is not there, or is taken: another name would do."""


@dataclass(frozen=True)
class Limits:
    """How large one file of a recording may become, in bytes, and how many are kept."""

    max_bytes: int = MAX_BYTES
    keep: int = KEPT_PARTS


@dataclass(frozen=True)
class Condition:
    """How a recording stands: bytes on the disk in all its files, and what is wrong, if anything.

    `lost_lines` could not be written; `problem` is the disk's present one in words. All that came
    until `written` (monotonic time in s, None: nothing yet) is on the disk.
    """

    size: int = 0
    part: int = 1
    lost_lines: int = 0
    problem: str | None = None
    written: float | None = None


class RecordingWriter:
    """A recording that is being written. `condition` is always there to be read."""

    def __init__(
        self,
        path: Path,
        known: Sequence[events.AnyEvent] = (),
        limits: Limits | None = None,
        *,
        force: bool = False,
        sampling: tuple[float | None, float | None] = (None, None),
    ) -> None:
        """Create the file; `known` is told in it before what is to come, `sampling` as below.

        Raises RecordingError where the name is taken (unless `force`) or cannot be written.
        """
        self.path = path
        self.condition = Condition()
        self._limits = limits or Limits()
        self._state = State()
        self._recording = secrets.token_hex(8)
        self._began = time.time()
        self._part = 1
        self._older_bytes: dict[int, int] = {}
        self._sampling = sampling
        self._compressed = names.is_compressed(path)
        self._waiting: deque[events.AnyEvent] = deque()
        self._head_bytes = self._lost = self._refused = 0
        self._tell_again_at = time.monotonic() + FIRST_AGAIN_SECONDS
        self._written: float | None = None
        self._closing = threading.Event()
        self._file = _create(path, compressed=self._compressed, force=force)
        for event in known:
            self._state.apply(event, event.monotonic)
        self._again = self._head(known)
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    # The caller's side ----------------------------------------------------------------------------

    def write(self, event: events.AnyEvent) -> None:
        """Take an event; it is on the disk within a second."""
        if len(self._waiting) < MOST_WAITING_EVENTS:
            self._waiting.append(event)
        else:
            self._refused += 1

    def tell_sampling(self, interval: float | None, since: float | None) -> None:
        """Take the sampling period in s and since when samples are due; None while paused."""
        self._sampling = (interval, since)
        self.write(self._about_itself())

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Write the rest and end; False where the disk did not let us within the time given."""
        self._closing.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # The thread -----------------------------------------------------------------------------------

    def _work(self) -> None:
        synchronised = time.monotonic()
        while not self._closing.wait(FLUSH_SECONDS):
            self._flush()
            if time.monotonic() - synchronised >= SYNCHRONISE_SECONDS:
                synchronised = time.monotonic()
                with contextlib.suppress(OSError):
                    self._file.synchronise()
        self._flush(last=True)
        try:
            self._file.close()
        except OSError as error:
            self._lost += self._file.waiting_lines
            self._report(_words(error))

    def _flush(self, *, last: bool = False) -> None:
        """Put what has come on the disk, and begin a new file where this one is full."""
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        due = last or (taken and time.monotonic() >= self._tell_again_at)
        if due and not self._again and not self._file.waiting_lines:
            self._tell_again()
        for event in taken:
            self._state.apply(event, event.monotonic)
        if self._refused:
            taken.append(self._lose(self._refused, "the disk did not answer"))
            self._refused = 0
        # A file that holds little but its own head would make one after the other.
        full = max(self._limits.max_bytes, 2 * self._head_bytes)
        written = self._append([*taken, self._about_itself(ended=True)] if last else taken)
        if written and self._file.size >= full and not last:
            self._rotate()

    def _tell_again(self) -> None:
        """Tell what is known, for whoever cannot read what was told before."""
        self._tell_again_at = time.monotonic() + AGAIN_SECONDS
        self._append(self._head(known_events(self._state), again=True), apart=True)

    def _append(self, found: Sequence[events.AnyEvent], *, apart: bool = False) -> bool:
        """Write events after what still waits; False where the disk does not take them."""
        found, self._again = [*self._again, *found], []
        came = time.monotonic()
        try:
            self._file.append([events.encode(event) for event in found], came, apart=apart)
        except OSError as error:
            if self._file.waiting_bytes > MOST_WAITING_BYTES:
                lost = self._lose(self._file.forget(), "the disk took nothing")
                self._again = [*self._head(known_events(self._state)), lost]
            self._report(_words(error))
            return False
        self._written = came
        self._report(None)
        return True

    def _lose(self, lines: int, reason: str) -> events.Recording:
        """Count lines that are lost; return what tells of it in the recording."""
        self._lost += lines
        return self._about_itself(lost=lines, reason=reason)

    def _report(self, problem: str | None) -> None:
        self.condition = Condition(
            size=self._file.size + sum(self._older_bytes.values()),
            part=self._part,
            lost_lines=self._lost,
            problem=problem,
            written=self._written,
        )

    def _rotate(self) -> None:
        """Give this file its number and go on in a new one; where that fails stay in this one."""
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            new.unlink(missing_ok=True)
            following = Part.create(new, compressed=self._compressed)
            self.path.rename(names.numbered(self.path, self._part))
            new.rename(self.path)
        except OSError as error:
            self._report(f"no new file was begun: {_words(error)}")
            return
        with contextlib.suppress(OSError):
            self._file.close()
        self._older_bytes[self._part] = self._file.size
        self._file = following
        self._part += 1
        for part in [one for one in self._older_bytes if one <= self._part - self._limits.keep]:
            del self._older_bytes[part]
            with contextlib.suppress(OSError):
                names.numbered(self.path, part).unlink(missing_ok=True)
        self._append(self._head(known_events(self._state)))
        self._head_bytes = self._file.size
        self._tell_again_at = time.monotonic() + FIRST_AGAIN_SECONDS

    def _head(
        self, known: Sequence[events.AnyEvent], *, again: bool = False
    ) -> list[events.AnyEvent]:
        """What each file begins with: who wrote it, what it is a part of, what was known before."""
        own = events.Hello(
            **stamp(""),
            version=__version__,
            schema=events.SCHEMA_VERSION,
            role="recording",
            pid=os.getpid(),
            simulated=self._state.simulated,
        )
        return [own, self._about_itself(repeated=len(known), again=again), *known]

    def _about_itself(
        self,
        *,
        repeated: int = 0,
        again: bool = False,
        lost: int = 0,
        reason: str = "",
        ended: bool = False,
    ) -> events.Recording:
        interval, since = self._sampling
        return events.Recording(
            **stamp(""),
            recording=self._recording,
            part=self._part,
            began=self._began,
            repeated=repeated,
            again=again,
            interval=interval,
            sampling_since=since,
            lost_lines=lost,
            lost_reason=reason,
            ended=ended,
        )


def check_name(path: Path, *, force: bool) -> list[Path]:
    """Return the files that `force` lets a new recording of this name replace.

    Raises RecordingError where it may not begin: names are taken, or are being recorded into.
    """
    try:
        taken = [
            other
            for other in (path, *(one for _, one in names.older_parts(path)))
            if other.is_symlink() or other.exists()
        ]
        for other in taken:
            if not force:
                raise WrongNameError(f"{other} exists; name another file, or use --force")
            if not stat.S_ISREG(other.lstat().st_mode):
                raise WrongNameError(f"{other} is no regular file and is not written over")
            if lock.is_being_written(other):
                raise WrongNameError(f"{other} is being recorded; name another file")
    except OSError as error:
        raise _refusal(path, error) from error
    return taken


def _create(path: Path, *, compressed: bool, force: bool) -> Part:
    """Create the first file; what has its name, or is an older part of it, goes if `force`."""
    try:
        for other in check_name(path, force=force):
            other.unlink()
        return Part.create(path, compressed=compressed)
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> RecordingError:
    kind = WrongNameError if error.errno in WRONG_NAME else RecordingError
    return kind(f"{path}: {error.strerror or error}")


def _words(error: OSError) -> str:
    """What an error of the disk means for the recording."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return f"no room: {error.strerror}"
    return error.strerror or str(error)

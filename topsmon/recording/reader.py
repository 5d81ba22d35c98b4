"""Reads recordings: all files of one in their order, event by event, whatever became of them.

Any file of event lines will do, the output of `topsmon stream` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from topsmon import events
from topsmon.recording import names
from topsmon.recording.lines import Losses, begins_like, read_lines
from topsmon.recording.outputs import WRONG_NAME
from topsmon.recording.writer import RecordingError, WrongNameError

OWN = b'{"type":"recording"'
HELLO = b'{"type":"hello"'
"""How these lines begin: the encoder writes the tag first."""


class Place(NamedTuple):
    """Where reading may begin again: which file, at which byte, and what was read before it."""

    file: int
    offset: int
    before: tuple[str, int] | None


class Entry(NamedTuple):
    """A line of a recording; `place` where one may begin again with it, None in between."""

    line: bytes
    place: Place | None


@dataclass(frozen=True)
class Lost:
    """What could not be read, or was never written; falsy where nothing is missing."""

    cut: bool = False
    damaged_bytes: int = 0
    bad_lines: int = 0
    newer_lines: int = 0
    missing_files: int = 0
    unwritten_lines: int = 0

    def words(self) -> list[str]:
        """Each loss in words, for a person."""
        found = []
        if self.cut:
            found.append("the end is cut off (killed while recording, or still being written)")
        for count, what in (
            (self.damaged_bytes, "bytes were damaged and skipped"),
            (self.bad_lines, "lines could not be read"),
            (self.newer_lines, "lines are of a newer version and were skipped"),
            (self.missing_files, "files of the recording are missing"),
            (self.unwritten_lines, "lines could not be written while recording"),
        ):
            if count:
                found.append(f"{count:,} {what}")
        return found


class RecordingReader:
    """The files of a recording, oldest first. It may be read several times."""

    def __init__(self, path: Path) -> None:
        """Find the files and look at the beginning; raises RecordingError.

        A numbered file alone is read alone.
        """
        try:
            self.files = _of_one_recording(names.parts(path))
            self._sizes = [file.stat().st_size for file in self.files]
        except OSError as error:
            kind = WrongNameError if error.errno in WRONG_NAME else RecordingError
            raise kind(f"{path}: {error.strerror or error}") from error
        if not self.files:
            raise WrongNameError(f"{path}: no such file")
        self.path = path
        self.decoder = events.LineDecoder()
        self.read_ratio = 0.0
        self._losses = Losses()
        self._missing = 0
        self._unwritten = 0
        self._ended = False
        self.hello = self._first_event()

    def _first_event(self) -> events.Hello:
        """The greeting of the first line; it tells whether this is for us."""
        for line in self.lines():
            event = events.LineDecoder().decode(line.line)
            if not isinstance(event, events.Hello):
                break
            if event.schema > events.SCHEMA_VERSION:
                raise RecordingError(
                    f"{self.path} was written by topsmon {event.version}, which is newer than this "
                    "one; update topsmon to read it"
                )
            return event
        cut = self._losses.cut and not self._losses.damaged_bytes + self._losses.cut_bytes
        if cut and begins_like(self.files[0], HELLO):
            raise RecordingError(
                f"{self.path} begins like a recording and holds nothing yet that can be read "
                "(killed as it began, or still being written)"
            )
        size = "it is empty" if not any(self._sizes) else "its first line is no event of topsmon"
        raise RecordingError(f"{self.path} is no recording: {size}")

    @property
    def lost(self) -> Lost:
        """What is missing of what has been read up to now."""
        return Lost(
            cut=self._losses.cut and not self._ended,
            damaged_bytes=self._losses.damaged_bytes + self._losses.cut_bytes,
            bad_lines=self.decoder.malformed + self._losses.long_lines,
            newer_lines=self.decoder.skipped,
            missing_files=self._missing,
            unwritten_lines=self._unwritten,
        )

    def read(self) -> Iterator[events.AnyEvent]:
        """Yield all events; what is lost is counted."""
        for entry in self.lines():
            event = self.decoder.decode(entry.line)
            if event is not None:
                yield event

    def lines(self, place: Place | None = None) -> Iterator[Entry]:
        """Yield the lines from a place on, without what a file repeats of the one before it.

        Losses are counted when reading from the beginning. Raises RecordingError.
        """
        before = place.before if place is not None else None
        first = place.file if place is not None else 0
        losses = Losses()
        if place is None:
            self.decoder, self._losses = events.LineDecoder(), losses
            self._missing, self._unwritten, self._ended = 0, 0, False
        for number in range(first, len(self.files)):
            offset = place.offset if place is not None and number == first else 0
            reading = _File(number, before)
            try:
                for line in read_lines(self.files[number], losses, offset):
                    entry = Entry(line.content, reading.place(line.entry))
                    if line.entry is not None:
                        self._progress(number, line.entry)
                    about = _about_itself(entry.line)
                    if about is not None:
                        missing = reading.take(about)
                        if place is None:
                            self._count(about, missing)
                    elif reading.repeats(entry.line):
                        continue
                    yield entry
            except OSError as error:
                raise RecordingError(f"{self.files[number]}: {error.strerror or error}") from error
            before = reading.own or before

    def _progress(self, file: int, offset: int) -> None:
        """Note how much of all files has been read, 0..1."""
        whole = max(sum(self._sizes), 1)
        self.read_ratio = min(1.0, (sum(self._sizes[:file]) + offset) / whole)

    def _count(self, about: events.Recording, missing: int) -> None:
        self._unwritten += about.lost_lines
        self._ended = about.ended
        self._missing += missing


def _about_itself(line: bytes) -> events.Recording | None:
    """What a line tells of the recording itself, None for every other line."""
    event = events.LineDecoder().decode(line) if line.startswith(OWN) else None
    return event if isinstance(event, events.Recording) else None


def _of_one_recording(files: list[Path]) -> list[Path]:
    """Those files that belong to the recording of the last one."""
    if len(files) < 2:
        return files
    own = _name_of(files[-1])
    return [file for file in files[:-1] if own is not None and _name_of(file) == own] + files[-1:]


def _name_of(file: Path) -> str | None:
    for _, line in zip(range(2), read_lines(file, Losses()), strict=False):
        about = _about_itself(line.content)
        if about is not None:
            return about.recording
    return None


class _File:
    """How one file follows the one before it."""

    def __init__(self, number: int, before: tuple[str, int] | None) -> None:
        self.number = number
        self.before = before
        self.own: tuple[str, int] | None = None
        self._skipped = 0

    def place(self, offset: int | None) -> Place | None:
        """Where one may begin again."""
        return None if offset is None else Place(self.number, offset, self.own or self.before)

    def take(self, event: events.Recording) -> int:
        """Take what the recording says of itself; return how many files are missing before it."""
        own = (event.recording, event.part)
        missing = event.part - 1 if self.own is None and self.before is None else 0
        if self.own is None and self.before is not None and self.before != own:
            same = self.before[0] == event.recording
            if same and event.part == self.before[1] + 1:
                self._skipped = event.repeated
            elif same:
                missing = max(0, event.part - self.before[1] - 1)
        self.own = own
        return missing

    def repeats(self, line: bytes) -> bool:
        """Tell whether a line repeats what the file before told."""
        if self._skipped:
            self._skipped -= 1
            return True
        follows = self.before is not None and self.own is None
        return follows and line.startswith(HELLO) and b'"role":"recording"' in line

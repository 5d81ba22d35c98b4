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
from topsmon.recording.facts import HELLO, IDENTITIES, Facts, Names
from topsmon.recording.lines import Line, Losses, begins_like, is_compressed, read_lines
from topsmon.recording.outputs import WRONG_NAME
from topsmon.recording.writer import RecordingError, WrongNameError

OWN = b'{"type":"recording"'
"""How this line begins: the encoder writes the tag first."""
MOST_RUBBISH_LINES = 1000
"""A text without an event in so many lines is no damaged recording."""


class Place(NamedTuple):
    """Where reading may begin again: which file, at which byte, and what was read before it.

    `since`: what was told after this wall-clock time may be missing, None where nothing is.
    """

    file: int
    offset: int
    before: tuple[str, int] | None
    since: float | None = None


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
    nameless_devices: int = 0

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
            (
                self.nameless_devices,
                "devices are numbered as they appear: what named them was lost",
            ),
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
        self._own = False
        self._names = Names()
        self._nameless = 0
        self.hello = self._first_event()

    def _first_event(self) -> events.Hello | None:
        """The greeting of the first line; it tells whether this is for us.

        None where it is lost, and other events are there.
        """
        for number, entry in enumerate(self.lines()):
            event = events.LineDecoder().decode(entry.line)
            if isinstance(event, events.Hello):
                if event.schema > events.SCHEMA_VERSION:
                    raise RecordingError(
                        f"{self.path} was written by topsmon {event.version}, which is newer than "
                        "this one; update topsmon to read it"
                    )
                return event
            damaged = number or self._losses.damaged_bytes
            if event is not None and damaged:
                return None
            if number >= MOST_RUBBISH_LINES or (event is not None and not damaged):
                break
        cut = self._losses.cut and not self._losses.missing_bytes
        if cut and begins_like(self.files[0], HELLO):
            raise RecordingError(
                f"{self.path} begins like a recording and holds nothing yet that can be read "
                "(killed as it began, or still being written)"
            )
        size = "it is empty" if not any(self._sizes) else "its first line is no event of topsmon"
        raise RecordingError(f"{self.path} is no recording: {size}")

    @property
    def knows_findings(self) -> bool:
        """True where what wrote it noted its findings: `topsmon record` does, a stream does not."""
        return self._own or (self.hello is not None and self.hello.role == "recording")

    @property
    def lost(self) -> Lost:
        """What is missing of what has been read up to now."""
        return Lost(
            cut=self._losses.cut and not self._ended,
            damaged_bytes=self._losses.missing_bytes,
            bad_lines=self.decoder.malformed + self._losses.long_lines,
            newer_lines=self.decoder.skipped,
            missing_files=self._missing,
            unwritten_lines=self._unwritten,
            nameless_devices=self._nameless,
        )

    def read(self) -> Iterator[events.AnyEvent]:
        """Yield all events; what is lost is counted."""
        for entry in self.lines():
            event = self.decoder.decode(entry.line)
            if event is not None:
                yield event

    def lines(self, place: Place | None = None) -> Iterator[Entry]:
        """Yield the lines from a place on, without what was read before and is told again.

        Losses are counted when reading from the beginning. After one, what tells who the devices
        and runs are is sought ahead and comes first. Raises RecordingError.
        """
        before = place.before if place is not None else None
        first = place.file if place is not None else 0
        losses = Losses()
        facts = Facts() if place is None else Facts(place.since)
        if place is None:
            self.decoder, self._losses = events.LineDecoder(), losses
            self._missing, self._unwritten, self._ended = 0, 0, False
            self._names, self._nameless = Names(), 0
        last: bytes | None = None
        for number in range(first, len(self.files)):
            offset = place.offset if place is not None and number == first else 0
            reading = _File(number, before)
            for line, lost in self._watched(number, offset, losses):
                if lost and facts.lose(last):
                    ahead = self._ahead(number, line.entry or offset, names=place is None)
                    yield from (Entry(one, None) for one in ahead)
                entry = Entry(line.content, reading.place(line.entry, facts.since))
                if line.entry is not None:
                    self._progress(number, line.entry)
                about = _about_itself(entry.line)
                if about is not None:
                    head, follows = reading.own is None, reading.follows(about)
                    missing = reading.take(about)
                    if missing:
                        facts.lose(last)
                    if about.repeated or (head and not facts.lossy):
                        needed = not (about.again or follows or missing)
                        facts.begin(about.repeated, needed=needed)
                    if place is None:
                        self._count(about, missing)
                elif facts.passes_over(entry.line) or reading.greets_again(entry.line):
                    continue
                else:
                    last = entry.line
                    facts.read(last)
                self._names.take(entry.line)
                yield entry
            before = reading.own or before

    def _watched(self, number: int, offset: int, losses: Losses) -> Iterator[tuple[Line, bool]]:
        """The lines of one file, each with whether something is missing right before it."""
        try:
            checked = is_compressed(self.files[number])
            for line in read_lines(self.files[number], losses, offset):
                # A text has no checksums: only a line itself shows that it is damaged.
                yield line, losses.grown() or not (checked or _is_readable(line.content))
        except OSError as error:
            raise RecordingError(f"{self.files[number]}: {error.strerror or error}") from error

    def _ahead(self, number: int, offset: int, *, names: bool) -> list[bytes]:
        """What the next repetition tells of who devices and runs are.

        Where none follows, as in older recordings, and `names` are asked for: stand-ins.
        """
        hello: list[bytes] = []
        found: list[bytes] = []
        left = 0
        for line in self._following(number, offset):
            if left:
                left -= 1
                found += [line] if line.startswith(IDENTITIES) else []
                if not left:
                    return [*hello, *found]
                continue
            if line.startswith(HELLO):
                hello = [line]
            about = _about_itself(line)
            left = about.repeated if about is not None else 0
        if not names:
            return found
        made_up = self._names.made_up(self._following(number, offset))
        self._nameless += len(made_up)
        return [*found, *made_up]

    def _following(self, number: int, offset: int) -> Iterator[bytes]:
        """The lines after a place, to look ahead."""
        for place in range(number, len(self.files)):
            for line, _ in self._watched(place, offset if place == number else 0, Losses()):
                yield line.content

    def _progress(self, file: int, offset: int) -> None:
        """Note how much of all files has been read, 0..1."""
        whole = max(sum(self._sizes), 1)
        self.read_ratio = min(1.0, (sum(self._sizes[:file]) + offset) / whole)

    def _count(self, about: events.Recording, missing: int) -> None:
        self._own = True
        self._unwritten += about.lost_lines
        self._ended = about.ended
        self._missing += missing


def _about_itself(line: bytes) -> events.Recording | None:
    """What a line tells of the recording itself, None for every other line."""
    event = events.LineDecoder().decode(line) if line.startswith(OWN) else None
    return event if isinstance(event, events.Recording) else None


def _is_readable(line: bytes) -> bool:
    decoder = events.LineDecoder()
    decoder.decode(line)
    return not decoder.malformed


def _of_one_recording(files: list[Path]) -> list[Path]:
    """Those files that belong to the recording of the last one."""
    if len(files) < 2:
        return files
    own = _name_of(files[-1])
    return [file for file in files[:-1] if own is not None and _name_of(file) == own] + files[-1:]


def _name_of(file: Path) -> str | None:
    """What the files of a recording share; None for lines of another kind."""
    losses = Losses()
    greeted = False
    for number, line in enumerate(read_lines(file, losses)):
        about = _about_itself(line.content)
        if about is not None:
            return about.recording
        greeted |= number == 0 and line.content.startswith(HELLO)
        if number and greeted and not losses.missing_bytes:
            return None
    return None


class _File:
    """How one file follows the one before it."""

    def __init__(self, number: int, before: tuple[str, int] | None) -> None:
        self.number = number
        self.before = before
        self.own: tuple[str, int] | None = None

    def place(self, offset: int | None, since: float | None) -> Place | None:
        """Where one may begin again."""
        if offset is None:
            return None
        return Place(self.number, offset, self.own or self.before, since)

    def follows(self, event: events.Recording) -> bool:
        """Tell whether this is how the file begins that comes after the one read before it."""
        return self.own is None and self.before == (event.recording, event.part - 1)

    def take(self, event: events.Recording) -> int:
        """Take what the recording says of itself; return how many files are missing before it."""
        missing = 0
        if self.own is None and self.before is None:
            missing = event.part - 1
        elif self.own is None and self.before is not None and self.before[0] == event.recording:
            missing = max(0, event.part - self.before[1] - 1)
        self.own = (event.recording, event.part)
        return missing

    def greets_again(self, line: bytes) -> bool:
        """Tell whether a line is the greeting of a file that follows another, or comes again."""
        read = self.own or self.before
        return read is not None and line.startswith(HELLO) and b'"role":"recording"' in line

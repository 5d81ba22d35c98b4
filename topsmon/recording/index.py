"""What a recording holds, from one quick pass over it: how long it is, where findings begin."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from topsmon import events
from topsmon.recording.clock import SAME_OFFSET_SECONDS, Moment, after
from topsmon.recording.reader import Lost, RecordingReader
from topsmon.recording.writer import RecordingError

FINDING = b'{"type":"finding"'


class _Quick(msgspec.Struct):
    """What the pass needs of most lines."""

    type: str
    time: float
    monotonic: float
    earlier_session: bool = False


@dataclass(frozen=True)
class Index:
    """When a recording begins and ends, and which findings began in it.

    `offsets` are moments from which on the wall clock stood otherwise to the monotonic one.
    `knows_findings`: what wrote it noted its findings.
    """

    begin: Moment
    end: Moment
    offsets: tuple[Moment, ...]
    findings: tuple[tuple[float, events.Finding], ...]
    knows_findings: bool
    lines: int
    lost: Lost

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end.now - self.begin.now

    def wall(self, now: float) -> float:
        """The wall-clock time at a monotonic time."""
        place = bisect.bisect_right(self.offsets, now, key=lambda one: one.now) - 1
        base = self.offsets[max(place, 0)]
        return base.wall + (now - base.now)

    def at_wall(self, wall: float) -> float:
        """The monotonic time at which the wall clock first showed this time or a later one."""
        for number, base in enumerate(self.offsets):
            ending = self.offsets[number + 1].now if number + 1 < len(self.offsets) else None
            now = base.now + max(0.0, wall - base.wall)
            if ending is None or now < ending:
                return now
        raise AssertionError("the last offset has no end")


def build(reader: RecordingReader, progress: Callable[[float], None] | None = None) -> Index:
    """Read a recording once; `progress` is called with 0..1 now and then. Raises RecordingError."""
    quick = msgspec.json.Decoder(_Quick)
    begin: Moment | None = None
    moment: Moment | None = None
    offsets: list[Moment] = []
    findings: list[tuple[float, events.Finding]] = []
    present: set[tuple[str | None, ...]] = set()
    lines, told = 0, time.monotonic()
    for entry in reader.lines():
        lines += 1
        if progress is not None and time.monotonic() - told > 0.5:
            told = time.monotonic()
            progress(reader.read_ratio)
        event = _quickly(quick, entry.line)
        if event is None or event.type not in events.KNOWN_TAGS:
            reader.decoder.decode(entry.line)  # counts what it is
        if event is None:
            continue
        moment = after(moment, event, remembered=event.earlier_session)
        begin = begin or moment
        if not offsets or _differs(offsets[-1], moment):
            offsets.append(moment)
        if entry.line.startswith(FINDING):
            _take_finding(entry.line, moment.now, findings, present)
    if begin is None or moment is None:
        raise RecordingError(f"{reader.path} holds nothing that can be read")
    return Index(
        begin=begin,
        end=moment,
        offsets=tuple(offsets),
        findings=tuple(findings),
        knows_findings=reader.knows_findings,
        lines=lines,
        lost=reader.lost,
    )


def _take_finding(
    line: bytes,
    now: float,
    findings: list[tuple[float, events.Finding]],
    present: set[tuple[str | None, ...]],
) -> None:
    """Note a finding that was not there before; each file tells again those that last."""
    finding = events.LineDecoder().decode(line)
    if not isinstance(finding, events.Finding):
        return
    key = (finding.code, finding.device, finding.run)
    if finding.ended:
        present.discard(key)
    elif key not in present:
        present.add(key)
        findings.append((now, finding))


def _quickly(quick: msgspec.json.Decoder[_Quick], line: bytes) -> _Quick | None:
    try:
        return quick.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _differs(base: Moment, moment: Moment) -> bool:
    return abs((moment.wall - moment.now) - (base.wall - base.now)) > SAME_OFFSET_SECONDS

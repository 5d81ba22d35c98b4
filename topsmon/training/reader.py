"""The reader of a ring file. It believes nothing that it has not checked.

The file is read with pread and never mapped: a file that somebody truncates then gives fewer bytes,
where a mapping would give SIGBUS.
"""

from __future__ import annotations

import os
import stat
import struct
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from topsmon import events
from topsmon.training.recorder import coding, layout

WINDOW_STEPS = 200
_AHEAD_SLOTS = 64
"""Slots looked at after the newest known step before all are."""
_RECORD_CRC_AT = layout.RECORD_SLOT_BYTES - layout.CRC.size
_STEP = struct.Struct("<Q")
_EVENT_HEADS = struct.Struct(f"<4xQ{layout.EVENT_SLOT_BYTES - 12}x")
_HISTORY_SLOT = struct.Struct(
    f"{layout.HISTORY.format}{layout.HISTORY_SLOT_BYTES - layout.HISTORY.size}x"
)
_INTEGER_LIMIT = 1 << 63


class RingReadError(Exception):
    """A ring that cannot be read: one line, what is wrong."""


class Record(NamedTuple):
    """One step, with the fields of `layout.RECORD_FIELDS`. NaN and -1: not known."""

    step: int
    time: float
    step_seconds: float
    loss: float
    scale: float
    gradient_norm: float
    clip_max_norm: float
    learning_rate: float
    samples: float
    tokens: float
    data_wait_seconds: float
    memory_bytes: float
    memory_peak_bytes: float
    growth_tracker: int
    flags: int
    skip_streak: int
    backward_calls: int
    skipped: int
    growths: int
    backoffs: int
    calibration_skips: int
    longest_skip_streak: int
    last_skip_step: int
    last_growth_step: int
    nonfinite_losses: int
    first_nonfinite_loss_step: int
    backward_overflows: int
    clip_calls: int
    clipped: int
    scaled_clips: int
    bypasses: int
    scheduler_steps: int
    dropped: int
    scale_lowest: float
    scale_highest: float
    tokens_total: float
    samples_total: float
    recorder_seconds: float
    errors: int


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What tells whether a run's process still lives."""

    pid: int
    started: float
    uid: int | None = None
    parent_pid: int | None = None
    boot_id: str = ""
    process_started: int | None = None
    pid_namespace: str = ""
    recorder_version: str = ""


@dataclass(frozen=True)
class Identity:
    """A run's identity; `generation` grows with every change of it."""

    generation: int
    run: events.Run
    process: ProcessFacts


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One event as the ring holds it."""

    time: float
    kind: str
    step: int = 0
    message: str = ""
    names: tuple[str, ...] = ()
    values: dict[str, float] = {}


class Bucket(NamedTuple):
    """One slot of the history. NaN: not known."""

    slot: int
    first_step: int
    steps: int
    skipped: int
    scale_lowest: float
    scale_highest: float
    loss_mean: float
    gradient_norm_highest: float
    nonfinite_losses: int
    mean_step_seconds: float


class RingReader:
    """One ring, open. Every method but `close` may raise RingReadError.

    `owner` is the user it must belong to, None: this one. `newest_step` is 0 before the first.
    """

    def __init__(self, path: Path, owner: int | None = None) -> None:
        self.path = path
        self.key = path.name.removesuffix(layout.SUFFIX)
        self.newest_step = 0
        self._owner = os.geteuid() if owner is None else owner
        self._handle = _open(path, self._owner)
        self._identity_bytes = b""
        self._identity: Identity | None = None
        self._window_first = 1
        self._window_bytes = b""
        self._window: tuple[Record, ...] = ()
        self._event_number = 0
        self._history_bytes = b""
        self._history: tuple[Bucket, ...] = ()

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def removed(self) -> bool:
        """True if the file has no name left. What is written into it can be read all the same."""
        return self._handle >= 0 and os.fstat(self._handle).st_nlink == 0

    def follow(self, path: Path) -> bool:
        """Go on with another file that holds the same run; False if this one does not.

        A recorder whose file was removed makes it anew with all that it held.
        """
        try:
            other = RingReader(path, self._owner)
        except RingReadError:
            return False
        try:
            same = other.identity().process == self.identity().process
        except RingReadError:
            same = False
        if same:
            self.path, self._handle, other._handle = path, other._handle, self._handle
        other.close()
        return same

    def identity(self) -> Identity:
        """Return the newest identity. A torn newer one leaves the one before."""
        size = layout.IDENTITY_SLOTS * layout.IDENTITY_SLOT_BYTES
        data = self._read(layout.IDENTITY_OFFSET, size)
        if self._identity is None or data != self._identity_bytes:
            newest = coding.newest_text(data, layout.IDENTITY_SLOT_BYTES)
            if newest is not None:
                self._identity = _decode_identity(self.path, self.key, *newest)
                self._identity_bytes = data
        if self._identity is None:
            raise RingReadError(f"{self.path}: its identity is damaged or not written yet")
        return self._identity

    def window(self) -> tuple[Record, ...]:
        """Return the newest steps, at most `WINDOW_STEPS`, in order: the newest one is the last.

        What is torn or foreign is left out. The same tuple is returned while nothing changes.
        """
        # A slot that is just being amended is not valid for a moment.
        self.newest_step = max(self._find_newest(), self.newest_step)
        first = max(self.newest_step - WINDOW_STEPS + 1, 1)
        data = self._read_records(first, self.newest_step - first + 1)
        if data != self._window_bytes:
            size = layout.RECORD_SLOT_BYTES
            kept = self._window_bytes[(first - self._window_first) * size :]
            same = len(kept) if first >= self._window_first and data.startswith(kept) else 0
            old = (record for record in self._window if same and record.step >= first)
            self._window = (*old, *_records(data[same:], first + same // size))
            self._window_first, self._window_bytes = first, data
        return self._window

    def happenings(self) -> list[tuple[int, Happening]]:
        """Return the events that are new since the last call, with their numbers, in order."""
        size = layout.EVENT_SLOTS * layout.EVENT_SLOT_BYTES
        data = self._read(layout.EVENTS_OFFSET, size)
        slots = [
            (number, slot)
            for slot, (number,) in enumerate(_EVENT_HEADS.iter_unpack(data))
            if number > self._event_number and number % layout.EVENT_SLOTS == slot
        ]
        found = []
        for number, slot in sorted(slots):
            start = slot * layout.EVENT_SLOT_BYTES
            text = coding.decode_text(data[start : start + layout.EVENT_SLOT_BYTES])
            if text is None:
                continue  # torn: if it is only being written, the next call has it
            self._event_number = number
            happening = _decode_happening(text[1])
            if happening is not None:
                found.append((number, happening))
        return found

    def history(self) -> tuple[Bucket, ...]:
        """Return the history's valid buckets in order of slots.

        The same tuple is returned while nothing changes.
        """
        size = layout.HISTORY_SLOTS * layout.HISTORY_SLOT_BYTES
        data = self._read(layout.HISTORY_OFFSET, size)
        if data != self._history_bytes:
            self._history_bytes = data
            self._history = tuple(_buckets(data))
        return self._history

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._handle, size, offset)
        except OSError as error:
            raise RingReadError(f"{self.path}: cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise RingReadError(f"{self.path}: cut off: shorter than a ring")
        return data

    def _read_records(self, first: int, count: int) -> bytes:
        """The slots of `count` steps from step `first` on."""
        slot = first % layout.RECORD_SLOTS
        whole = min(count, layout.RECORD_SLOTS - slot)
        size = layout.RECORD_SLOT_BYTES
        data = self._read(layout.RECORDS_OFFSET + slot * size, whole * size)
        if whole < count:
            data += self._read(layout.RECORDS_OFFSET, (count - whole) * size)
        return data

    def _find_newest(self) -> int:
        """The highest step with a valid record, 0 without one.

        Looks behind the newest one known first; further than that, and at first, at all slots.
        """
        known = self.newest_step
        if known:
            data = self._read_records(known, _AHEAD_SLOTS)
            steps = _steps(data)
            newest = _highest_valid(data, steps, known % layout.RECORD_SLOTS)
            if known <= newest < known + _AHEAD_SLOTS - 1:
                return newest
        data = self._read_records(0, layout.RECORD_SLOTS)
        return _highest_valid(data, _steps(data), 0)


def _open(path: Path, owner: int) -> int:
    """Open a ring for reading after checking what can be checked; RingReadError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RingReadError(f"{path}: cannot be opened: {reason}") from error
    try:
        _check(path, handle, owner)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check(path: Path, handle: int, owner: int) -> None:
    try:
        status = os.fstat(handle)
        data = os.pread(handle, layout.PREAMBLE.size, 0) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise RingReadError(f"{path}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise RingReadError(f"{path}: not a regular file")
    if status.st_uid != owner:
        raise RingReadError(f"{path}: belongs to user {status.st_uid}, not to {owner}")
    if data[: len(layout.MAGIC)] != layout.MAGIC:
        raise RingReadError(f"{path}: not a ring file")
    if data != coding.preamble():
        raise RingReadError(f"{path}: {_why_not_read(data)}")
    if status.st_size != layout.FILE_BYTES:
        raise RingReadError(
            f"{path}: {status.st_size} bytes instead of a ring's {layout.FILE_BYTES}: cut off"
        )


def _why_not_read(preamble: bytes) -> str:
    """What is wrong with a preamble that is not this version's."""
    if len(preamble) < layout.PREAMBLE.size:
        return "cut off within its preamble"
    *fields, checksum = layout.PREAMBLE.unpack(preamble)
    whole = checksum == zlib.crc32(preamble[: -layout.CRC.size])
    if not whole or fields[1] == layout.VERSION:
        return "its preamble is damaged"
    return (
        f"layout version {fields[1]}, this topsmon reads {layout.VERSION}; "
        "read it with the topsmon that recorded it"
    )


def _steps(data: bytes) -> list[int]:
    """The step field of every slot."""
    words = layout.RECORD_SLOT_BYTES // _STEP.size
    return memoryview(data).cast("Q")[::words].tolist()


def _highest_valid(data: bytes, steps: list[int], first_slot: int) -> int:
    """The highest step whose slot is valid; `data` begins at slot `first_slot`."""
    for index in sorted(range(len(steps)), key=steps.__getitem__, reverse=True):
        step = steps[index]
        if step == 0:
            return 0
        slot = (first_slot + index) % layout.RECORD_SLOTS
        if step < _INTEGER_LIMIT and step % layout.RECORD_SLOTS == slot and _valid(data, index):
            return step
    return 0


def _valid(data: bytes, index: int) -> bool:
    start = index * layout.RECORD_SLOT_BYTES
    (crc,) = layout.CRC.unpack_from(data, start + _RECORD_CRC_AT)
    return zlib.crc32(data[start : start + layout.RECORD.size]) == int(crc)


def _records(data: bytes, first: int) -> list[Record]:
    """The valid records of consecutive slots that should hold the steps from `first` on."""
    size = layout.RECORD_SLOT_BYTES
    return [
        Record._make(layout.RECORD.unpack_from(data, index * size))
        for index in range(len(data) // size)
        if _STEP.unpack_from(data, index * size)[0] == first + index and _valid(data, index)
    ]


def _buckets(data: bytes) -> list[Bucket]:
    found = []
    for slot, fields in enumerate(_HISTORY_SLOT.iter_unpack(data)):
        start = slot * layout.HISTORY_SLOT_BYTES
        if fields[1] == 0:
            continue
        rest = data[start + layout.CRC.size : start + layout.HISTORY.size]
        bucket = Bucket._make((slot, *fields[1:]))
        if zlib.crc32(rest) == fields[0] and max(bucket[:4]) < _INTEGER_LIMIT:
            found.append(bucket)
    return found


def _decode_identity(path: Path, key: str, generation: int, text: bytes) -> Identity:
    document = _decode(text)
    if not isinstance(document, dict):
        raise RingReadError(f"{path}: its identity is no JSON object")
    hostname = document.get("hostname")
    stamps = {
        "type": "run",
        "time": time.time(),
        "monotonic": time.monotonic(),
        "source": f"{hostname}/{key}",
        "run": key,
        "local": True,
    }
    try:
        run = msgspec.convert({**document, **stamps}, events.Run)
        events.encode(run)
        facts = msgspec.convert(document, ProcessFacts)
    except (msgspec.MsgspecError, OverflowError, ValueError, RecursionError) as error:
        raise RingReadError(f"{path}: its identity is damaged: {error}") from error
    return Identity(generation, run, facts)


def _decode_happening(text: bytes) -> Happening | None:
    try:
        happening = msgspec.json.decode(text, type=Happening)
        msgspec.json.encode(happening)
    except (msgspec.MsgspecError, OverflowError, ValueError, RecursionError):
        return None
    return happening


def _decode(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None

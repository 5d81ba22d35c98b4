"""The writer of a ring file: one run's numbers in a small mapped file of fixed size.

A mapped file needs no thread, no socket and no system call a step, keeps what was written when the
process is killed, and lets a monitor read it before, during and after the run.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import coding, folder, layout, making
from .buckets import Buckets
from .process import identity_of_process

__all__ = ["RingError", "RingWriter", "identity_of_process"]

SPARE_BYTES = 128 * 1024 * 1024
"""Free space to leave: in the small /dev/shm of a container the data loaders need it all."""
FAILURES_MAX = 20
_IDENTITY_BYTES, _EVENT_BYTES = layout.IDENTITY_SLOT_BYTES, layout.EVENT_SLOT_BYTES

_writers: weakref.WeakSet[RingWriter] = weakref.WeakSet()


class RingError(Exception):
    """A ring that cannot be made or opened: one line, what is wrong and what to do."""


class RingWriter:
    """Writes one run. No method raises after the ring has been made.

    `quiet` is True once nothing is written any more: closed, in a fork's child, or after
    `FAILURES_MAX` failures. `failures` counts what could not be written, `failure` is the latest.
    """

    def __init__(self, path: str, mapping: mmap.mmap, handle: int = -1) -> None:
        self._take(path, mapping, handle)
        self.failures = 0
        self.failure = ""
        self._identity: dict[str, Any] = {}
        self._generation = 0
        self._event_number = 0
        self._newest = 0
        self._buckets: Buckets | None = Buckets()
        _writers.add(self)

    def _take(self, path: str, mapping: mmap.mmap, handle: int) -> None:
        """Write to this file from now on. The descriptor, -1 for none, is the writer's own."""
        self.path = path
        self._map: mmap.mmap | None = mapping
        self._handle = handle
        self._number = None if handle < 0 else _number_of(handle)

    # Making and opening ---------------------------------------------------------------------------

    @classmethod
    def create(cls, identity: Mapping[str, Any]) -> RingWriter:
        """Make the folder and the file of a run; RingError.

        A folder that is nearly full is passed over as long as there is another one.
        """
        reasons: list[str] = []
        try:
            places = folder.candidates(os.environ, folder.user_id())
        except folder.FolderError as error:
            raise RingError(str(error)) from error
        for spare in (SPARE_BYTES, 0):
            reasons.clear()
            for place in places:
                try:
                    writer = cls(*making.new_file(place, _stem(identity), spare))
                except (folder.FolderError, OSError) as error:
                    reasons.append(_in_words(place, error))
                    continue
                writer.identify(**identity)
                return writer
        raise RingError("no folder for the recording of this run: " + "; ".join(reasons))

    @classmethod
    def reopen(cls, path: str) -> RingWriter:
        """Open the ring of a process that has ended, to add events or identity; RingError."""
        try:
            handle = os.open(path, os.O_RDWR | making.FILE_FLAGS)
        except OSError as error:
            raise RingError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            _demand_own_ring(path, handle)
            writer = cls(path, mmap.mmap(handle, layout.FILE_BYTES))
            writer._buckets = None
            identity = _newest(handle, layout.IDENTITY_OFFSET, _IDENTITY_BYTES, 2)
            event = _newest(handle, layout.EVENTS_OFFSET, _EVENT_BYTES, layout.EVENT_SLOTS)
            writer._generation = identity[0]
            writer._identity = json.loads(identity[1])
            writer._event_number = event[0]
        except (OSError, ValueError) as error:
            raise RingError(f"{path}: cannot be opened as a ring: {error}") from error
        finally:
            os.close(handle)
        return writer

    # Its name ------------------------------------------------------------------------------------

    def removed(self) -> bool:
        """True once somebody has removed the file; False where that cannot be told."""
        if self._map is None or self._handle < 0:
            return False
        try:
            status = os.fstat(self._handle)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._number:
            # The run has closed all descriptors; this number may be a file of its own by now.
            self._handle = -1
            return False
        return status.st_nlink == 0

    def make_anew(self, place: str, spare: int) -> None:
        """Go on in a new file in a folder, with all that was written; FolderError, OSError.

        Its name, and with it the run, stays the same. On errors the file stays what it was.
        """
        if self._map is None:
            return
        name = os.path.basename(self.path)  # noqa: PTH119 - a string here
        made = making.whole_file(place, name, self._map[:], spare)
        self._let_go_of_descriptor()
        self._take(*made)

    # Writing --------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """True once nothing is written any more."""
        return self._map is None

    def write(self, values: Sequence[Any]) -> None:
        """Write one step's record, in the order of `layout.RECORD_NAMES`.

        The same step again, or an older one that is still in the ring, amends it.
        """
        mapping = self._map
        if mapping is None:
            self.failures += 1
            return
        try:
            step = values[0]
            start = layout.RECORDS_OFFSET + step % layout.RECORD_SLOTS * layout.RECORD_SLOT_BYTES
            data = _pack_record(*values)
            if step > self._newest:
                self._newest = step
                self.history(values)
            else:
                old = _unpack_record(mapping, start)
                if old[0] != step:
                    return
                self._amend(mapping, old, values)
            mapping[start : start + _RECORD_BYTES] = data
            _pack_crc(mapping, start + _CRC_AT, _crc32(data))
        except Exception as error:  # noqa: BLE001 - nothing may reach the training loop
            self._fail(error)

    def history(self, values: Sequence[Any]) -> None:
        """Count a new step into the history; `write` calls this."""
        mapping, buckets = self._map, self._buckets
        if mapping is None or buckets is None:
            return
        for slot in buckets.add(values):
            _put_bucket(mapping, slot, buckets.packed(slot))

    def _amend(self, mapping: mmap.mmap, old: Sequence[Any], values: Sequence[Any]) -> None:
        if self._buckets is not None:
            for slot in self._buckets.amend(old, values):
                _put_bucket(mapping, slot, self._buckets.packed(slot))

    def event(
        self,
        kind: str,
        step: int,
        message: str = "",
        names: Iterable[str] = (),
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Write one event. Texts and names that do not fit are cut; values not finite left out."""
        if self._map is None:
            self.failures += 1
            return
        try:
            document = {
                "time": time.time(),
                "kind": kind,
                "step": step,
                "message": message,
                "names": list(names),
                "values": values or {},
            }
            number = self._event_number + 1
            slot = coding.encode_text(number, document, layout.EVENT_SLOT_BYTES)
            start = layout.EVENTS_OFFSET + number % layout.EVENT_SLOTS * layout.EVENT_SLOT_BYTES
            self._map[start : start + len(slot)] = slot
            self._event_number = number
        except Exception as error:  # noqa: BLE001 - nothing may reach the training loop
            self._fail(error)

    def identify(self, **changes: Any) -> None:
        """Merge changes into the run's identity and write it."""
        if self._map is None:
            self.failures += 1
            return
        try:
            self._identity.update(changes)
            number = self._generation + 1
            slot = coding.encode_text(number, self._identity, layout.IDENTITY_SLOT_BYTES)
            start = (
                layout.IDENTITY_OFFSET + number % layout.IDENTITY_SLOTS * layout.IDENTITY_SLOT_BYTES
            )
            self._map[start : start + len(slot)] = slot
            self._generation = number
        except Exception as error:  # noqa: BLE001 - nothing may reach the training loop
            self._fail(error)

    def close(self) -> None:
        """Write what the history still holds back, and let go of the file."""
        mapping, self._map = self._map, None
        self._let_go_of_descriptor()
        if mapping is None:
            return
        try:
            if self._buckets is not None:
                for slot in self._buckets.unwritten():
                    _put_bucket(mapping, slot, self._buckets.packed(slot))
            mapping.close()
        except Exception as error:  # noqa: BLE001 - nothing may reach the training loop
            self.failures += 1
            self.failure = repr(error)

    def _let_go_of_descriptor(self) -> None:
        handle, self._handle = self._handle, -1
        # One that the run has closed may be a file of its own by now.
        if handle >= 0 and _number_of(handle) == self._number:
            os.close(handle)

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        self.failure = f"{type(error).__name__}: {error}"
        if self.failures >= FAILURES_MAX:
            self._map = None


def _demand_own_ring(path: str, handle: int) -> None:
    """Check owner, size and preamble before anything is mapped; RingError."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise RingError(f"{path}: not a file of this user")
    preamble = coding.preamble()
    if status.st_size != layout.FILE_BYTES or os.pread(handle, len(preamble), 0) != preamble:
        raise RingError(f"{path}: not a ring of layout version {layout.VERSION}")


def _newest(handle: int, offset: int, slot_bytes: int, slots: int) -> tuple[int, bytes]:
    region = os.pread(handle, slot_bytes * slots, offset)
    return coding.newest_text(region, slot_bytes) or (0, b"{}")


def _number_of(handle: int) -> tuple[int, int] | None:
    """What tells a file from all others, whatever its name; None for a descriptor not open."""
    try:
        status = os.fstat(handle)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _stem(identity: Mapping[str, Any]) -> str:
    started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(identity.get("started") or time.time()))
    rank = identity.get("rank") or identity.get("local_rank") or 0
    return f"{started}-{identity.get('pid') or os.getpid()}-{rank}"


def _in_words(place: str, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{place}: {error.strerror or error}"
    return str(error)


def _put_bucket(mapping: mmap.mmap, slot: int, data: bytes) -> None:
    start = layout.HISTORY_OFFSET + slot * layout.HISTORY_SLOT_BYTES
    mapping[start : start + len(data)] = data


_pack_record = layout.RECORD.pack
_unpack_record = layout.RECORD.unpack_from
_RECORD_BYTES = layout.RECORD.size
_pack_crc = layout.CRC.pack_into
_CRC_AT = layout.RECORD_SLOT_BYTES - layout.CRC.size
_crc32 = zlib.crc32


def _quieten_child() -> None:
    """A fork's child shares the mapping: two writers would mix two runs."""
    for writer in list(_writers):
        writer._map = None  # noqa: SLF001 - the module's own class
        writer._let_go_of_descriptor()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_quieten_child)

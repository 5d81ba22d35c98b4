"""One file of a recording: lines in, compressed blocks out, never half a block left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import zstandard

from topsmon.recording import lock

LEVEL = 3
FRAME_SECONDS = 10.0
"""A new zstd frame begins this often: there a reader may enter, or go on after damage."""


class Part:
    """A file that grows by whole blocks. All methods but `create` may wait for the disk.

    What the disk did not take waits, `waiting_lines` of it, and is written first the next time.
    """

    def __init__(self, handle: int, *, compressed: bool) -> None:
        self._handle = handle
        self._compressor = (
            zstandard.ZstdCompressor(level=LEVEL, write_checksum=True) if compressed else None
        )
        self._frame: zstandard.ZstdCompressionObj | None = None
        self._frame_began = 0.0
        self._waiting = b""
        self.waiting_lines = 0
        self.size = 0

    @classmethod
    def create(cls, path: Path, *, compressed: bool) -> Part:
        """Create the file, for its owner alone, and lock it; OSError where the name is taken."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(path, flags, 0o600)
        lock.hold(handle)
        return cls(handle, compressed=compressed)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the disk has not taken yet."""
        return len(self._waiting)

    def append(self, lines: Sequence[bytes], now: float, *, apart: bool = False) -> None:
        """Write lines as one block that a reader can decode at once; raises OSError.

        After an error the file ends where it ended before, and the lines wait. `now` is monotonic
        time in s; `apart`: no damage to what came before may reach these lines.
        """
        if lines:
            if apart:
                self._frame_began = float("-inf")
            data = b"".join(lines)
            self._waiting += data if self._compressor is None else self._compressed(data, now)
            self.waiting_lines += len(lines)
        self._write_waiting()
        self.waiting_lines = 0

    def forget(self) -> int:
        """Give up what waits; return how many lines that is. A new frame begins after it."""
        lost, self.waiting_lines, self._waiting = self.waiting_lines, 0, b""
        self._frame = None
        return lost

    def _compressed(self, data: bytes, now: float) -> bytes:
        assert self._compressor is not None
        ending = b""
        if self._frame is not None and now - self._frame_began >= FRAME_SECONDS:
            ending = self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)
            self._frame = None
        if self._frame is None:
            self._frame, self._frame_began = self._compressor.compressobj(), now
        block = self._frame.compress(data)
        return ending + block + self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def _write_waiting(self) -> None:
        left = memoryview(self._waiting)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self.size)
                os.lseek(self._handle, self.size, os.SEEK_SET)
            raise
        self.size += len(self._waiting)
        self._waiting = b""

    def synchronise(self) -> None:
        """Have the disk keep what was written; raises OSError."""
        os.fsync(self._handle)

    def close(self) -> None:
        """End the frame and close the file; raises OSError."""
        try:
            if self._frame is not None:
                self._waiting += self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)
                self._frame = None
            self._write_waiting()
            self.synchronise()
        finally:
            os.close(self._handle)

"""Lines of one file of a recording, however damaged it is, and where one may enter it again."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import zstandard

from topsmon.events import MAX_LINE_BYTES

MAGIC = b"\x28\xb5\x2f\xfd"
LAST_BLOCK = b"\x01\x00\x00"
CHECKSUM_BYTES = 4
"""RFC 8878, 3.1.1: a frame's last block, here without content, and the checksum after it."""
WRONG_CHECKSUM = "doesn't match checksum"
"""Of the words with which zstd refuses a frame that it could decode."""
FED_BYTES = 1024
"""Compressed bytes decoded at a time: a hostile file makes at most 32 MiB of them."""
WINDOW_BYTES = 64 << 20
"""The most memory that a file may demand for being decoded."""
MOST_READ_AGAIN = 8
"""A file may be made of frames inside frames; it is not read more often than this."""
PIECE_BYTES = 1 << 16
ENTRY_BYTES = 1 << 20
"""One may enter a file that is not compressed this often."""


@dataclass
class Losses:
    """What of a recording could not be read: bytes of its files, and lines.

    `cut` says that the end is missing, as after a kill or while it is still being written: not of
    a file whose end is there, however damaged it is before.
    """

    damaged_bytes: int = 0
    cut_bytes: int = 0
    long_lines: int = 0
    cut: bool = False

    known: int = 0

    def grown(self) -> bool:
        """Tell whether more is missing than when this was asked the last time."""
        known, self.known = self.known, self.missing_bytes + self.long_lines
        return self.known > known

    @property
    def missing_bytes(self) -> int:
        """Bytes that are there and cannot be read."""
        return self.damaged_bytes + self.cut_bytes


def is_compressed(path: Path) -> bool:
    """Tell whether a file holds zstd frames, though the first may be damaged; raises OSError."""
    with open_regular(path) as file:
        return _holds_frames(file)


def _holds_frames(file: BinaryIO) -> bool:
    """The same of an open file. No text holds the bytes with which a frame begins: not UTF-8."""
    head = file.read(len(MAGIC))
    return head == MAGIC or (head[:2] != b'{"' and _next_frame(file, 0) is not None)


def begins_like(path: Path, beginning: bytes) -> bool:
    """Tell whether a file is compressed, or begins so, as far as it goes; raises OSError."""
    with open_regular(path) as file:
        head = file.read(len(beginning))
    return bool(head) and (head.startswith(MAGIC) or beginning.startswith(head))


class Line(NamedTuple):
    """One line; `entry` is the offset in the file where decoding may begin again before it."""

    content: bytes
    entry: int | None


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises OSError for anything else, and never waits."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path.name} is not a regular file")
    return os.fdopen(handle, "rb")


def read_lines(path: Path, losses: Losses, entry: int = 0) -> Iterator[Line]:
    """Yield the lines of a file from an entry on; raises OSError.

    What cannot be decoded is counted in `losses`; reading goes on after it.
    """
    with open_regular(path) as file:
        compressed = _holds_frames(file)
        file.seek(entry)
        pieces = _decoded(file, losses) if compressed else _plain(file)
        yield from _Splitter(losses).lines(pieces)


class _Piece(NamedTuple):
    """Decoded bytes. `entry`: they begin there, at the start of a line, and nothing before counts.

    `broken`: what came before has no end; a line begun in it is lost.
    """

    content: bytes
    entry: int | None = None
    broken: bool = False


def _plain(file: BinaryIO) -> Iterator[_Piece]:
    """Pieces of a text file; an entry after so many bytes, at the start of a line."""
    offset = file.tell()
    entry: int | None = offset
    while piece := file.read(PIECE_BYTES):
        yield _Piece(piece, entry)
        entry = None
        offset += len(piece)
        if offset % ENTRY_BYTES < PIECE_BYTES:
            rest = file.readline(MAX_LINE_BYTES)
            offset += len(rest)
            yield _Piece(rest)
            entry = offset if rest.endswith(b"\n") else None


def _decoded(file: BinaryIO, losses: Losses) -> Iterator[_Piece]:
    """Pieces of a compressed file, frame after frame; from a damaged one to the next whole one."""
    offset, broken, size = file.tell(), False, _size(file)
    fed = 0
    while True:
        frame = _Frame(file, offset)
        if not frame.is_false():
            yield from frame.pieces(broken=broken)
        if frame.state == "whole":
            if frame.end == offset:
                return
            fed += frame.end - offset
            offset, broken = frame.end, False
            continue
        # Damage may show only after the frame's true end, or make the frame swallow all that
        # follows and want more: search from its beginning.
        fed += 2 * (frame.good - offset) + FED_BYTES
        following = _next_frame(file, offset + len(MAGIC))
        if following is None or fed > MOST_READ_AGAIN * size:
            ended = _ends_whole(file, size)
            losses.cut |= not ended
            if frame.state in {"damaged", "false"}:
                losses.cut_bytes += size - min(frame.good, size)
            elif ended:
                losses.cut_bytes += size - offset
            return
        losses.damaged_bytes += following - offset
        offset, broken = following, True


class _Frame:
    """One zstd frame; once it was decoded `state` is "whole", "cut", "damaged" or "false"."""

    def __init__(self, file: BinaryIO, offset: int) -> None:
        self._file = file
        self.begin = self.good = self.end = offset
        self.state = "whole"

    def is_false(self) -> bool:
        """Decode all of it; tell whether it goes well and the checksum says that it is wrong.

        Nothing of such a frame is to be believed: a changed digit looks like any other.
        """
        for _ in self._contents():
            pass
        return self.state == "false"

    def pieces(self, *, broken: bool) -> Iterator[_Piece]:
        """Decode block by block; `good` is up to where it went well."""
        entry: int | None = self.begin
        for content in self._contents():
            if content:
                yield _Piece(content, entry, broken)
                entry, broken = None, False

    def _contents(self) -> Iterator[bytes]:
        decoder = _decoder()
        self.good, self.state = self.begin, "whole"
        self._file.seek(self.begin)
        while fed := self._file.read(FED_BYTES):
            try:
                content = decoder.decompress(fed)
            except (zstandard.ZstdError, MemoryError) as error:
                self.state = "false" if WRONG_CHECKSUM in str(error) else "damaged"
                yield from self._last_words(fed)
                return
            self.good += len(fed)
            yield content
            if decoder.eof:
                self.good -= len(decoder.unused_data)
                self.end = self.good
                return
        self.end = self.good
        if self.good > self.begin:
            self.state = "cut"

    def _last_words(self, fed: bytes) -> Iterator[bytes]:
        """What can be decoded of the bytes that held the damage: all up to it."""
        decoder = _decoder()
        self._file.seek(self.begin)
        try:
            for _ in range(self.begin, self.good, FED_BYTES):
                decoder.decompress(self._file.read(FED_BYTES))
            for place in range(len(fed)):
                yield decoder.decompress(fed[place : place + 1])
        except (zstandard.ZstdError, MemoryError):
            return


def _decoder() -> zstandard.ZstdDecompressionObj:
    return zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()


def _next_frame(file: BinaryIO, offset: int) -> int | None:
    """The offset of the next thing that looks like a frame's beginning."""
    file.seek(offset)
    before = b""
    while piece := file.read(PIECE_BYTES):
        window = before + piece
        place = window.find(MAGIC)
        if place >= 0:
            return offset - len(before) + place
        offset += len(piece)
        before = window[-(len(MAGIC) - 1) :]
    return None


def _ends_whole(file: BinaryIO, size: int) -> bool:
    """Tell whether the end of a frame is there, as the writer leaves it: an empty last block."""
    file.seek(max(size - len(LAST_BLOCK) - CHECKSUM_BYTES, 0))
    return file.read(len(LAST_BLOCK)) == LAST_BLOCK


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


class _Splitter:
    """Cuts pieces into lines; a line over the limit is dropped, not kept."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._begun = bytearray()
        self._dropping = False

    def lines(self, pieces: Iterator[_Piece]) -> Iterator[Line]:
        """Yield whole lines; what has no newline at the end of the file was cut."""
        entry: int | None = None
        for piece in pieces:
            if piece.broken:
                self._begun.clear()
                self._dropping = False
            if piece.entry is not None and not self._begun and not self._dropping:
                entry = piece.entry
            self._begun += piece.content
            if b"\n" not in piece.content:
                self._limit()
                continue
            *whole, rest = bytes(self._begun).split(b"\n")
            self._begun = bytearray(rest)
            for content in whole:
                if self._dropping:
                    self._dropping = False
                    continue
                yield Line(content, entry)
                entry = None
            self._limit()
        if self._begun and not self._losses.missing_bytes:
            self._losses.cut = True

    def _limit(self) -> None:
        if len(self._begun) > MAX_LINE_BYTES:
            self._begun.clear()
            self._losses.long_lines += not self._dropping
            self._dropping = True

"""Files that were cut, damaged, or made to hurt: what is whole is read, the rest is counted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import at, stream

from topsmon import events
from topsmon.recording.facts import STAND_IN
from topsmon.recording.part import Part
from topsmon.recording.reader import RecordingReader
from topsmon.recording.writer import RecordingError

FOUND = stream(20)
LINES = [events.encode(event) for event in FOUND]
FRAME_LINES = 10


def compressed() -> tuple[bytes, list[int]]:
    """The lines in several frames of one block a line; offsets at which frames begin."""
    content, offsets = b"", []
    for begin in range(0, len(LINES), FRAME_LINES):
        offsets.append(len(content))
        frame = zstandard.ZstdCompressor(write_checksum=True).compressobj()
        for line in LINES[begin : begin + FRAME_LINES]:
            content += frame.compress(line)
            content += frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        content += frame.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)
    return content, offsets


COMPRESSED, FRAMES = compressed()
PLAIN = b"".join(LINES)


def read(content: bytes, name: str = "a.topsmon.jsonl.zst") -> tuple[list, RecordingReader | None]:
    """What can be read of a file with this content; no reader where it is no recording."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            reader = RecordingReader(path)
            return list(reader.read()), reader
        except RecordingError:
            return [], None


def without_stand_ins(found: Iterable[events.AnyEvent]) -> list[events.AnyEvent]:
    """What was recorded, without what stands for a device whose name is lost."""
    return [event for event in found if getattr(event, "name", None) != STAND_IN]


def test_the_whole_file_is_read() -> None:
    for content, name in ((COMPRESSED, "a.jsonl.zst"), (PLAIN, "a.jsonl")):
        found, reader = read(content, name)
        assert found == FOUND
        assert reader is not None
        assert reader.lost.words() == []


def test_the_name_does_not_matter() -> None:
    assert read(COMPRESSED, "a.jsonl")[0] == FOUND
    assert read(PLAIN, "a.jsonl.zst")[0] == FOUND


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(COMPRESSED)))
def test_a_cut_file_gives_its_beginning(cut: int) -> None:
    found, reader = read(COMPRESSED[:cut])
    assert found == FOUND[: len(found)]
    whole_frames = sum(1 for offset in [*FRAMES[1:], len(COMPRESSED)] if offset <= cut)
    assert len(found) >= min(whole_frames * FRAME_LINES, len(FOUND))
    if reader is not None and cut not in {*FRAMES, len(COMPRESSED)}:
        assert reader.lost.cut


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(PLAIN)))
def test_a_cut_text_gives_its_whole_lines(cut: int) -> None:
    found, _ = read(PLAIN[:cut], "a.jsonl")
    assert found == FOUND[: PLAIN[:cut].count(b"\n")]


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(COMPRESSED) - 1), st.integers(1, 255)), max_size=4))
def test_damage_costs_its_own_frames_only(flips: list[tuple[int, int]]) -> None:
    content = bytearray(COMPRESSED)
    for place, mask in flips:
        content[place] ^= mask
    found, reader = read(bytes(content))
    if reader is None:
        assert any(place < FRAMES[1] for place, _ in flips)  # the greeting is gone
        return
    ends = [*FRAMES[1:], len(COMPRESSED)]
    for number, (begin, end) in enumerate(zip(FRAMES, ends, strict=True)):
        if not any(begin <= place < end for place, _ in flips):
            for event in FOUND[number * FRAME_LINES : (number + 1) * FRAME_LINES]:
                assert event in found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(PLAIN) - 1), st.binary(max_size=40))
def test_rubbish_inside_a_text_costs_a_line_or_two(place: int, rubbish: bytes) -> None:
    found, reader = read(PLAIN[:place] + rubbish + PLAIN[place:], "a.jsonl")
    if reader is not None:
        assert sum(1 for event in FOUND if event not in found) <= 1


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=2000))
def test_anything_at_all(content: bytes) -> None:
    read(content)
    read(b"\x28\xb5\x2f\xfd" + content)
    read(LINES[0] + content, "a.jsonl")


def test_damage_is_counted() -> None:
    content = bytearray(COMPRESSED)
    content[FRAMES[2] + 6] ^= 0xFF
    _, reader = read(bytes(content))
    assert reader is not None
    assert 0 < reader.lost.damaged_bytes <= FRAMES[3] - FRAMES[2]
    assert any("bytes were damaged" in one for one in reader.lost.words())


def block_headers() -> list[int]:
    """Offsets of the headers of blocks (RFC 8878, 3.1.1.2) in the first frame."""
    begin = zstandard.frame_header_size(COMPRESSED)
    found = []
    while begin < FRAMES[1] - 4:
        found.append(begin)
        header = int.from_bytes(COMPRESSED[begin : begin + 3], "little")
        begin += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
    return found


def test_a_block_that_swallows_the_rest_costs_its_frame() -> None:
    """A header that promises more than the file has; the frames after it are there all the same."""
    content = bytearray(COMPRESSED)
    place = block_headers()[4]
    content[place : place + 3] = (0x1FFFF << 3 | 2 << 1).to_bytes(3, "little")
    found, reader = read(bytes(content))
    assert reader is not None
    assert without_stand_ins(found) == FOUND[:4] + FOUND[FRAME_LINES:]
    assert reader.lost.damaged_bytes == FRAMES[1]
    assert not reader.lost.cut


@pytest.mark.parametrize("mask", [0x01, 0xFF])
def test_damage_in_the_last_frame_is_not_taken_for_a_kill(mask: int) -> None:
    for place in range(FRAMES[-1] + 20, len(COMPRESSED) - 7, 11):
        content = bytearray(COMPRESSED)
        content[place] ^= mask
        found, reader = read(bytes(content))
        assert reader is not None
        assert found[: len(FOUND) - FRAME_LINES] == FOUND[: len(FOUND) - FRAME_LINES]
        assert not reader.lost.cut
        assert reader.lost.damaged_bytes > 0


@pytest.mark.parametrize(("content", "name"), [(COMPRESSED, "a.jsonl.zst"), (PLAIN, "a.jsonl")])
def test_a_recording_that_has_just_begun_is_said_to_be_one(
    tmp_path: Path, content: bytes, name: str
) -> None:
    for length in (5, 12, 40):
        (tmp_path / name).write_bytes(content[:length])
        with pytest.raises(RecordingError, match=r"begins like a recording .* nothing yet"):
            RecordingReader(tmp_path / name)


def test_lines_of_a_newer_version_are_skipped_and_counted() -> None:
    future = b'{"type":"hologram","time":1.0,"monotonic":1.0,"source":"a"}\n'
    found, reader = read(b"".join([LINES[0], future, *LINES[1:]]), "a.jsonl")
    assert found == FOUND
    assert reader is not None
    assert reader.lost.newer_lines == 1


def test_a_newer_schema_is_refused_in_words(tmp_path: Path) -> None:
    hello = events.Hello(**at(0), version="9.0", schema=99, role="recording", pid=1)
    (tmp_path / "a.jsonl").write_bytes(events.encode(hello))
    with pytest.raises(RecordingError, match=r"topsmon 9\.0, which is newer .* update"):
        RecordingReader(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"hello\n", "no event of topsmon"),
        (b"{}\n", "no event of topsmon"),
        (b"\x00" * 5000, "no event of topsmon"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 100, "no event of topsmon"),
    ],
)
def test_what_is_no_recording_is_refused_in_words(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=words):
        RecordingReader(path)


def test_folders_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", tmp_path, Path("/dev/zero"), tmp_path / "gone.jsonl"):
        with pytest.raises(RecordingError):
            RecordingReader(path)


def test_an_endless_line_is_dropped(tmp_path: Path) -> None:
    long = b'{"type":"hello","version":"' + b"x" * (3 * events.MAX_LINE_BYTES) + b'"}\n'
    found, reader = read(b"".join([LINES[0], long, *LINES[1:]]), "a.jsonl")
    assert found == FOUND
    assert reader is not None
    assert reader.lost.bad_lines == 1


READ_A_BOMB = """
import resource
import sys
from pathlib import Path
from topsmon.recording.reader import RecordingReader
reader = RecordingReader(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
print(sum(1 for _ in reader.read()))
"""


@pytest.mark.real
def test_a_bomb_does_not_fill_the_memory(tmp_path: Path) -> None:
    """1 GiB of zeros in a few dozen kB."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    path = tmp_path / "bomb.topsmon.jsonl.zst"
    with path.open("wb") as file:
        file.write(compressor.compress(LINES[0]))
        for _ in range(256):
            file.write(compressor.compress(b"\x00" * (1 << 22)))
        file.write(compressor.flush())
    limit = 1 << 29
    ended = subprocess.run(
        [sys.executable, "-c", READ_A_BOMB, str(path), str(limit)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout.strip() == "1", ended.stderr


@pytest.mark.parametrize("kind", ["a.topsmon.jsonl.zst", "a.jsonl"])
def test_a_block_that_was_half_written_is_taken_back(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / kind
    part = Part.create(path, compressed=kind.endswith(".zst"))
    part.append(LINES[:5], 0.0)
    size, real, left = part.size, os.write, [3]

    def write(handle: int, data: bytes) -> int:
        if not left:
            raise OSError(28, "No space left on device")
        return real(handle, bytes(data)[: left.pop()])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            part.append(LINES[5:9], 0.1)
        with pytest.raises(OSError, match="No space"):
            part.append(LINES[9:12], 0.2)
    assert path.stat().st_size == size
    assert part.waiting_lines == 7
    part.append(LINES[12:], 0.3)
    part.close()
    reader = RecordingReader(path)
    assert list(reader.read()) == FOUND
    assert reader.lost.words() == []


@pytest.mark.parametrize("kind", ["a.topsmon.jsonl.zst", "a.jsonl"])
def test_what_was_given_up_costs_nothing_else(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / kind
    part = Part.create(path, compressed=kind.endswith(".zst"))
    part.append(LINES[:5], 0.0)

    def write(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            part.append(LINES[5:9], 0.1)
        assert part.forget() == 4
    part.append(LINES[9:], 0.3)
    part.close()
    assert without_stand_ins(RecordingReader(path).read()) == FOUND[:5] + FOUND[9:]


def test_a_new_frame_begins_now_and_then(tmp_path: Path) -> None:
    path = tmp_path / "a.topsmon.jsonl.zst"
    part = Part.create(path, compressed=True)
    for number, line in enumerate(LINES):
        part.append([line], number * 2.5)
    part.close()
    entries = [entry for entry in RecordingReader(path).lines() if entry.place is not None]
    assert len(entries) == -(-len(LINES) // 4)
    assert list(RecordingReader(path).read()) == FOUND

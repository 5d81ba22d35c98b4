"""What is known is told again now and then: damage costs the blocks that it touches, wherever."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import CEILING, UUIDS, fold, stream

from topsmon import events
from topsmon.recording import index, writer
from topsmon.recording.facts import STAND_IN
from topsmon.recording.reader import RecordingReader
from topsmon.recording.writer import Limits, RecordingWriter

FOUND = stream(24)
CHUNK = 15
OWN = (events.Hello, events.Recording)
SERIES = (events.DeviceSample, events.RateMeasured, events.RunSample, events.RunEvent)


def record(path: Path, chunks: int = 1000, limits: Limits | None = None) -> None:
    """Record the stream in pieces, each of which begins with what is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "FLUSH_SECONDS", 0.002)
        patch.setattr(writer, "FIRST_AGAIN_SECONDS", 0.0)
        patch.setattr(writer, "AGAIN_SECONDS", 0.0)
        recording = RecordingWriter(path, (), limits)
        for begin in range(0, min(len(FOUND), chunks * CHUNK), CHUNK):
            size, deadline = recording.condition.size, time.monotonic() + 60
            for event in FOUND[begin : begin + CHUNK]:
                recording.write(event)
            while recording.condition.size == size and time.monotonic() < deadline:
                time.sleep(0.001)
        assert recording.close(60.0)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("told-again") / "a.topsmon.jsonl.zst"
    record(path)
    return path.read_bytes()


def frames(content: bytes) -> list[tuple[int, int, list[bytes]]]:
    """Where each frame begins and ends and its lines, by zstd alone."""
    found, begin = [], 0
    while begin < len(content):
        decoder = zstandard.ZstdDecompressor().decompressobj()
        lines = decoder.decompress(content[begin:]).splitlines()
        end = len(content) - len(decoder.unused_data)
        found.append((begin, end, lines))
        begin = end
    return found


def news(lines: list[bytes]) -> list[bytes]:
    """The lines of a frame without what it tells again."""
    told_again = json.loads(lines[1])["repeated"] if len(lines) > 1 else 0
    return lines[2 + told_again :]


def read(path: Path, content: bytes) -> tuple[list[events.AnyEvent], RecordingReader]:
    path.write_bytes(content)
    reader = RecordingReader(path)
    return list(reader.read()), reader


def told(found: list[events.AnyEvent]) -> list[events.AnyEvent]:
    return [event for event in found if not isinstance(event, OWN) or event.source]


def test_whoever_reads_everything_reads_it_once(tmp_path: Path, content: bytes) -> None:
    assert len(frames(content)) > 5
    found, reader = read(tmp_path / "a.zst", content)
    assert told(found) == FOUND
    assert reader.lost.words() == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def test_a_first_byte_that_became_a_brace_makes_no_text(tmp_path: Path, content: bytes) -> None:
    found, reader = read(tmp_path / "a.zst", b"{" + content[1:])
    assert reader.lost.damaged_bytes == frames(content)[0][1]
    assert set(fold(found).devices) == set(UUIDS)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_costs_the_blocks_that_it_touches(
    folder: Path, content: bytes, data: st.DataObject
) -> None:
    parts = frames(content)
    # The first block is where everything used to hang on.
    place = st.one_of(st.integers(0, parts[0][1] - 1), st.integers(0, len(content) - 1))
    flips = data.draw(st.lists(st.tuples(place, st.integers(1, 255)), min_size=1, max_size=3))
    damaged = bytearray(content)
    for at, mask in flips:
        damaged[at] ^= mask
    if damaged == content:
        return
    found, reader = read(folder / "a.zst", bytes(damaged))
    whole = [lines for begin, end, lines in parts if damaged[begin:end] == content[begin:end]]
    original = {events.encode(event) for event in FOUND}
    mine = [event for event in told(found) if getattr(event, "name", "") != STAND_IN]
    # What remains is right, and there once.
    assert {events.encode(event) for event in mine} <= original
    counted = Counter(events.encode(event) for event in mine)
    for event in mine:
        if isinstance(event, SERIES):
            assert counted[events.encode(event)] == 1
    # All of the blocks that were not touched is there.
    kept = {line + b"\n" for lines in whole for line in news(lines)}
    missing = (kept & original) - set(counted)
    assert not missing
    assert reader.lost.words() != []
    # Where a later block tells who is who, the devices have their names.
    if whole:
        state = fold(found)
        assert {
            key: device.identity.name for key, device in state.devices.items()
        } == dict.fromkeys(UUIDS, "NVIDIA H100 80GB HBM3")
        assert [device.identity.index for device in state.ordered()] == [0, 1]
        assert state.host is not None
        assert state.runs["r-1"].identity.pid == 77


def test_what_was_read_after_a_loss_is_not_taken_from_the_next_repetition(
    tmp_path: Path, content: bytes
) -> None:
    """Most blocks tell nothing again: here only every third one does."""
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    blocks = [
        content[begin:end] if number % 3 == 0 else pack(b"\n".join(news(lines)) + b"\n")
        for number, (begin, end, lines) in enumerate(frames(content))
    ]
    assert told(read(tmp_path / "a.zst", b"".join(blocks))[0]) == FOUND
    for lost in range(len(blocks)):
        left = [bytes(len(one)) if at == lost else one for at, one in enumerate(blocks)]
        found, _ = read(tmp_path / "a.zst", b"".join(left))
        samples = [events.encode(one) for one in told(found) if isinstance(one, SERIES)]
        assert len(samples) == len(set(samples))


def test_without_its_first_block_nothing_but_that_is_missing(
    tmp_path: Path, content: bytes
) -> None:
    first = frames(content)[0]
    damaged = bytes(first[1]) + content[first[1] :]
    path = tmp_path / "a.topsmon.jsonl.zst"
    found, reader = read(path, damaged)
    assert reader.lost.damaged_bytes == first[1]
    state = fold(found)
    ceilings = state.devices[UUIDS[0]].ceilings
    assert ceilings is not None
    assert ceilings.rates[0].ops_per_second == CEILING
    assert index.build(reader).knows_findings
    shown = topsmon("replay", "--once", str(path))
    assert shown.returncode == 2  # GPU 1 is lost in it, as it was when it was recorded
    head, *_ = shown.stdout.splitlines()
    assert head.startswith("REPLAY of a.topsmon.jsonl.zst")
    assert f"{first[1]:,} bytes were damaged and skipped" in head
    assert "NVIDIA H100 80GB HBM3" in shown.stdout
    assert STAND_IN not in shown.stdout


def test_a_cut_in_the_middle_of_what_is_told_again(tmp_path: Path, content: bytes) -> None:
    """The lines that follow are no part of it."""
    begin, end, _ = frames(content)[3]
    damaged = content[: begin + (end - begin) // 2] + content[end:]
    found, reader = read(tmp_path / "a.zst", damaged)
    there = {events.encode(event).strip() for event in found}
    for _, _, lines in frames(content)[4:]:
        assert set(news(lines)) <= there
    assert reader.lost.damaged_bytes > 0


def test_a_text_that_lost_its_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    record(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"rubb\xffish\n" + b"".join(lines[9:]))
    reader = RecordingReader(path)
    state = fold(list(reader.read()))
    assert set(state.devices) == set(UUIDS)
    assert reader.lost.bad_lines == 1


def test_the_files_of_a_recording_are_found_by_a_newest_whose_head_is_damaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.topsmon.jsonl.zst"
    record(path, limits=Limits(max_bytes=4000, keep=50))
    assert len(RecordingReader(path).files) > 1
    whole, files = list(RecordingReader(path).read()), RecordingReader(path).files
    assert told(whole) == FOUND
    damaged = bytearray(path.read_bytes())
    damaged[:30] = bytes(30)
    path.write_bytes(damaged)
    reader = RecordingReader(path)
    assert reader.files == files
    assert len(told(list(reader.read()))) >= len(FOUND) - 2 * CHUNK


def test_what_the_end_of_a_file_lost_is_taken_from_the_head_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.topsmon.jsonl.zst"
    record(path, limits=Limits(max_bytes=4000, keep=50))
    file = RecordingReader(path).files[0]
    content = file.read_bytes()
    begin, end, lines = frames(content)[-1]
    samples = [
        event
        for line in news(lines)
        if isinstance(event := events.LineDecoder().decode(line), events.DeviceSample)
        and event.device == UUIDS[0]
    ]
    file.write_bytes(content[: begin + 20] + bytes(end - begin - 20))
    reader = RecordingReader(path)
    found = list(reader.read())
    assert samples[-1] in found  # what was known when the next file began
    assert not any(sample in found for sample in samples[:-1])
    assert reader.lost.damaged_bytes > 0


# Recordings of before, which tell what is known but once ------------------------------------------


def older() -> bytes:
    """The stream in frames of ten lines, with the identities in the first one alone."""
    content = b""
    for begin in range(0, len(FOUND), 10):
        compressor = zstandard.ZstdCompressor(write_checksum=True)
        content += compressor.compress(b"".join(map(events.encode, FOUND[begin : begin + 10])))
    return content


def test_an_older_recording_without_its_first_block_shows_what_is_left(tmp_path: Path) -> None:
    content = bytearray(older())
    end = frames(bytes(content))[0][1]
    content[:end] = bytes(end)
    path = tmp_path / "old.topsmon.jsonl.zst"
    found, reader = read(path, bytes(content))
    state = fold(found)
    assert [device.identity.name for device in state.ordered()] == [STAND_IN, STAND_IN]
    assert [device.identity.uuid for device in state.ordered()] == list(UUIDS)
    assert (
        state.devices[UUIDS[0]].sample
        == [
            event
            for event in FOUND
            if isinstance(event, events.DeviceSample) and event.device == UUIDS[0]
        ][-1]
    )
    assert reader.lost.words() == [
        f"{end:,} bytes were damaged and skipped",
        "2 devices are numbered as they appear: what named them was lost",
    ]
    for arguments in (("report", str(path)), ("export", str(path), "--csv", "-")):
        done = topsmon(*arguments)
        assert done.returncode == 0, done.stderr
        assert "bytes were damaged" in done.stdout + done.stderr
    assert "318" in topsmon("export", str(path), "--csv", "-").stdout  # watts at 18 s


def test_a_wrong_digit_is_not_believed(tmp_path: Path) -> None:
    """A block may decode well and be false: only its checksum knows."""
    sample = next(event for event in FOUND if isinstance(event, events.DeviceSample))
    other = json.loads(events.encode(sample)) | {"power_watts": 999.0}
    true = b"".join(map(events.encode, FOUND[:20]))
    false = true.replace(events.encode(sample), json.dumps(other).encode() + b"\n")
    assert true != false
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    rest = compressor.compress(b"".join(map(events.encode, FOUND[20:])))
    frame = compressor.compress(false)[:-4] + compressor.compress(true)[-4:]
    found, reader = read(tmp_path / "a.zst", frame + rest)
    assert told(found)[-1] == FOUND[-1]
    assert reader.lost.damaged_bytes == len(frame)
    powers = [event.power_watts for event in found if isinstance(event, events.DeviceSample)]
    assert 999.0 not in powers


def topsmon(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topsmon", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

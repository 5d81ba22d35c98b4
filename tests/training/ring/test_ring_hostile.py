"""Whatever lies in a ring file, the reader answers with what is valid or with one error."""

from __future__ import annotations

import json
import math
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ring_runs import EVENT_AT, HISTORY_AT, RECORD_AT, new_run, values, write_steps

from topsmon import events
from topsmon.training.reader import RingReader, RingReadError
from topsmon.training.recorder import coding, layout
from topsmon.training.source import TrainingRuns

# Shrinking a failure in 39 drawn numbers would take minutes: the first counterexample is enough.
fuzz = settings(max_examples=40, deadline=None, phases=set(Phase) - {Phase.shrink, Phase.explain})


def ring_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPSMON_DIR", f"{folder}/rings")
        writer = new_run(model="Net")
        write_steps(writer, 1, 700, loss=1.0, scale=2.0, step_seconds=0.1)
        for number in range(300):
            writer.event("skip", number, "why", ["a", "b"], {"scale": 1.0})
        writer.close()
        return Path(writer.path).read_bytes()


RING = ring_bytes()


def read_all(data: bytes) -> list[events.AnyEvent] | RingReadError:
    """Everything that a source tells of a file, or the reader's error. Events must encode."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "rings")
        folder.mkdir(mode=0o700)
        path = folder / "20260101T000000-1-0.ring"
        path.write_bytes(data)
        source = TrainingRuns("host", {"TOPSMON_DIR": str(folder)}, everything=True)
        found = [*source.poll(), *source.poll()]
        source.close()
        decoder = events.LineDecoder()
        for event in found:
            assert decoder.decode(events.encode(event)) is not None, decoder.last_error
        try:
            reader = RingReader(path)
            reader.identity()
        except RingReadError as error:
            refused = error
        else:
            refused = None
        if refused is not None:
            assert "\n" not in str(refused)
            assert len(str(refused)) < 1000
            return refused
        reader.window()
        reader.happenings()
        reader.history()
        reader.close()
        return found


def change(offset: int, data: bytes) -> bytes:
    return RING[:offset] + data + RING[offset + len(data) :]


@fuzz
@given(st.integers(0, len(RING) - 1))
def test_truncated_files(length: int) -> None:
    assert isinstance(read_all(RING[:length]), RingReadError)


@fuzz
@given(st.integers(0, len(RING) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_never_believed(offset: int, bit: int) -> None:
    found = read_all(change(offset, bytes([RING[offset] ^ (1 << bit)])))
    if isinstance(found, RingReadError):
        assert offset < RECORD_AT
        return
    (sample,) = [event for event in found if isinstance(event, events.RunSample)]
    assert sample.step in {699, 700}
    assert (sample.loss, sample.scale, sample.window.step_seconds) == (1.0, 2.0, 0.1)


@fuzz
@given(st.lists(st.tuples(st.integers(0, len(RING) - 400), st.binary(max_size=400)), max_size=8))
def test_overwritten_files(changes: list[tuple[int, bytes]]) -> None:
    data = RING
    for offset, piece in changes:
        data = data[:offset] + piece + data[offset + len(piece) :]
    read_all(data)


@fuzz
@given(st.integers(0, 2**32), st.sampled_from([64, RECORD_AT, EVENT_AT, HISTORY_AT]))
def test_regions_of_noise(seed: int, start: int) -> None:
    noise = random.Random(seed).randbytes(len(RING) - start)
    read_all(RING[:start] + noise)


@fuzz
@given(st.binary(max_size=4096))
def test_files_of_noise(data: bytes) -> None:
    assert isinstance(read_all(data), RingReadError)


number = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -1.0, 1e308, -1e308, math.inf, -math.inf, math.nan, 5e-324]),
)


@pytest.mark.parametrize("when", [math.nan, math.inf, -math.inf, 1e308])
def test_steps_at_no_time_at_all(when: float, rings: Path) -> None:
    writer = new_run()
    for step in (1, 2, 3):
        record = values(step, step_seconds=1e308, tokens=1e308, gradient_norm=1e308)
        record[1] = when
        writer.write(record)
    writer.close()
    found = read_all(Path(writer.path).read_bytes())
    assert isinstance(found, list)
    (sample,) = [event for event in found if isinstance(event, events.RunSample)]
    assert sample.window.step_seconds == 1e308


COUNTS = {"Q": 2**64 - 1, "I": 2**32 - 1}


@fuzz
@given(st.data())
def test_records_of_absurd_numbers_with_a_right_checksum(data: st.DataObject) -> None:
    step = data.draw(st.one_of(st.integers(1, 5000), st.integers(0, 2**64 - 1)))
    fields: list[Any] = [step]
    for name, code in layout.RECORD_FIELDS[1:]:
        del name
        if code == "d":
            fields.append(data.draw(number))
        elif code == "i":
            fields.append(data.draw(st.integers(-(2**31), 2**31 - 1)))
        else:
            fields.append(data.draw(st.integers(0, COUNTS[code])))
    body = layout.RECORD.pack(*fields)
    slot = body + bytes(316 - len(body)) + struct.pack("<I", zlib.crc32(body))
    read_all(change(RECORD_AT + step % 4096 * 320, slot))


@fuzz
@given(st.integers(0, 255), st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4), number)
def test_buckets_of_absurd_numbers_with_a_right_checksum(
    slot: int, counts: list[int], value: float
) -> None:
    first, steps, skipped, nonfinite = counts
    body = struct.pack("<QQQddddQd", first, steps, skipped, *[value] * 4, nonfinite, value)
    read_all(change(HISTORY_AT + slot * 80, struct.pack("<I", zlib.crc32(body)) + body))


def identity_with(text: bytes) -> bytes:
    """The ring with one more identity, of any JSON."""
    head = struct.pack("<QI", 9, len(text))
    slot = struct.pack("<I", zlib.crc32(head + text)) + head + text
    return change(64 + 16384, slot)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@fuzz
@given(
    st.sampled_from([*events.Run.__struct_fields__, "boot_id", "process_started", "pid_namespace"]),
    json_values,
)
def test_identities_with_a_field_of_any_type(field: str, value: Any) -> None:
    document = {"pid": 1, "hostname": "h", "started": 1.0, field: value}
    read_all(identity_with(json.dumps(document).encode()))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 16_000,
        b'{"a":' * 3000,
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"pid":1e999,"hostname":"h","started":1}',
        b'{"pid":' + b"9" * 5000 + b',"hostname":"h","started":1}',
        b'{"pid":1,"hostname":"h","started":1,"parameters":' + b"9" * 30 + b"}",
        b'{"pid":1,"hostname":"h","started":-1e308,"process_started":-5}',
        b'{"pid":-1,"hostname":"\\ud800","started":0}',
        b'{"pid":99999999999,"hostname":"' + b"x" * 16_000 + b'","started":0}',
    ],
    ids=range(12),
)
def test_identities_out_of_this_world(text: bytes) -> None:
    read_all(identity_with(text[:16_368]))


@fuzz
@given(
    st.dictionaries(
        st.sampled_from(["time", "kind", "step", "message", "names", "values"]), json_values
    ),
    st.integers(1, 2**64 - 1),
)
def test_events_of_any_json(document: dict[str, Any], count: int) -> None:
    text = json.dumps({"time": 1.0, "kind": "skip", **document}).encode()[:1008]
    head = struct.pack("<QI", count, len(text))
    slot = struct.pack("<I", zlib.crc32(head + text)) + head + text
    read_all(change(EVENT_AT + count % 256 * 1024, slot))


def test_a_length_beyond_the_slot_is_not_followed() -> None:
    head = struct.pack("<QI", 9, 2**32 - 1)
    found = read_all(change(64, struct.pack("<I", zlib.crc32(head)) + head))
    assert isinstance(found, list)
    assert isinstance(found[0], events.Run)
    assert found[0].model == "Net"


@pytest.mark.parametrize("read", ["identity", "window", "happenings", "history"])
def test_every_method_says_that_the_file_was_cut_off(read: str, rings: Path) -> None:
    writer = new_run()
    write_steps(writer, 1, 3)
    reader = RingReader(Path(writer.path))
    method: Callable[[], object] = getattr(reader, read)
    method()
    with Path(writer.path).open("r+b") as file:
        file.truncate(64)
    with pytest.raises(RingReadError, match="cut off"):
        method()


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(st.text(max_size=3000), st.lists(st.text(max_size=300), max_size=20), number),
        max_size=6,
    )
)
def test_any_document_fits_into_a_slot_and_is_valid_there(document: dict[str, Any]) -> None:
    slot = coding.encode_text(7, document, 1024)
    assert len(slot) <= 1024
    decoded = coding.decode_text(slot + bytes(1024 - len(slot)))
    assert decoded is not None
    assert decoded[0] == 7
    short = json.loads(decoded[1])
    for key, value in short.items():
        if isinstance(value, str):
            assert str(document[key]).encode("utf-8", "replace").decode().startswith(value)

"""The ring file: what is written is read, whole or not at all."""

from __future__ import annotations

import math
import os
import re
import stat
import sys
import zlib
from pathlib import Path

import pytest
from ring_runs import EVENT_AT, RECORD_AT, decode_record, decode_text, new_run, values, write_steps

from topsmon.training.reader import Record, RingReader, RingReadError
from topsmon.training.recorder import layout
from topsmon.training.recorder.ring import FAILURES_MAX, RingError, RingWriter


def test_the_reader_s_record_has_the_layout_s_fields() -> None:
    assert Record._fields == layout.RECORD_NAMES


def test_a_record_comes_back_as_it_was_written(rings: Path) -> None:
    writer = new_run()
    written = [
        index + 0.5 if code == "d" else index + 1
        for index, (_, code) in enumerate(layout.RECORD_FIELDS)
    ]
    writer.write(written)
    assert [list(record) for record in RingReader(Path(writer.path)).window()] == [written]


def test_a_hand_written_decoder_reads_the_same_record(rings: Path) -> None:
    writer = new_run()
    writer.write(
        values(
            4097,
            step_seconds=0.25,
            loss=2.5,
            scale=65536.0,
            gradient_norm=math.inf,
            growth_tracker=1999,
            flags=layout.SKIPPED | layout.HAS_SCALER,
            skip_streak=3,
            backward_calls=4,
            skipped=17,
            growths=5,
            backoffs=18,
        )
    )
    record = decode_record(Path(writer.path), 4097)
    assert record is not None
    del record["time"]
    assert record == {
        "step": 4097,
        "step_seconds": 0.25,
        "loss": 2.5,
        "scale": 65536.0,
        "gradient_norm": math.inf,
        "growth_tracker": 1999,
        "flags": 17,
        "skip_streak": 3,
        "backward_calls": 4,
        "skipped": 17,
        "growths": 5,
        "backoffs": 18,
    }


def test_the_file_is_private_of_fixed_size_and_named_after_start_pid_and_rank(rings: Path) -> None:
    writer = new_run(started=86400.0, rank=3)
    path = Path(writer.path)
    assert path == rings / f"19700102T000000-{os.getpid()}-3.ring"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(rings.stat().st_mode) == 0o700
    assert path.stat().st_size == 64 + 2 * 16384 + 4096 * 320 + 256 * 1024 + 256 * 80


def test_two_runs_of_the_same_pid_second_and_rank_get_files_of_their_own(rings: Path) -> None:
    writers = [new_run(started=0.5) for _ in range(3)]
    for number, writer in enumerate(writers, 1):
        writer.write(values(1, loss=float(number)))
    losses = [RingReader(Path(writer.path)).window()[0].loss for writer in writers]
    assert losses == [1.0, 2.0, 3.0]


def test_a_late_reader_sees_the_newest_steps(rings: Path) -> None:
    writer = new_run()
    write_steps(writer, 1, 10_000)
    steps = [record.step for record in RingReader(Path(writer.path)).window()]
    assert steps == list(range(9801, 10_001))


@pytest.mark.parametrize("gap", [0, 1, 63, 64, 65, 4095, 4096, 4097, 9000])
def test_a_reader_that_comes_back_later_finds_the_newest_step(rings: Path, gap: int) -> None:
    writer = new_run()
    write_steps(writer, 1, 300)
    reader = RingReader(Path(writer.path))
    assert reader.window()[-1].step == 300
    write_steps(writer, 301, 300 + gap)
    late = RingReader(Path(writer.path))
    assert repr(reader.window()) == repr(late.window())
    assert reader.newest_step == 300 + gap


def test_two_readers_do_not_disturb_each_other(rings: Path) -> None:
    writer = new_run()
    readers = [RingReader(Path(writer.path)) for _ in range(2)]
    write_steps(writer, 1, 3)
    writer.event("growth", 3)
    for reader in readers:
        assert [record.step for record in reader.window()] == [1, 2, 3]
        assert [number for number, _ in reader.happenings()] == [1]


def test_an_unchanged_window_is_the_same_object(rings: Path) -> None:
    writer = new_run()
    write_steps(writer, 1, 5)
    reader = RingReader(Path(writer.path))
    assert reader.window() is reader.window()
    assert reader.history() is reader.history()
    assert reader.identity() is reader.identity()


def test_an_amended_step_replaces_what_was_pending(rings: Path) -> None:
    writer = new_run()
    reader = RingReader(Path(writer.path))
    for step in range(1, 301):
        writer.write(values(step, flags=layout.PENDING))
    assert all(record.flags == layout.PENDING for record in reader.window())
    writer.write(values(299, loss=1.5))
    assert [record.loss for record in reader.window() if not record.flags] == [1.5]
    assert reader.newest_step == 300


def test_an_amendment_of_a_step_that_the_ring_has_forgotten_changes_nothing(rings: Path) -> None:
    writer = new_run()
    write_steps(writer, 1, 5000, loss=1.0)
    before = Path(writer.path).read_bytes()
    writer.write(values(5000 - 4096, loss=7.0))
    assert Path(writer.path).read_bytes() == before


def test_a_torn_record_is_left_out_and_its_neighbours_stay(rings: Path) -> None:
    writer = new_run()
    write_steps(writer, 1, 10, loss=1.0)
    with Path(writer.path).open("r+b") as file:
        file.seek(RECORD_AT + 10 * 320 + 24)
        file.write(b"\xff")
    reader = RingReader(Path(writer.path))
    assert [record.step for record in reader.window()] == list(range(1, 10))


def test_counters_survive_the_wrap_around(rings: Path) -> None:
    writer = new_run()
    for step in range(1, 9001):
        writer.write(values(step, skipped=step // 3, growths=step // 7))
    newest = RingReader(Path(writer.path)).window()[-1]
    assert (newest.step, newest.skipped, newest.growths) == (9000, 3000, 1285)


def test_identities_are_merged_and_the_newest_is_read(rings: Path) -> None:
    writer = new_run(model="Net", rank=1)
    reader = RingReader(Path(writer.path))
    first = reader.identity()
    writer.identify(parameters=12, scaler={"kind": "GradScaler", "init_scale": 65536.0})
    second = reader.identity()
    assert second.generation > first.generation
    assert (second.run.model, second.run.rank, second.run.parameters) == ("Net", 1, 12)
    assert second.run.scaler is not None
    assert second.run.scaler.init_scale == 65536.0
    assert second.process.pid == os.getpid()


def test_a_torn_newer_identity_leaves_the_one_before(rings: Path) -> None:
    writer = new_run(model="old")
    writer.identify(model="new")
    with Path(writer.path).open("r+b") as file:
        file.seek(64 + 20)  # generation 2 lies in slot 0
        file.write(b"\0")
    assert RingReader(Path(writer.path)).identity().run.model == "old"


def test_the_process_tells_its_rank_from_the_launcher_s_variables(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "5"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TOPSMON_LAUNCH", "abc")
    run = RingReader(Path(new_run().path)).identity().run
    assert (run.rank, run.local_rank, run.world_size, run.launch) == (5, 1, 8, "abc")
    assert run.python_version == ".".join(map(str, sys.version_info[:3]))
    assert Path(sys.executable).name in run.command


def test_events_come_once_and_in_order_even_when_the_ring_has_gone_round(rings: Path) -> None:
    writer = new_run()
    reader = RingReader(Path(writer.path))
    writer.event("skip", 4, "found inf", ["a.weight"], {"scale": 2.0})
    ((number, happening),) = reader.happenings()
    assert (number, happening.kind, happening.step, happening.names) == (
        1,
        "skip",
        4,
        ("a.weight",),
    )
    assert happening.values == {"scale": 2.0}
    assert reader.happenings() == []
    for step in range(1, 601):
        writer.event("growth", step)
    numbers = [number for number, _ in reader.happenings()]
    assert numbers == list(range(601 - 255, 602))


def test_a_hand_written_decoder_reads_the_same_event(rings: Path) -> None:
    writer = new_run()
    writer.event("end", 9, "exit code 0", values={"exit_code": 0.0})
    number, document = decode_text(Path(writer.path).read_bytes()[EVENT_AT + 1024 :][:1024])
    assert number == 1
    assert (document["kind"], document["step"], document["message"]) == ("end", 9, "exit code 0")


def test_texts_that_do_not_fit_are_cut_and_still_valid(rings: Path) -> None:
    writer = new_run(command="x" * 50_000, limits=["é" * 9000] * 4)
    writer.event("exception", 1, "boom " * 1000, [f"layer.{n}.weight" for n in range(500)])
    reader = RingReader(Path(writer.path))
    assert 0 < len(reader.identity().run.command) < 16384
    ((_, happening),) = reader.happenings()
    assert happening.message.startswith("boom boom")
    assert happening.names[:2] == ("layer.0.weight", "layer.1.weight")


def test_what_json_cannot_hold_is_left_out(rings: Path) -> None:
    writer = new_run(flops_per_step=math.inf, command="a\udcffb")
    writer.event("scaled-clip", 1, values={"norm": math.inf, "scale": 4.0, "max_norm": math.nan})
    reader = RingReader(Path(writer.path))
    assert reader.identity().run.flops_per_step is None
    assert reader.identity().run.command == "a?b"
    assert reader.happenings()[0][1].values == {"scale": 4.0}


def test_a_value_of_the_wrong_type_never_raises_and_the_writer_goes_quiet(rings: Path) -> None:
    writer = new_run()
    writer.write(values(1))
    wrong = values(2, loss="much")
    writer.write(wrong)
    assert writer.failures == 1
    assert not writer.quiet
    for _ in range(FAILURES_MAX):
        writer.write([])
    assert writer.quiet
    writer.write(values(3))
    writer.event("skip", 3)
    writer.identify(model="x")
    assert [record.step for record in RingReader(Path(writer.path)).window()] == [1]


def test_nothing_is_written_after_the_close(rings: Path) -> None:
    writer = new_run()
    writer.close()
    before = Path(writer.path).read_bytes()
    writer.write(values(1))
    writer.event("skip", 1)
    writer.identify(model="x")
    writer.close()
    assert Path(writer.path).read_bytes() == before


def test_a_ring_is_reopened_for_last_words(rings: Path) -> None:
    writer = new_run(model="Net")
    write_steps(writer, 1, 3)
    writer.event("growth", 3)
    writer.close()
    again = RingWriter.reopen(writer.path)
    again.event("end", 3, "signal SIGKILL", values={"exit_code": 137.0})
    again.identify(rank=2)
    again.close()
    reader = RingReader(Path(writer.path))
    assert [(number, one.kind) for number, one in reader.happenings()] == [
        (1, "growth"),
        (2, "end"),
    ]
    assert (reader.identity().run.model, reader.identity().run.rank) == ("Net", 2)
    assert len(reader.window()) == 3


def test_what_is_no_ring_is_not_reopened(rings: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.ring"
    foreign.write_bytes(bytes(100))
    with pytest.raises(RingError, match="not a ring"):
        RingWriter.reopen(str(foreign))
    link = tmp_path / "link.ring"
    link.symlink_to(new_run().path)
    with pytest.raises(RingError, match=re.escape(str(link))):
        RingWriter.reopen(str(link))


def test_a_file_of_another_version_is_named_as_such_and_a_damaged_one_as_that(rings: Path) -> None:
    path = Path(new_run().path)
    preamble = bytearray(path.read_bytes()[:48])
    preamble[8] = 7
    with path.open("r+b") as file:
        file.write(preamble)
    with pytest.raises(RingReadError, match="its preamble is damaged"):
        RingReader(path)
    preamble[44:48] = zlib.crc32(preamble[:44]).to_bytes(4, "little")
    with path.open("r+b") as file:
        file.write(preamble)
    with pytest.raises(RingReadError, match="layout version 7, this topsmon reads 1;"):
        RingReader(path)


def test_a_file_cut_off_while_it_is_read_gives_an_error(rings: Path) -> None:
    writer = new_run()
    write_steps(writer, 1, 10)
    reader = RingReader(Path(writer.path))
    reader.window()
    os.truncate(writer.path, 1000)
    with pytest.raises(RingReadError, match="cut off"):
        reader.window()
    with pytest.raises(RingReadError, match="1000 bytes"):
        RingReader(Path(writer.path))

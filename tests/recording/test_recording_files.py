"""What is written is read again, by us and by others; names, rights, rotation."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
import zstandard
from recorded import START, at, fold, plain_values, stream

from topsmon import events
from topsmon.recording import names
from topsmon.recording import writer as writer_module
from topsmon.recording.known import known_events
from topsmon.recording.reader import RecordingReader
from topsmon.recording.recorder import Recorder
from topsmon.recording.writer import Limits, RecordingError, RecordingWriter
from topsmon.state import State

OURS = (events.Recording,)


def write(path: Path, found: list[events.AnyEvent], **options) -> RecordingWriter:
    writer = RecordingWriter(path, **options)
    for event in found:
        writer.write(event)
    assert writer.close()
    return writer


def read(path: Path) -> list[events.AnyEvent]:
    return list(RecordingReader(path).read())


def without_ours(found: list[events.AnyEvent]) -> list[events.AnyEvent]:
    own = [one for one in found if isinstance(one, events.Hello) and one.role == "recording"]
    return [one for one in found if not isinstance(one, OURS) and one not in own]


@pytest.mark.parametrize("name", ["a.topsmon.jsonl.zst", "a.jsonl.zst", "a.jsonl"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    found = stream()
    write(tmp_path / name, found)
    back = read(tmp_path / name)
    assert without_ours(back) == found
    assert isinstance(back[0], events.Hello)
    assert back[0].role == "recording"
    assert isinstance(back[1], events.Recording)
    assert isinstance(back[-1], events.Recording)
    assert back[-1].ended


def test_another_program_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.topsmon.jsonl.zst"
    found = stream(10)
    write(path, found)
    with path.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    lines = [json.loads(line) for line in text.decode().splitlines()]
    assert [line["type"] for line in lines[:2]] == ["hello", "recording"]
    assert len(lines) == len(found) + 3
    powers = [line["power_watts"] for line in lines if line["type"] == "sample"]
    assert powers[0] == 301.0


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    before = os.umask(0)
    try:
        write(path, stream(3))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("precious")
    with pytest.raises(RecordingError, match=r"a\.jsonl exists; .*--force"):
        RecordingWriter(path)
    assert path.read_text() == "precious"
    write(path, stream(3), force=True)
    assert without_ours(read(path)) == stream(3)


@pytest.mark.parametrize("force", [False, True])
def test_a_link_is_not_followed(tmp_path: Path, force: bool) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "a.jsonl").symlink_to(target)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "nowhere")
    for name in ("a.jsonl", "b.jsonl"):
        with pytest.raises(RecordingError):
            RecordingWriter(tmp_path / name, force=force)
    assert target.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_is_not_written_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(RecordingError, match="no regular file"):
        RecordingWriter(tmp_path / "a.jsonl", force=True)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"gone/a\.jsonl: No such file"):
        RecordingWriter(tmp_path / "gone" / "a.jsonl")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("a", "a.topsmon.jsonl.zst"),
        ("a.jsonl", "a.jsonl"),
        ("a.zst", "a.zst.topsmon.jsonl.zst"),
        ("x.topsmon.jsonl.zst", "x.topsmon.jsonl.zst"),
        (".jsonl", ".jsonl.topsmon.jsonl.zst"),
    ],
)
def test_a_name_says_its_format(given: str, name: str) -> None:
    assert names.completed(Path(given)).name == name


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "FLUSH_SECONDS", 0.01)
    # A recorder closes with the default: this machine's disk may have much else to do.
    monkeypatch.setattr(RecordingWriter.close, "__defaults__", (60.0,))


def wait_for_part(writer: RecordingWriter, part: int) -> None:
    while writer.condition.part < part:
        time.sleep(0.005)


def rotating(path: Path, keep: int, files: int) -> list[list[events.AnyEvent]]:
    """Write until there are so many files or a few more; return the bursts that made them."""
    writer = RecordingWriter(path, limits=Limits(max_bytes=1, keep=keep))
    written = []
    for number in range(files - 1):
        burst = [events.HostSample(**at(number * 100 + place)) for place in range(80)]
        for event in [*(stream(5) if number == 0 else []), *burst]:
            writer.write(event)
        written.append(burst)
        wait_for_part(writer, number + 2)
    assert writer.close()
    return written


def test_files_are_read_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written = rotating(path, keep=20, files=12)
    reader = RecordingReader(path)
    times = [event.time for event in reader.read() if isinstance(event, events.HostSample)]
    for burst in written:
        for event in burst:
            assert event.time in times
    assert len(reader.files) >= 12  # so that "10" stands after "9"
    assert [event.time for event in read(path) if isinstance(event, events.HostSample)] == times
    assert reader.lost.words() == []


def test_repeats_of_later_files_are_left_out(tmp_path: Path) -> None:
    rotated, whole = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    rotating(rotated, keep=20, files=3)
    found = without_ours(read(rotated))
    write(whole, found)
    assert without_ours(read(whole)) == found
    hellos = [event for event in found if isinstance(event, events.Hello)]
    assert [hello.role for hello in hellos] == ["poller"]


def test_each_file_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.topsmon.jsonl.zst"
    writer = RecordingWriter(path, limits=Limits(max_bytes=1, keep=9))
    for event in stream(40):
        writer.write(event)
    wait_for_part(writer, 2)
    writer.write(events.HostSample(**at(50)))
    assert writer.close()
    before = names.older_parts(path)
    alone = tmp_path / "alone" / "x.topsmon.jsonl.zst"
    alone.parent.mkdir()
    alone.write_bytes(path.read_bytes())
    state = fold(read(alone))
    original = fold(stream(40))
    assert before
    assert set(state.devices) == set(original.devices)
    assert state.host == original.host
    for key, device in state.devices.items():
        assert device.ceilings == original.devices[key].ceilings
        assert device.condition == original.devices[key].condition
        assert device.rates["bf16"].best == original.devices[key].rates["bf16"].best
    run, before_run = state.runs["r-1"], original.runs["r-1"]
    assert (run.identity, run.sample, run.buckets) == (
        before_run.identity,
        before_run.sample,
        before_run.buckets,
    )


def test_the_oldest_files_go(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rotating(path, keep=3, files=6)
    reader = RecordingReader(path)
    assert len(reader.files) == 3
    list(reader.read())
    assert reader.lost.missing_files > 0
    assert any("files of the recording are missing" in one for one in reader.lost.words())


def test_files_of_another_recording_are_not_mixed_in(tmp_path: Path) -> None:
    rotating(tmp_path / "old.jsonl", keep=9, files=2)
    (tmp_path / "old.1.jsonl").rename(tmp_path / "new.1.jsonl")
    (tmp_path / "stays.jsonl").write_text("")
    writer = RecordingWriter(tmp_path / "other.jsonl")
    assert writer.close()
    (tmp_path / "other.jsonl").rename(tmp_path / "new.jsonl")
    assert RecordingReader(tmp_path / "new.jsonl").files == [tmp_path / "new.jsonl"]


def test_force_removes_older_files_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rotating(path, keep=9, files=3)
    with pytest.raises(RecordingError, match="exists"):
        RecordingWriter(path)
    write(path, stream(3), force=True)
    assert RecordingReader(path).files == [path]


def test_known_events_make_the_same_state() -> None:
    state = fold(stream(30))
    again = fold(known_events(state))
    for name in ("hello", "host", "host_sample", "problems", "workers"):
        assert plain_values(getattr(again, name)) == plain_values(getattr(state, name))
    for key, device in state.devices.items():
        other = again.devices[key]
        for name in ("identity", "ceilings", "sample", "status", "processes", "xids", "probes"):
            assert plain_values(getattr(other, name)) == plain_values(getattr(device, name)), name
        for precision, rates in device.rates.items():
            assert other.rates[precision].by_shape == rates.by_shape
            assert other.rates[precision].latest == rates.latest
    run, other_run = state.runs["r-1"], again.runs["r-1"]
    assert plain_values(run.happened) == plain_values(other_run.happened)
    assert run.buckets == other_run.buckets


def test_wrong_unsupported_and_remembered_rates_are_known_again() -> None:
    device = stream(3)
    key = next(event.device for event in device if isinstance(event, events.Device))
    state = fold(device)
    base = {"device": key, "rate_ops_per_second": 5e14, "shape": (1, 1, 1)}
    wrong = events.RateMeasured(**at(5), precision="fp16", correct=False, **base)
    right = events.RateMeasured(**at(6), precision="fp16", correct=True, **base)
    refused = events.ProbeUnsupported(**at(7), device=key, precision="fp8", reason="no FP8")
    idle = events.ProberIdle(**at(8), device=key, reason="paused")
    for event in (wrong, right, refused, idle):
        state.apply(event, event.monotonic)
    earlier = events.RateMeasured(**at(-900), precision="fp64", correct=True, **base)
    state.remember(earlier)
    again = fold(known_events(state)).devices[key]
    assert again.rates["fp16"].wrong == wrong
    assert again.rates["fp16"].best == right
    assert again.rates["fp8"].unsupported == "no FP8"
    assert again.rates["fp64"].remembered == earlier
    assert again.rates["fp64"].is_remembered
    assert again.prober.idle_reason == "paused"


class FakeSession:
    def __init__(self) -> None:
        self.state = State()
        self.listeners: list = []

    def receive(self, event: events.AnyEvent) -> None:
        self.state.apply(event, event.monotonic)
        for listener in self.listeners:
            listener(event)


def finding(severity: str = "warn") -> events.Finding:
    return events.Finding(**at(1), code="slow", severity=severity, word="SLOW", title="slow")


def test_findings_are_told_when_they_begin_worsen_and_end(tmp_path: Path) -> None:
    session = FakeSession()
    recorder = Recorder(session, tmp_path / "a.jsonl")
    for present in ([], [finding()], [finding()], [finding("fail")], []):
        recorder._looked = float("-inf")
        recorder.look(present)
    assert recorder.close()
    told = [event for event in read(tmp_path / "a.jsonl") if isinstance(event, events.Finding)]
    assert [(one.severity, one.ended) for one in told] == [
        ("warn", False),
        ("fail", False),
        ("fail", True),
    ]


def test_a_recording_begun_late_tells_what_was_before(tmp_path: Path) -> None:
    session = FakeSession()
    for event in stream(10):
        session.receive(event)
    session.state.interval, session.state.sampling_since = 0.5, START
    recorder = Recorder(session, tmp_path / "a.jsonl")
    session.receive(events.HostSample(**at(20), cpu_busy_ratio=0.75))
    assert recorder.close()
    session.receive(events.HostSample(**at(21), cpu_busy_ratio=0.5))
    state = fold(read(tmp_path / "a.jsonl"))
    assert set(state.devices) == set(session.state.devices)
    assert state.interval == 0.5
    assert state.host_sample is not None
    assert state.host_sample.cpu_busy_ratio == 0.75
    assert session.listeners == []


def test_a_pause_is_told(tmp_path: Path) -> None:
    session = FakeSession()
    session.state.interval = 1.0
    recorder = Recorder(session, tmp_path / "a.jsonl")
    session.state.sampling_since = None
    recorder.look([])
    assert recorder.close()
    state = fold(read(tmp_path / "a.jsonl"))
    assert state.sampling_since is None

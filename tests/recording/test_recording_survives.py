"""Real recorders: killed, without room on the disk, of a simulated GPU, of a real training run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner, Result

from topsmon import events
from topsmon.cli import root
from topsmon.recording import index as index_module
from topsmon.recording import writer as writer_module
from topsmon.recording.reader import RecordingReader
from topsmon.recording.replay import ReplaySession
from topsmon.recording.writer import RecordingWriter

pytestmark = pytest.mark.real
HERE = Path(__file__).parent
Kind = TypeVar("Kind")
PATIENCE_SECONDS = 60.0
"""Long after what must happen has happened, on a machine that has much else to do."""


def numbers(path: Path) -> list[int]:
    reader = RecordingReader(path)
    return [int(event.device) for event in reader.read() if isinstance(event, events.ProberIdle)]


@pytest.mark.parametrize("name", ["a.topsmon.jsonl.zst", "a.jsonl"])
def test_a_kill_costs_nothing_that_was_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with subprocess.Popen(
        [sys.executable, str(HERE / "recorder_process.py"), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as recorder:
        assert recorder.stdout is not None
        seen = 0
        for line in recorder.stdout:
            if int(line) % 20 == 0 and (seen := len(read(path, events.ProberIdle))) > 60:
                recorder.kill()
                break
    found = numbers(path)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= seen > 60
    reader = RecordingReader(path)
    list(reader.read())
    assert reader.lost.cut or name == "a.jsonl"


def run_full_disk(path: Path, most: int) -> list[str]:
    ended = subprocess.run(
        [sys.executable, str(HERE / "full_disk_process.py"), str(path), str(most)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return ended.stdout.splitlines()


@pytest.mark.parametrize("name", ["a.topsmon.jsonl.zst", "a.jsonl"])
def test_a_limit_of_the_file_size_is_said_and_survived(tmp_path: Path, name: str) -> None:
    said = run_full_disk(tmp_path / name, 40_000)
    assert said == ["no room: File too large", "None", "True 0"]
    assert numbers(tmp_path / name) == list(range(5300))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB, where we may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("no right to mount a file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_is_said_and_survived(tiny_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "FLUSH_SECONDS", 0.02)
    monkeypatch.setattr(writer_module, "MOST_WAITING_BYTES", 20_000)
    told: list[str | None] = []
    report = RecordingWriter._report

    def noted(writer: RecordingWriter, problem: str | None) -> None:
        report(writer, problem)
        told.append(problem)

    monkeypatch.setattr(RecordingWriter, "_report", noted)
    filler = tiny_disk / "filler"
    filler.write_bytes(b"x" * 60_000)
    path = tiny_disk / "a.jsonl"
    writer = RecordingWriter(path)

    def write(begin: int, end: int) -> None:
        for number in range(begin, end):
            writer.write(
                events.ProberIdle(
                    time=1.0, monotonic=1.0, source="a", device=str(number), reason="x" * 50
                )
            )

    def wait(reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            assert time.monotonic() < deadline, writer.condition
            time.sleep(0.01)

    def written_since(moment: float) -> bool:
        now = writer.condition
        return now.problem is None and now.written is not None and now.written > moment

    write(0, 100)
    write(100, 1000)
    wait(lambda: any(told))
    assert "No space left on device" in next(problem for problem in told if problem)
    filler.unlink()
    now = time.monotonic()
    wait(lambda: written_since(now))
    lost = writer.condition.lost_lines
    write(1000, 1050)
    assert writer.close(PATIENCE_SECONDS)
    assert lost > 0
    found = numbers(path)
    assert found == sorted(found)
    assert found[-50:] == list(range(1000, 1050))
    reader = RecordingReader(path)
    list(reader.read())
    assert reader.lost.unwritten_lines == lost


def topsmon(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topsmon", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def wait_until(reached: Callable[[], bool], seconds: float = 2 * PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.1)


def read(path: Path, kind: type[Kind]) -> list[Kind]:
    """The events of a kind in a recording that is still being written."""
    try:
        return [event for event in RecordingReader(path).read() if isinstance(event, kind)]
    except Exception:  # noqa: BLE001  not begun yet
        return []


def in_process(*words: str) -> Result:
    return CliRunner().invoke(root, list(words), obj=())


def test_a_simulated_power_cap_is_recorded_and_shown_again(tmp_path: Path) -> None:
    path = tmp_path / "cap.topsmon.jsonl.zst"
    command = [sys.executable, "-m", "topsmon", "record", str(path), "--simulate", "power-cap"]
    with subprocess.Popen(
        [*command, "-i", "0.2", "--no-bench"], stderr=subprocess.PIPE, text=True
    ) as recorder:
        try:
            wait_until(lambda: any(one.word == "SLOW" for one in read(path, events.Finding)))
        finally:
            recorder.send_signal(signal.SIGINT)
        _, said = recorder.communicate(timeout=PATIENCE_SECONDS)
    assert recorder.returncode == 0, said
    assert f"recording into {path}" in said
    shown = in_process("replay", str(path))
    assert shown.stdout.startswith("REPLAY of cap.topsmon.jsonl.zst")
    assert "SIMULATED (power-cap)" in shown.stdout
    assert "SLOW" in shown.stdout
    report = in_process("report", str(path))
    assert report.exit_code == 0, report.output
    assert "SIMULATED (power-cap)" in report.stdout
    assert "| SLOW |" in report.stdout
    assert "SW power cap" in report.stdout or "| power |" in report.stdout


def test_a_training_run_is_recorded_killed_and_reported(tmp_path: Path) -> None:
    """A real run on the CPU; the recorder is killed while it goes on."""
    path = tmp_path / "run.topsmon.jsonl.zst"
    environment = {**os.environ, "TOPSMON_DIR": str(tmp_path / "runs")}
    command = [sys.executable, "-m", "topsmon"]
    with (
        subprocess.Popen(
            [*command, "demo", "amp", "--seconds", "600", "--device", "cpu"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        ) as training,
        subprocess.Popen(
            [*command, "record", str(path), "-i", "0.25", "--no-bench"],
            stderr=subprocess.PIPE,
            env=environment,
        ) as recorder,
    ):
        try:
            wait_until(lambda: len(read(path, events.RunSample)) > 3)
            seen = read(path, events.RunSample)[-1]
            recorder.kill()
        finally:
            recorder.kill()
            training.send_signal(signal.SIGINT)
    reader = RecordingReader(path)
    index = index_module.build(reader)
    assert index.end.wall >= seen.time
    assert index.lost.cut
    session = ReplaySession(reader, index, at=index.end.now)
    assert len(session.state.runs) == 1
    (run,) = session.state.runs.values()
    assert run.name == "demo amp"
    assert run.sample is not None
    assert run.sample.step >= seen.step > 0
    written = in_process("report", str(path), "-o", str(tmp_path / "r.html"))
    assert written.exit_code == 0, written.output
    page = (tmp_path / "r.html").read_text()
    assert "loss scale" in page
    assert "the end is cut off" in page
    table = in_process("export", str(path), "--trace", str(tmp_path / "t.json"))
    assert table.exit_code == 0, table.output
    names = {one["name"] for one in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert "demo amp scale" in names


def test_ctrl_c_and_sigterm_end_a_recording_cleanly(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        path = tmp_path / f"{number}.jsonl"
        with subprocess.Popen(
            [sys.executable, "-m", "topsmon", "record", str(path), "--no-bench", "-i", "0.2"],
            stderr=subprocess.PIPE,
            text=True,
        ) as recorder:
            try:
                wait_until(lambda: bool(read(path, events.DeviceSample)))  # noqa: B023
            finally:
                recorder.send_signal(number)
            _, said = recorder.communicate(timeout=PATIENCE_SECONDS)
        assert recorder.returncode == 0, said
        assert said.splitlines()[-1].startswith("topsmon: recorded ")
        reader = RecordingReader(path)
        list(reader.read())
        assert reader.lost.words() == []

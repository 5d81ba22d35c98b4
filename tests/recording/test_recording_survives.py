"""Real recorders: killed, without room on the disk, of a simulated GPU, of a real training run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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
PER_SECOND = 100
"""Events a second of the recorder that is killed, at the most."""


def numbers(path: Path) -> list[int]:
    reader = RecordingReader(path)
    return [int(event.device) for event in reader.read() if isinstance(event, events.ProberIdle)]


@pytest.mark.parametrize("name", ["a.topsmon.jsonl.zst", "a.jsonl"])
def test_a_kill_costs_less_than_a_second(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with subprocess.Popen(
        [sys.executable, str(HERE / "recorder_process.py"), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as recorder:
        assert recorder.stdout is not None
        last = 0
        for line in recorder.stdout:
            last = int(line)
            if last == 140:
                recorder.kill()
                break
    found = numbers(path)
    assert found == list(range(1, len(found) + 1))
    assert len(found) > last - PER_SECOND
    reader = RecordingReader(path)
    list(reader.read())
    assert reader.lost.cut or name == "a.jsonl"


def run_full_disk(path: Path, most: int) -> list[str]:
    ended = subprocess.run(
        [sys.executable, str(HERE / "full_disk_process.py"), str(path), str(most)],
        capture_output=True,
        text=True,
        timeout=60,
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

    def wait(problem: bool) -> None:
        deadline = time.monotonic() + 20
        while (writer.condition.problem is not None) != problem:
            assert time.monotonic() < deadline, writer.condition
            time.sleep(0.01)

    write(0, 100)
    write(100, 1000)
    wait(problem=True)
    assert "No space left on device" in (writer.condition.problem or "")
    filler.unlink()
    wait(problem=False)
    lost = writer.condition.lost_lines
    write(1000, 1050)
    assert writer.close()
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


def in_process(*words: str) -> Result:
    return CliRunner().invoke(root, list(words), obj=())


def test_a_simulated_power_cap_is_recorded_and_shown_again(tmp_path: Path) -> None:
    path = tmp_path / "cap.topsmon.jsonl.zst"
    ended = topsmon(
        "record", str(path), "--simulate", "power-cap", "--seconds", "4", "-i", "0.2", "--no-bench"
    )
    assert ended.returncode == 0, ended.stderr
    assert f"recording into {path}" in ended.stderr
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
            [*command, "demo", "amp", "--seconds", "60", "--device", "cpu"],
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
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not _steps(path):
                time.sleep(0.25)
            assert _steps(path), "no step was recorded"
            time.sleep(1.0)
            killed = time.time()
            recorder.kill()
        finally:
            recorder.kill()
            training.send_signal(signal.SIGINT)
    reader = RecordingReader(path)
    index = index_module.build(reader)
    assert index.end.wall > killed - 2.0  # a second, and what a loaded machine takes
    assert index.lost.cut
    session = ReplaySession(reader, index, at=index.end.now)
    assert len(session.state.runs) == 1
    (run,) = session.state.runs.values()
    assert run.name == "amp.py"
    assert run.sample is not None
    assert run.sample.step > 0
    written = in_process("report", str(path), "-o", str(tmp_path / "r.html"))
    assert written.exit_code == 0, written.output
    page = (tmp_path / "r.html").read_text()
    assert "loss scale" in page
    assert "the end is cut off" in page
    table = in_process("export", str(path), "--trace", str(tmp_path / "t.json"))
    assert table.exit_code == 0, table.output
    names = {one["name"] for one in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert "amp.py scale" in names


def _steps(path: Path) -> int:
    """The newest step in a recording that is still being written."""
    try:
        found = [one for one in RecordingReader(path).read() if isinstance(one, events.RunSample)]
    except Exception:  # noqa: BLE001  not begun yet
        return 0
    return found[-1].step if found else 0


def test_ctrl_c_and_sigterm_end_a_recording_cleanly(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        path = tmp_path / f"{number}.jsonl"
        with subprocess.Popen(
            [sys.executable, "-m", "topsmon", "record", str(path), "--no-bench", "-i", "0.2"],
            stderr=subprocess.PIPE,
            text=True,
        ) as recorder:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not (
                path.exists() and b'"type":"sample"' in path.read_bytes()
            ):
                time.sleep(0.1)
            recorder.send_signal(number)
            _, said = recorder.communicate(timeout=20)
        assert recorder.returncode == 0, said
        assert said.splitlines()[-1].startswith("topsmon: recorded ")
        reader = RecordingReader(path)
        list(reader.read())
        assert reader.lost.words() == []

"""Real processes: killed while writing, forked, many at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from topsmon.training.reader import RingReader
from topsmon.training.source import TrainingRuns

CHILD = Path(__file__).parent / "ring_child.py"
PATIENCE = 60.0

pytestmark = pytest.mark.real


def start(task: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), task],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_for_step(reader: RingReader, step: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while reader.newest_step < step:
        assert time.monotonic() < deadline
        reader.window()


def test_a_run_killed_while_writing_leaves_its_last_steps_and_none_is_torn(rings: Path) -> None:
    process = start("endless")
    try:
        path = Path(first_line(process))
        reader = RingReader(path)
        wait_for_step(reader, 6000)
        torn = 0
        # Read while it writes: what is believed is whole.
        for _ in range(50):
            for record in reader.window():
                torn += (record.loss, record.scale, record.skipped, record.growths) != (
                    record.step * 0.5,
                    record.step,
                    record.step,
                    record.step,
                )
        assert torn == 0
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    records = RingReader(path).window()
    # One slot at the most was being written, and it holds the newest step but for luck.
    assert len(records) >= 199
    assert [record.step for record in records][-100:] == list(
        range(records[-1].step - 99, records[-1].step + 1)
    )
    assert all(record.loss == record.step * 0.5 for record in records)
    assert all(record.skipped == record.growths == record.step for record in records)


def test_a_monitor_before_during_and_after_the_run_shows_the_same(rings: Path) -> None:
    before = TrainingRuns("host")
    assert before.poll() == []
    process = start("sleep")
    try:
        first_line(process)
        during = TrainingRuns("host")
        seen_during = [picture(event) for event in during.poll()]
        before._next_scan = 0.0
        seen_before = [picture(event) for event in before.poll()]
        assert seen_before == seen_during
        assert [one["type"] for one in seen_during] == [
            "Run",
            "RunHistory",
            "RunSample",
            "RunStatus",
        ]
        assert seen_during[-1]["condition"] == "running"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    (change,) = before.poll()
    assert picture(change)["condition"] == "gone"
    seen_after = [picture(event) for event in TrainingRuns("host").poll()]
    assert seen_after == [*seen_during[:-1], picture(change)]


def picture(event: object) -> dict[str, object]:
    stamps = {"time", "monotonic", "source"}
    fields = {
        name: getattr(event, name)
        for name in event.__struct_fields__  # type: ignore[attr-defined]
        if name not in stamps
    }
    return {"type": type(event).__name__, **fields}


def test_a_zombie_has_ended(rings: Path) -> None:
    process = start("sleep")
    try:
        first_line(process)
        source = TrainingRuns("host")
        assert picture(source.poll()[-1])["condition"] == "running"
        process.send_signal(signal.SIGKILL)
        # Waits for its end and leaves it a zombie.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert picture(source.poll()[-1])["condition"] == "gone"
    finally:
        process.kill()
        process.communicate()


def test_a_fork_s_child_writes_nothing_into_its_parent_s_ring_and_may_have_its_own(
    rings: Path,
) -> None:
    process = start("fork")
    output, _ = process.communicate(timeout=PATIENCE)
    status, path = output.split()
    assert status == "0"
    parent = RingReader(Path(path))
    assert [(record.step, record.loss) for record in parent.window()] == [
        (step, 1.0) for step in range(1, 8)
    ]
    assert parent.happenings() == []
    (other,) = [one for one in rings.iterdir() if one != Path(path)]
    child = RingReader(other)
    assert [record.loss for record in child.window()] == [2.0, 2.0]
    assert child.identity().process.pid != process.pid


def test_many_ranks_have_a_ring_each(rings: Path) -> None:
    processes = [start("rank", RANK=str(rank), WORLD_SIZE="8") for rank in range(8)]
    for process in processes:
        process.communicate(timeout=PATIENCE)
    readers = [RingReader(path) for path in rings.iterdir()]
    found = {reader.identity().run.rank: reader.window()[-1].step for reader in readers}
    assert found == {rank: 10 + rank for rank in range(8)}
    assert {reader.identity().run.world_size for reader in readers} == {8}

"""A ring whose file was removed: made anew whole, and followed by who was reading it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ring_runs import decode_record, new_run, values, write_steps

from topsmon import events
from topsmon.cli.root import root
from topsmon.training import discovery
from topsmon.training.reader import RingReader
from topsmon.training.recorder import folder
from topsmon.training.recorder.ring import RingWriter
from topsmon.training.source import TrainingRuns


@pytest.fixture
def two(rings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders in which runs may be recorded; the first is tried first."""
    second = tmp_path / "second"
    monkeypatch.setattr(folder, "candidates", lambda *_: (str(rings), str(second)))
    return rings, second


def poll(source: TrainingRuns) -> list[events.AnyEvent]:
    source._next_scan = 0.0
    return source.poll()


def kinds(found: list[events.AnyEvent]) -> list[str]:
    return [type(event).__name__ for event in found]


def removed_run(folder_of_it: Path) -> RingWriter:
    writer = new_run(model="Net", parameters=7)
    write_steps(writer, 1, 300, loss=1.5, step_seconds=0.1)
    writer.event("skip", 300)
    shutil.rmtree(folder_of_it)
    return writer


def test_only_a_file_without_a_name_is_removed(rings: Path) -> None:
    writer = new_run()
    assert not writer.removed()
    moved = Path(writer.path).rename(rings / "other.ring")
    assert not writer.removed()
    moved.unlink()
    assert writer.removed()
    writer.close()
    assert not writer.removed()


def test_all_that_was_written_is_in_the_new_file(two: tuple[Path, Path]) -> None:
    first, second = two
    writer = new_run(model="Net")
    write_steps(writer, 1, 300, loss=1.5)
    writer.event("skip", 300)
    before = Path(writer.path).read_bytes()
    shutil.rmtree(first)
    writer.make_anew(str(second), 0)
    path = Path(writer.path)
    assert (path.parent, path.read_bytes()) == (second, before)
    assert [entry.name for entry in second.iterdir()] == [path.name]
    assert (path.stat().st_mode & 0o777, path.stat().st_nlink) == (0o600, 1)
    assert not writer.removed()
    writer.write(values(301, loss=2.5))
    record = decode_record(path, 301)
    assert record is not None
    assert record["loss"] == 2.5


def test_readers_see_the_new_file_only_when_it_is_whole(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = removed_run(two[0])
    link, listed = os.link, []

    def linked(*args: str, **folders: int) -> None:
        (place,) = [place for place in discovery.places() if place.path == str(two[1])]
        listed.append(discovery.names(place))
        link(*args, **folders)
        with_name = RingReader(two[1] / discovery.names(place)[0])
        assert (with_name.identity().run.parameters, with_name.window()[-1].step) == (7, 300)
        with_name.close()

    monkeypatch.setattr(os, "link", linked)
    writer.make_anew(str(two[1]), 0)
    assert listed == [[]]


def test_a_file_of_the_same_name_is_not_replaced(two: tuple[Path, Path]) -> None:
    writer = removed_run(two[0])
    two[1].mkdir(mode=0o700)
    taken = two[1] / Path(writer.path).name
    taken.write_text("another container's")
    with pytest.raises(FileExistsError):
        writer.make_anew(str(two[1]), 0)
    assert taken.read_text() == "another container's"
    assert len(list(two[1].iterdir())) == 1
    writer.write(values(301))
    assert writer.failures == 0


def test_a_folder_that_others_may_write_to_is_refused(two: tuple[Path, Path]) -> None:
    writer = removed_run(two[0])
    two[1].mkdir(mode=0o777)
    two[1].chmod(0o777)
    with pytest.raises(folder.FolderError, match="chmod 700"):
        writer.make_anew(str(two[1]), 0)
    assert list(two[1].iterdir()) == []


def test_a_descriptor_that_the_run_has_closed_is_never_taken_for_ours(rings: Path) -> None:
    writer = new_run()
    number = writer._handle
    os.close(number)
    other = (rings / "checkpoint").open("w")
    # What a daemon does: all descriptors are closed, and numbers are given anew.
    os.dup2(other.fileno(), number)
    (rings / "checkpoint").unlink()
    assert not writer.removed()
    writer.close()
    os.fstat(number)
    os.close(number)
    other.close()


@pytest.mark.parametrize("back_in", [0, 1])
def test_a_monitor_goes_on_with_the_same_run(two: tuple[Path, Path], back_in: int) -> None:
    writer = new_run(model="Net")
    write_steps(writer, 1, 300, loss=1.0, step_seconds=0.1)
    writer.event("skip", 300)
    source = TrainingRuns("host")
    (run,) = [event for event in source.poll() if isinstance(event, events.Run)]
    shutil.rmtree(two[0])
    assert poll(source) == []
    writer.write(values(301, loss=2.0, step_seconds=0.1))
    assert kinds(poll(source)) == ["RunHistory", "RunSample"]
    writer.make_anew(str(two[back_in]), 0)
    assert poll(source) == []
    writer.write(values(302, loss=3.0, step_seconds=0.1))
    writer.event("growth", 302)
    _, sample, told = poll(source)
    assert isinstance(sample, events.RunSample)
    assert (sample.run, sample.step, sample.loss) == (run.run, 302, 3.0)
    assert isinstance(told, events.RunEvent)
    assert (told.run, told.number, told.kind) == (run.run, 2, "growth")
    writer.event("end", 302, "exit code 0", values={"exit_code": 0.0})
    status = poll(source)[-1]
    assert isinstance(status, events.RunStatus)
    assert (status.run, status.condition) == (run.run, "finished")


def test_a_file_of_another_run_under_the_same_name_is_another_run(
    two: tuple[Path, Path],
) -> None:
    writer = new_run()
    name = Path(writer.path).name
    source = TrainingRuns("host")
    source.poll()
    Path(writer.path).unlink()
    other = new_run(pid=12)
    Path(other.path).rename(two[0] / name)
    lost, *begun = poll(source)
    assert isinstance(lost, events.RunStatus)
    assert (lost.condition, lost.detail) == ("gone", "its ring file was removed")
    assert [event.pid for event in begun if isinstance(event, events.Run)] == [12]


def test_the_command_lists_each_rank_once_after_a_move(two: tuple[Path, Path]) -> None:
    ranks = [new_run(rank=rank) for rank in range(3)]
    for rank, writer in enumerate(ranks):
        write_steps(writer, 1, 10 + rank)
    shutil.rmtree(two[0])
    for writer in ranks[:2]:
        writer.make_anew(str(two[1]), 0)
    ranks[2].make_anew(str(two[0]), 0)
    found = json.loads(CliRunner().invoke(root, ["runs", "--json"]).output)["runs"]
    steps = sorted((run["identity"]["rank"], run["sample"]["step"]) for run in found)
    assert steps == [(0, 10), (1, 11), (2, 12)]


@pytest.mark.real
def test_a_forks_child_neither_holds_nor_moves_the_file(rings: Path) -> None:
    script = """
import os, sys
from ring_runs import new_run
writer = new_run()
number = writer._handle
child = os.fork()
if child == 0:
    os.unlink(writer.path)
    held = [os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{one}")]
    os._exit(1 if writer.removed() or any(".ring" in one for one in held) else 0)
_, status = os.waitpid(child, 0)
print(status, writer.removed())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["0", "True"]

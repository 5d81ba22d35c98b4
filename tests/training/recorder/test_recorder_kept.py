"""A run that outlives its login session: its file is removed, and comes back elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from topsmon.training.reader import RingReader
from topsmon.training.recorder import folder as folders
from topsmon.training.recorder import keeping
from topsmon.training.recorder.profile import StepProfile


@pytest.fixture
def places(tmp_path, monkeypatch, written):
    """Three folders as at a login: its own, which goes with it, then /dev/shm, then /tmp."""
    found = [tmp_path / name / "topsmon" for name in ("run-user", "shm", "tmp")]
    for place in found:
        place.parent.mkdir()
    monkeypatch.setattr(folders, "candidates", lambda *_: tuple(str(place) for place in found))
    return found


@pytest.fixture
def train(written, net):
    """Train so many steps; between them the file is due to be looked at."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def steps(count=1):
        for _ in range(count):
            written.recorder.keeper.due = 0.0
            optimizer.zero_grad()
            model(torch.ones(2, 16)).mean().backward()
            optimizer.step()

    return steps


def log_out(place):
    """As systemd-logind does: the session's folder goes with all that is in it."""
    shutil.rmtree(place.parent)


def test_the_run_goes_on_in_the_next_folder_with_all_its_steps(written, places, train):
    train(5)
    recorder = written.recorder
    name = Path(recorder.ring.path).name
    assert Path(recorder.ring.path).parent == places[0]
    log_out(places[0])
    train(3)
    assert Path(recorder.ring.path) == places[1] / name
    with_all = written.reader
    assert [record.step for record in with_all.window()] == list(range(1, 9))
    assert with_all.identity().run.parameters == 16 * 32 + 32 + 32 + 1
    assert with_all.identity().process.pid == os.getpid()
    # The newest 32 steps are not in the history before the end.
    recorder.ring.close()
    assert sum(bucket.steps for bucket in with_all.history()) == 8


def test_a_folder_that_has_lost_it_comes_last(written, places, train):
    train()
    log_out(places[0])
    train()
    places[0].parent.mkdir()  # the next login
    log_out(places[1])  # RemoveIPC=yes
    train()
    assert Path(written.recorder.ring.path).parent == places[2]
    log_out(places[2])
    train()
    assert Path(written.recorder.ring.path).parent == places[0]
    assert [record.step for record in written.reader.window()] == [1, 2, 3, 4]


def test_without_any_folder_it_waits_for_one_to_come_back(written, places, train):
    train()
    recorder = written.recorder
    for place in places:
        log_out(place)
    train(20)
    assert recorder.ring.removed()
    assert recorder.keeper.due > keeping.perf_counter() + keeping.LOOK_SECONDS
    places[0].parent.mkdir()
    train()
    assert Path(recorder.ring.path).parent == places[0]
    assert [record.step for record in written.reader.window()] == list(range(1, 23))


def test_it_is_looked_for_only_now_and_then(written, places, train, monkeypatch):
    looks = []
    look = keeping.Keeper.look
    monkeypatch.setattr(keeping.Keeper, "look", lambda keeper: (looks.append(1), look(keeper)))
    train()
    assert len(looks) == 1
    recorder = written.recorder
    recorder.keeper.due = 7.0
    for clock, expected in ((6.9, 1), (7.0, 2), (7.1, 2)):
        monkeypatch.setattr("topsmon.training.recorder.recorder.perf_counter", lambda c=clock: c)
        monkeypatch.setattr(keeping, "perf_counter", lambda c=clock: c)
        recorder.finish()
        assert len(looks) == expected
    assert recorder.keeper.due == 7.0 + keeping.LOOK_SECONDS


def test_whoever_always_removes_it_is_heeded_in_the_end(places, train, written):
    recorder = written.recorder
    train()
    removed = 0
    while recorder.on:
        Path(recorder.ring.path).unlink()
        removed += 1
        train()
        assert removed < 20
    assert removed == keeping.REMOVALS_MAX + 1
    assert "was removed 9 times" in recorder.trouble
    recorder.trouble = ""
    assert [entry for place in places for entry in place.glob("*")] == []


def test_a_profile_lies_beside_the_new_file():
    profile = StepProfile("3", "/first/a.ring")
    profile.place("/second/a.ring")
    assert profile._stem == Path("/second/a.step3")


@pytest.mark.real
def test_the_end_is_told_in_the_new_file_and_a_childs_run_is_its_own(tmp_path):
    script = """
        import os, shutil, sys
        import torch
        from topsmon.training.recorder import folder, install
        first, second = sys.argv[1:]
        folder.candidates = lambda *_: (first, second)
        install.install()
        torch.set_num_threads(1)

        def train(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).mean().backward()
                optimizer.step()

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train(3)
        child = os.fork()
        train(2)
        if child:
            os.waitpid(child, 0)
            shutil.rmtree(first)
            sys.exit(3)
        os._exit(0)
    """
    first, second = tmp_path / "first", tmp_path / "second"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), str(first), str(second)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    assert not first.exists()
    (path,) = second.iterdir()
    reader = RingReader(path)
    (end,) = [happening for _, happening in reader.happenings() if happening.kind == "end"]
    assert (end.step, end.values) == (5, {"exit_code": 3.0})
    assert [record.step for record in reader.window()] == [1, 2, 3, 4, 5]

"""Which runs belong together, in which order, and which one the cursor stands on."""

from __future__ import annotations

import pytest
from screen_demo import NOW, stamp
from training_runs import (
    Training,
    backward_overflow,
    collapsing,
    crashed,
    finished,
    healthy,
    killed,
    ranks,
    status,
    with_runs,
)

from topsmon import events
from topsmon.diagnosis import of_run
from topsmon.state import State
from topsmon.tui.training.launches import RECENT_SECONDS, launches
from topsmon.tui.training.watched import Watched
from topsmon.tui.training.words import (
    command_name,
    full_name,
    last_words,
    number,
    seconds_text,
    speed_text,
    state_word,
)


def state_of(*sources) -> State:
    return with_runs(State(), *sources)


def commands(state: State) -> list[str]:
    return [command_name(one.first.identity, 60) for one in launches(state.runs.values())]


def identity(**values) -> events.Run:
    given = {"run": "r", "pid": 7, "hostname": "h", "started": 0.0}
    return events.Run(**stamp(), **{**given, **values})


def test_living_launches_come_first_then_those_that_ended_last() -> None:
    state = state_of(killed(), finished(), healthy(), crashed(), collapsing())
    assert commands(state) == [
        "finetune.py --fp16",
        "train.py --config configs/base.yaml",
        "train.py --batch 64",
        "train.py --epochs 1",
        "pretrain.py",
    ]


def test_ranks_of_one_launch_are_one_launch_in_order() -> None:
    state = state_of(list(reversed(ranks(4, slow=2))), healthy())
    by_size = {len(one.members): one for one in launches(state.runs.values())}
    assert set(by_size) == {1, 4}
    assert [run.identity.rank for run in by_size[4].members] == [0, 1, 2, 3]


def test_ranks_without_a_launch_are_joined_by_command_and_start() -> None:
    def rank(number: int, started: float, key: str) -> events.Run:
        return identity(run=key, command="python a.py", rank=number, world_size=2, started=started)

    state = State()
    first = [rank(0, 10.0, "a0"), rank(1, 12.0, "a1")]
    again = [rank(0, 40.0, "b0"), rank(1, 41.0, "b1")]
    later = [rank(0, 500.0, "c0")]
    for event in [*first, *again, *later]:
        state.apply(event, NOW)
    found = [[run.key for run in one.members] for one in launches(state.runs.values())]
    assert found == [["c0"], ["b0", "b1"], ["a0", "a1"]]


def test_an_ended_launch_is_news_for_ten_minutes() -> None:
    old, new = state_of(killed()), state_of(crashed())
    assert not launches(old.runs.values())[0].recent(NOW)
    (launch,) = launches(new.runs.values())
    assert launch.recent(NOW)
    assert launch.recent(NOW + RECENT_SECONDS - 200)
    assert not launch.recent(NOW + RECENT_SECONDS)


def test_a_launch_lives_while_one_rank_does() -> None:
    source = ranks(3, slow=None)
    state = state_of(source, [status("1780000010-3001-1", "failed", "exit code 1", 30.0, 1)])
    (launch,) = launches(state.runs.values())
    assert launch.living
    words = [state_word(run, of_run(state, run.key, NOW))[0] for run in launch.members]
    assert words == ["ok", "FAILED", "ok"]


def test_the_cursor_begins_at_the_worst_living_run_and_stays_where_it_is_put() -> None:
    state = state_of(healthy(), collapsing(), killed())
    watched = Watched()
    assert watched.update(state, NOW).selected.identity.pid == 6200
    watched.move(1)
    assert watched.update(state, NOW).selected.identity.pid == 48213
    watched.move(1)
    assert watched.update(state, NOW).selected.identity.pid == 9600
    watched.move(1)
    assert watched.update(state, NOW).selected.identity.pid == 9600
    watched.move(-9)
    assert watched.update(state, NOW).selected.identity.pid == 6200
    state.apply(status("1780000002-6200-0", "killed", "signal SIGKILL", 1.0, 137), NOW)
    assert watched.update(state, NOW + 2).selected.identity.pid == 6200


def test_ranks_are_walked_within_their_launch_and_listed_one_by_one() -> None:
    state = state_of(ranks(3, slow=None), healthy())
    watched = Watched()
    watched.update(state, NOW)
    while watched.update(state, NOW).selected.identity.rank is None:
        watched.move(1)
    assert len(watched.training.rows) == 2
    assert watched.training.selected.identity.rank == 0
    watched.move_rank(1)
    assert watched.update(state, NOW).selected.identity.rank == 1
    watched.move_rank(9)
    assert watched.update(state, NOW).selected.identity.rank == 2
    watched.fold()
    training = watched.update(state, NOW)
    assert len(training.rows) == 4
    assert training.selected.identity.rank == 2
    watched.fold()
    assert watched.update(state, NOW).selected.identity.rank == 2
    watched.move_rank(-9)
    assert watched.update(state, NOW).selected.identity.rank == 0


def test_an_ended_run_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import topsmon.diagnosis as diagnosis

    asked: list[str] = []

    def counted(state, key, now):
        asked.append(key)
        return of_run(state, key, now)

    monkeypatch.setattr(diagnosis, "of_run", counted)
    state, watched = state_of(crashed(), healthy()), Watched()
    for tick in range(4):
        state.apply(healthy(steps=100 + tick)[-1], NOW)
        watched.update(state, NOW + tick * 0.5)
    assert asked.count("1780000005-9500-0") == 1
    assert asked.count("1780000000-48213-0") == 2


def test_without_runs_nothing_is_selected() -> None:
    watched = Watched()
    watched.update(State(), NOW)
    watched.move(1)
    watched.move_rank(1)
    watched.fold()
    training = watched.update(State(), NOW)
    assert training.selected is None
    assert training.rows == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --epochs 3", "train.py --epochs 3"),
        ("/usr/bin/python3.11 /home/u/src/train.py", "train.py"),
        ("python -m pkg.train --amp", "pkg.train --amp"),
        ("python", "python"),
        ("", "PID 7"),
        ("./run.sh a", "run.sh a"),
    ],
)
def test_a_run_is_called_after_its_script(command: str, name: str) -> None:
    assert command_name(identity(command=command), 60) == name


def test_full_names_tell_the_rank() -> None:
    assert full_name(identity(command="python a.py", rank=3, world_size=8)) == (
        "a.py  PID 7  rank 3 of 8"
    )


@pytest.mark.parametrize(
    ("source", "word", "words"),
    [
        (crashed, "FAILED", "exit code 1: OutOfMemoryError: CUDA out of memory."),
        (killed, "KILLED", "signal SIGKILL"),
        (finished, "done", "exit code 0"),
        (healthy, "ok", ""),
        (backward_overflow, "SKIP", ""),
    ],
)
def test_every_state_has_a_word_and_its_last_words(source, word: str, words: str) -> None:
    state = state_of(source())
    (run,) = state.runs.values()
    findings = of_run(state, run.key, NOW)
    if word == "SKIP":
        word = findings[0].word
    assert state_word(run, findings)[0] == word
    assert last_words(run).startswith(words)


def test_a_silent_run_says_so() -> None:
    state = state_of(Training(50).events(), [status("1780000000-48213-0", "silent", "", 90.0)])
    (run,) = state.runs.values()
    assert state_word(run, ())[0] == "SILENT"
    assert last_words(run) == "no step for long"
    assert not run.ended


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (2.18349, "2.183"), (-0.5, "-0.5000"), (1e-7, "1.00e-07"),
     (87591.4, "87591"), (2.5e9, "2.50e+09")],
)  # fmt: skip
def test_losses_and_norms_have_four_digits(value: float | None, text: str) -> None:
    assert number(value, "-") == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0.00831, "8.31 ms"), (0.215, "215 ms"), (1.24, "1.24 s")]
)
def test_step_times(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_speed_is_in_tokens_where_they_are_known() -> None:
    assert speed_text(events.RunWindow(steps=1, tokens_per_second=38_100.0)) == "38.1k tokens/s"
    assert speed_text(events.RunWindow(steps=1, samples_per_second=37.2)) == "37.2 samples/s"
    assert speed_text(events.RunWindow(steps=1)) == ""

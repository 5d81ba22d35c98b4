"""Findings of several ranks: said once where they are alike, by rank where they are not."""

from __future__ import annotations

from typing import Any

from watched_runs import NOW, event, run, sample, status

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.report import training as report
from topsmon.state import State

BAD = {"kind": "nonfinite-gradients", "step": 998}


def launch(*bad: tuple[str, ...], skipped: tuple[int, ...] = (), **identity: Any) -> State:
    """Ranks of one launch in whose newest steps these parameters overflowed."""
    state = State()
    for rank, names in enumerate(bad):
        key = f"rank-{rank}"
        own = {"rank": rank, "world_size": len(bad), "pid": 100 + rank, **identity}
        count = skipped[rank] if skipped else 20
        made = (
            run(run=key, launch="one", **own),
            sample(
                1000,
                {"skipped": count},
                {"skipped": count, "backward_overflows": count, "last_skip_step": 1000},
                run=key,
                skipped=True,
                skip_streak=4,
            ),
            event(
                **BAD,
                run=key,
                names=names,
                values={"bad": float(len(names)), "parameters": 40.0},
            ),
            status("running", run=key),
        )
        for one in made:
            state.apply(one, NOW - 1)
    return state


def overflow(state: State) -> events.Finding:
    (found,) = [one for one in diagnose(state, NOW) if one.code == "backward-overflow"]
    return found


def test_ranks_with_the_same_words_are_one() -> None:
    found = overflow(launch(("a.weight",), ("a.weight",)))
    assert found.title == (
        "train.py ranks 0-1  non-finite gradients in the backward pass: "
        "1 of 40 parameters (a.weight)"
    )
    assert found.evidence == (
        "20 steps skipped with a finite loss, loss scale 65536",
        "step 998: a.weight",
    )


def test_the_names_of_one_rank_are_not_told_as_those_of_all() -> None:
    found = overflow(launch(("a.weight",), ("b.weight", "b.bias")))
    assert found.title == (
        "train.py rank 0  non-finite gradients in the backward pass: "
        "1 of 40 parameters (a.weight), and 1 more rank"
    )
    assert found.evidence[-1] == (
        "rank 1: non-finite gradients in the backward pass: 2 of 40 parameters (b.weight, b.bias): "
        "likely origin: b, the last bad layer in forward order, or the loss after it"
    )


def test_evidence_that_differs_says_whose_it_is() -> None:
    found = overflow(launch(("a.weight",), ("a.weight",), skipped=(20, 30)))
    assert "ranks 0-1" in found.title
    assert found.evidence == (
        "rank 0: 20 steps skipped with a finite loss, loss scale 65536",
        "step 998: a.weight",
    )


def test_of_many_different_ranks_some_are_quoted_and_the_rest_counted() -> None:
    names = [(f"layer{rank}.weight",) for rank in range(7)]
    found = overflow(launch(*names, ("layer1.weight",)))
    assert found.title.startswith("train.py rank 0  ")
    assert found.title.endswith("(layer0.weight), and 7 more ranks")
    quoted = [line.split(":")[0] for line in found.evidence[2:]]
    assert quoted == ["ranks 1, 7", "rank 2", "rank 3", "3 more with words of their own"]


def test_processes_without_ranks_are_called_by_their_pid() -> None:
    found = overflow(launch(("a.weight",), ("b.weight",), rank=None, world_size=None))
    assert found.title.startswith("train.py PID 100  ")
    assert found.title.endswith("(a.weight), and 1 more process")
    assert found.evidence[-1].startswith("PID 101: ")


def test_the_summary_at_the_end_says_it_by_rank_too() -> None:
    state = launch(("a.weight",), ("b.weight",))
    text = report.summary(list(state.runs.values()), state, NOW)
    words = " ".join(text.split())
    assert (
        "SKIP rank 0: non-finite gradients in the backward pass: 1 of 40 parameters (a.weight), "
        "and 1 more rank"
    ) in words
    assert "rank 1: non-finite gradients in the backward pass: 1 of 40 parameters (b.weight)" in (
        words
    )

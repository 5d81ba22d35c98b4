"""Of ranks that go bad one after the other, the first leads and sets the checkpoint to go back to.

Rank 1 meets a NaN input in step 51; the all-reduce of that step's gradients carries it into the
weights of rank 0, whose loss is not finite from step 52 on.
"""

from __future__ import annotations

from watched_runs import NOW, event, run, sample

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.report import training as report
from topsmon.state import State

FIRST_BAD = (52, 51)


def launch() -> State:
    state = State()
    for rank, first in enumerate(FIRST_BAD):
        key = f"rank-{rank}"
        bad = {"nonfinite_losses": 81 - first}
        for one in (
            run(run=key, launch="one", rank=rank, world_size=2, pid=100 + rank, scaler=None),
            sample(
                80,
                bad,
                {**bad, "first_nonfinite_loss_step": first},
                run=key,
                scale=None,
                autocast=None,
                loss=None,
                loss_finite=False,
            ),
            event("nonfinite-weights", first, run=key, names=("0.weight",)),
        ):
            state.apply(one, NOW - 1)
    return state


def found(code: str) -> events.Finding:
    (one,) = [one for one in diagnose(launch(), NOW) if one.code == code]
    return one


def test_the_rank_that_had_it_first_leads() -> None:
    weights = found("weights-nan")
    assert weights.title == (
        "train.py rank 1  weights are NaN or inf, seen at step 51, and 1 more rank"
    )
    assert "rank 0: weights are NaN or inf, seen at step 52" in weights.evidence
    assert "first at step 51, and 1 more rank" in found("loss-nan-no-scaler").title


def test_the_checkpoint_is_from_before_the_first_bad_step_of_all_ranks() -> None:
    assert "a checkpoint from before step 51 " in found("weights-nan").remedy
    state = launch()
    for rank in state.runs.values():
        own = {one.code: one for one in report.of_run(state, rank.key, NOW)}
        assert "a checkpoint from before step 51 " in own["weights-nan"].remedy


def test_the_summary_is_headed_by_that_rank() -> None:
    state = launch()
    lines = report.summary(state.ordered_runs(), state, NOW).splitlines()
    assert lines[1].startswith("  rank 1: FAIL: weights are NaN or inf, seen at step 51")
    assert lines[2] == "  numbers of rank 1"
    assert report.lines(state, NOW)[0].startswith("train.py rank 1  running")

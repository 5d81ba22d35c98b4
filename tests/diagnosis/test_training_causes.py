"""What is named as the cause: the first step, the time before it, the rank that began it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from watched_runs import (
    KEY,
    NOW,
    bad_losses,
    event,
    findings,
    folded,
    good,
    run,
    sample,
    skips,
    stamp,
    status,
    watched,
)

from topsmon import events
from topsmon.diagnosis import diagnose, of_run
from topsmon.report import training
from topsmon.state import State

RUINED: dict[str, Any] = {
    "names": ("0",),
    "message": "Linear, whose own weights are not finite",
    "values": {"weights_finite": 0.0},
}


def history(*losses: float | None, first: int = 1) -> events.RunHistory:
    """One bucket a step; None is a loss that is not finite."""
    buckets = tuple(
        events.HistoryBucket(
            first_step=step,
            steps=1,
            skipped=0,
            loss_mean=loss,
            nonfinite_losses=int(loss is None),
        )
        for step, loss in enumerate(losses, first)
    )
    return events.RunHistory(**stamp(), run=KEY, stride=1, buckets=buckets)


def lost(step: int, first: int) -> events.RunSample:
    """Without a scaler: the loss is NaN from the step `first` on."""
    bad = step - first + 1
    return sample(
        step,
        {"nonfinite_losses": bad},
        {"nonfinite_losses": bad, "first_nonfinite_loss_step": first, "scale_lowest": None},
        scale=None,
        loss=None,
        loss_finite=False,
        autocast=None,
    )


def weights_seen(*steps: int) -> list[events.RunEvent]:
    return [
        event("nonfinite-weights", step, number, names=("0.weight",))
        for number, step in enumerate(steps, 1)
    ]


def test_weights_are_bad_from_the_first_look_of_the_present_streak() -> None:
    plain = run(scaler=None)
    found = findings(plain, lost(5, 3), *weights_seen(3, 4, 5))["weights-nan"]
    assert found.title == "weights are NaN or inf, seen at step 3"
    assert "from before step 3 " in found.remedy
    restored = history(*[1.0] * 10, None, *[1.0] * 10, None, None)
    again = findings(plain, restored, lost(23, 22), *weights_seen(11, 22, 23))["weights-nan"]
    assert again.title == "weights are NaN or inf, seen at step 22"
    # Seen late: the loss has told it before.
    late = findings(plain, lost(400, 150), *weights_seen(200, 400))["weights-nan"]
    assert late.title == "weights are NaN or inf, seen at step 200"
    assert "from before step 150 " in late.remedy


def test_a_look_that_came_too_late_blames_no_module() -> None:
    look = event("nonfinite-output", 5, **RUINED)
    found = findings(run(scaler=None), lost(5, 3), look)["loss-nan-no-scaler"]
    assert "already ruined when looked at (step 5)" in found.cause
    assert "where it began at step 3 is not known" in found.cause
    assert "first bad output" not in found.cause


def test_a_loss_that_exploded_before_it_was_lost() -> None:
    look = event("nonfinite-output", 8, **RUINED)
    diverged = history(2.0, 1.0, 2.0, 50.0, 4e5, None, None, None)
    found = findings(run(scaler=None), lost(8, 6), diverged, look)["loss-nan-no-scaler"]
    assert "training diverged" in found.cause
    # The median of 2, 1, 2 and 50 is 2.
    assert "loss rose from about 2 to 4e+05 at step 5" in found.evidence
    assert "Lower the learning rate" in found.remedy
    steady = history(2.0, 1.0, 2.0, 1.5, 1.2, None, None, None)
    calm = findings(run(scaler=None), lost(8, 6), steady, look)["loss-nan-no-scaler"]
    assert "learning rate" not in calm.remedy


@pytest.mark.parametrize(("kind", "told"), [("float16", True), ("float32", False)])
def test_fp16_weights_without_a_master_copy(kind: str, told: bool) -> None:
    who = run(scaler=None, parameter_types={f"torch.{kind}": 577})
    found = findings(who, lost(8, 2), event("nonfinite-output", 3, **RUINED))["loss-nan-no-scaler"]
    assert ("trained weights in FP32" in found.remedy) is told
    assert any("FP16, without a master copy" in line for line in found.evidence) is told


# Several ranks ----------------------------------------------------------------------------------


def ranks(*each: list[Any]) -> State:
    """Rank 0, 1, ... of one launch with these events, which name no run."""
    state = State()
    for rank, found in enumerate(each):
        key = f"rank-{rank}"
        identity = run(run=key, rank=rank, world_size=len(each), launch="one", pid=4711 + rank)
        for one in (identity, *found):
            named = one if one is identity else msgspec.structs.replace(one, run=key)
            state.apply(named, NOW - 1)
    return state


def test_a_rank_whose_gradients_come_from_a_rank_with_nan_is_not_blamed() -> None:
    state = ranks([folded([*good(30), *skips(30)])], [folded([*good(30), *bad_losses(30)])])
    victim = {one.code: one for one in of_run(state, "rank-0", NOW)}
    assert victim["consecutive-skips"].cause.startswith("rank 1: its loss is not finite")
    assert victim["consecutive-skips"].title == "30 steps in a row are skipped because of rank 1"
    assert "learning rate" not in victim["consecutive-skips"].remedy
    assert "backward-overflow" not in victim
    shown = training.summary(state.ordered_runs(), state, NOW).splitlines()
    assert shown[1].startswith("  rank 1: NAN: loss is not finite in 30 steps, first at step 31")
    titles = [one.title for one in diagnose(state, NOW) if one.run is not None]
    assert "rank 1  loss is not finite" in titles[0]
    listed = " ".join(line.strip() for line in training.lines(state, NOW))
    assert listed.index("rank 1  running") < listed.index("rank 0  running")


def test_skips_long_before_another_rank_was_bad_are_its_own() -> None:
    own = folded([*good(100), *skips(30), *good(5)])
    later = folded([*good(130), *bad_losses(5)])
    found = {one.code: one for one in of_run(ranks([own], [later]), "rank-0", NOW)}
    assert "rank 1" not in found["consecutive-skips"].cause


CLOSED = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:31337 " * 4


def test_the_rank_that_died_first_is_named() -> None:
    raised = event("exception", 100, names=("RuntimeError",), message=CLOSED)
    followed = [sample(100), raised, status("failed", 5.0, detail=f"RuntimeError: {CLOSED}")]
    gone = [sample(100), status("gone", 6.0, detail="ended without a word")]
    state = ranks(followed, gone, followed)
    shown = training.summary(state.ordered_runs(), state, NOW)
    lines = shown.splitlines()
    assert lines[0].endswith("ranks 0, 2 failed; rank 1 gone")
    assert lines[1].startswith("  rank 1: FAIL: the run is gone after 100 steps")
    assert "ranks 0, 2: the run failed after 100 steps: rank 1 had ended before" in shown
    assert shown.count("RuntimeError") == 1
    alone = of_run(ranks(followed), "rank-0", NOW)[0]
    assert "Connection closed by peer" in alone.title
    assert alone.title.endswith("...")


@pytest.mark.parametrize(
    "changes",
    [
        {"detail": "KeyboardInterrupt"},
        {"detail": "exit code 130", "exit_code": 130},
        {"detail": "exit code 143", "exit_code": 143},
    ],
)
def test_an_interrupted_run_has_not_failed(changes: dict[str, Any]) -> None:
    state = watched(sample(200), status("failed", **changes))
    (found,) = of_run(state, KEY, NOW)
    assert (found.severity, found.title) == ("info", "interrupted after 200 steps")
    line = training.verdict(state.runs[KEY], (found,))
    assert line == (
        "interrupted after 200 steps; until then mixed precision healthy: scale 65536, "
        "no step of 200 skipped"
    )


def test_a_stopped_run_says_how_it_goes_on() -> None:
    found = findings(sample(), status("silent", 40.0, detail="stopped (Ctrl-Z or SIGSTOP)"))
    assert found["run-silent"].severity == "warn"
    assert found["run-silent"].command == "kill -CONT 4711"


def test_the_first_scale_belongs_to_the_range_where_the_first_step_was_skipped() -> None:
    # 65536 -> 32768 in the first step, recorded after it.
    state = watched(folded([*skips(1), *good(30)]))
    assert state.runs[KEY].scale_highest == 65536.0
    assert watched(folded(good(30))).runs[KEY].scale_highest == 65536.0
    early = folded([*good(1), *skips(1), *good(30)], KEPT)
    assert watched(run(scaler=KEPT), early).runs[KEY].scale_highest == 1024.0


KEPT = events.Scaler(kind="GradScaler", init_scale=1024.0, backoff_factor=0.5, growth_interval=2000)

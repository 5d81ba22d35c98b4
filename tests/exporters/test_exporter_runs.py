"""Training runs as metrics: mixed precision, MFU, and a bounded number of series."""

from __future__ import annotations

import pytest
from exported_machines import (
    GPU,
    NOW,
    RUN,
    WALL,
    ceilings,
    named,
    run,
    run_sample,
    scrape,
    state,
    status,
    value,
)
from hypothesis import given
from hypothesis import strategies as st

from topsmon import events
from topsmon.exporters.prometheus import Exported
from topsmon.exporters.run_metrics import Slots
from topsmon.state import State

OF_RUN = {"run": "0", "rank": "0"}


def test_mixed_precision_of_a_run() -> None:
    series = scrape(state(ceilings(), run(), run_sample()))
    expected = {
        "topsmon_amp_loss_scale": 32768.0,
        "topsmon_amp_skipped_steps_total": 3.0,
        "topsmon_amp_skip_streak": 1.0,
        "topsmon_amp_scale_growths_total": 1.0,
        "topsmon_amp_scale_backoffs_total": 3.0,
        "topsmon_run_nonfinite_losses_total": 2.0,
        "topsmon_run_steps_total": 1000.0,
        "topsmon_run_tokens_total": 8_192_000.0,
        "topsmon_run_step_seconds": 0.5,
        "topsmon_run_loss": 2.5,
        "topsmon_run_last_step_timestamp_seconds": WALL - 1.0,
    }
    assert {name: value(series, name, **OF_RUN) for name in expected} == expected


def test_mfu_is_model_flops_over_the_ceiling_of_the_runs_precision() -> None:
    series = scrape(state(ceilings(), run(), run_sample()))
    labels = {**OF_RUN, "precision": "bf16"}
    assert value(series, "topsmon_run_model_flops_per_second", **labels) == 4e14
    assert value(series, "topsmon_run_ceiling_flops_per_second", **labels) == 989.4e12
    assert value(series, "topsmon_run_mfu_ratio", **labels) == pytest.approx(4e14 / 989.4e12)


def test_a_run_without_a_scaler_has_no_scale_and_no_skips() -> None:
    series = scrape(state(run(scaler=None), run_sample(scale=None)))
    assert not [name for name, _ in series if name.startswith("topsmon_amp_")]


def test_a_loss_that_nobody_sees_is_not_one_that_is_always_finite() -> None:
    unseen = run_sample(loss=None, loss_finite=None, totals=events.RunTotals(steps=5))
    series = scrape(state(run(), unseen))
    assert value(series, "topsmon_run_nonfinite_losses_total", **OF_RUN) is None
    assert value(series, "topsmon_run_tokens_total", **OF_RUN) is None
    assert value(series, "topsmon_run_steps_total", **OF_RUN) == 5


def test_the_last_totals_stay_for_a_while_after_the_end() -> None:
    made = state(run(), run_sample(), status("failed"))
    early, late = scrape(made, NOW + 299.0), scrape(made, NOW + 301.0)
    assert value(early, "topsmon_run_steps_total", **OF_RUN) == 1000
    assert value(early, "topsmon_run_step_seconds", **OF_RUN) is None
    assert value(early, "topsmon_amp_loss_scale", **OF_RUN) is None
    assert value(late, "topsmon_run_steps_total", **OF_RUN) is None
    assert named(late, "topsmon_runs")[("condition", "failed"),] == 1


def machine(*lives: tuple[str, bool]) -> State:
    """Runs by their key; False: ended just now."""
    made = State()
    for key, alive in lives:
        made.apply(run(key, rank=None, device_uuid=None), NOW)
        made.apply(run_sample(key), NOW)
        if not alive:
            made.apply(status("finished", key), NOW)
    return made


def test_a_run_keeps_its_number_and_a_free_one_is_given_again() -> None:
    slots = Slots(3)
    first = slots.assign(machine(("a", True), ("b", True)), NOW)
    assert sorted(first.values()) == [0, 1]
    second = slots.assign(machine(("b", True), ("c", True), ("d", True)), NOW)
    assert second["b"] == first["b"]
    assert sorted(second.values()) == [0, 1, 2]


def test_a_run_that_lives_goes_before_one_that_has_ended() -> None:
    slots = Slots(1)
    assert slots.assign(machine(("old", False)), NOW) == {"old": 0}
    assert slots.assign(machine(("old", False), ("new", True)), NOW) == {"new": 0}


def test_runs_beyond_the_limit_are_counted() -> None:
    exported = Exported(machine(("a", True), ("b", True), ("c", True)), slots=Slots(2))
    series = scrape(exported)
    assert named(series, "topsmon_runs_left_out") == {(): 1.0}
    assert len(named(series, "topsmon_run_steps_total")) == 2


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans())), max_size=6),
    st.integers(0, 4),
)
def test_numbers_are_few_and_each_is_given_once(
    times: list[list[tuple[str, bool]]], most: int
) -> None:
    slots = Slots(most)
    before: dict[str, int] = {}
    for lives in times:
        made = machine(*lives)
        numbers = slots.assign(made, NOW)
        assert len(set(numbers.values())) == len(numbers) <= most
        assert set(numbers.values()) <= set(range(most))
        assert set(numbers) <= set(made.runs)
        for key in set(numbers) & set(before):
            assert numbers[key] == before[key]
        before = numbers


def test_ranks_are_told_apart() -> None:
    made = state(run("a", rank=0), run_sample("a"), run("b", rank=1), run_sample("b"))
    found = {dict(labels)["rank"] for labels in named(scrape(made), "topsmon_run_steps_total")}
    assert found == {"0", "1"}
    assert RUN not in made.runs
    assert GPU in made.devices

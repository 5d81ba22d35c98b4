"""Charts of a whole run: what stands at which column and height, and how the axes are labelled."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from screen_demo import NOW, stamp
from training_runs import Training, collapsing, healthy, with_runs

from topsmon import events
from topsmon.run_state import RunState
from topsmon.state import State
from topsmon.tui.glyphs import ASCII, UTF8
from topsmon.tui.training import history
from topsmon.tui.training.history import Axis, nice_step, scale_axis, steps_of, value_axis
from topsmon.tui.training.plots import mark_sign


def run_of(source: list[events.AnyEvent]) -> RunState:
    return next(iter(with_runs(State(), source).runs.values()))


def run_with(buckets: list[events.HistoryBucket], stride: int = 1) -> RunState:
    run = RunState(events.Run(**stamp(), run="r", pid=1, hostname="h", started=0.0))
    run.apply(events.RunHistory(**stamp(), run="r", stride=stride, buckets=tuple(buckets)), NOW)
    return run


def bucket(first: int, steps: int = 1, **values) -> events.HistoryBucket:
    return events.HistoryBucket(first_step=first, steps=steps, skipped=0, **values)


@given(st.integers(1, 256), st.sampled_from([1, 2, 64, 4096]))
def test_the_axis_of_steps_holds_the_run_and_little_more(used: int, stride: int) -> None:
    run = run_with([bucket(1 + place * stride, stride) for place in range(used)], stride)
    steps = steps_of(run)
    assert steps.buckets >= used
    assert steps.buckets <= max(8, math.ceil(used * 1.25))
    assert steps.last == steps.buckets * stride


def test_the_axis_of_steps_grows_seldom() -> None:
    lengths = {
        steps_of(run_with([bucket(place + 1) for place in range(used)])).buckets
        for used in range(1, 257)
    }
    assert len(lengths) <= 256 / 5


@given(st.integers(1, 256), st.integers(1, 500))
def test_every_bucket_is_in_a_column_and_in_order(used: int, count: int) -> None:
    run = run_with([bucket(place + 1) for place in range(used)])
    found = history.columns(run, steps_of(run), count)
    assert len(found) == count
    shown = [one.first_step for column in found for one in column]
    assert shown == sorted(shown)
    if count <= steps_of(run).buckets:
        assert shown == list(range(1, used + 1))
    else:
        assert set(shown) == set(range(1, used + 1))


def test_columns_take_extremes_and_the_mean_by_steps() -> None:
    column = [
        bucket(1, 2, scale_lowest=4.0, scale_highest=8.0, loss_mean=1.0),
        bucket(3, 6, scale_lowest=2.0, scale_highest=2.0, loss_mean=5.0),
        bucket(9, 1),
    ]
    assert history.lowest(column, lambda one: one.scale_lowest) == 2.0
    assert history.highest(column, lambda one: one.scale_highest) == 8.0
    assert history.mean(column, lambda one: one.loss_mean) == 4.0  # (2 * 1 + 6 * 5) / 8
    assert history.mean([bucket(1)], lambda one: one.loss_mean) is None
    assert history.lowest([], lambda one: one.scale_lowest) is None


def test_octaves_are_equally_high() -> None:
    axis = Axis(10.0, 20.0, 2)
    assert axis.ratio(2.0**10) == 0.0
    assert axis.ratio(2.0**15) == pytest.approx(0.5)
    assert axis.ratio(2.0**20) == pytest.approx(1.0)
    assert axis.ratio(None) is None
    assert axis.ratio(math.nan) is None
    assert axis.ratio(0.0) is None
    assert axis.ratio(math.inf) == 1.0


def test_a_dead_scale_lies_at_the_bottom_under_a_label_of_its_own() -> None:
    axis = scale_axis(run_of(collapsing()))
    assert axis.zero
    assert axis.low <= -149
    assert axis.ratio(0.0) == 0.0
    assert axis.ratio(2.0**-149) > 0.0
    labels = [tick.label for tick in axis.ticks(12)]
    assert labels[0] == "0"
    assert "2^0" in labels


def test_a_scale_that_stands_still_is_no_noise() -> None:
    axis = scale_axis(run_of(Training(100).events()))
    assert axis.high - axis.low >= 6
    assert 0.3 < axis.ratio(65536.0) < 0.8


def test_the_whole_life_of_a_scale_is_on_the_axis() -> None:
    run = run_of(healthy())
    axis = scale_axis(run)
    for one in run.buckets.values():
        assert 0.0 < axis.ratio(one.scale_lowest) <= axis.ratio(one.scale_highest) < 1.0


@given(
    st.floats(-1e6, 1e6, allow_nan=False), st.floats(-1e6, 1e6, allow_nan=False), st.integers(2, 30)
)
def test_linear_axes_hold_their_values_and_have_round_ticks(
    first: float, second: float, rows: int
) -> None:
    axis = value_axis([first, second, None, math.nan], logarithmic=False)
    for value in (first, second):
        assert -1e-6 <= axis.ratio(value) <= 1 + 1e-6
    ticks = axis.ticks(rows)
    assert len(ticks) <= rows // 2 + 2
    assert all(-1e-6 <= tick.ratio <= 1 + 1e-6 for tick in ticks)
    assert [tick.ratio for tick in ticks] == sorted(tick.ratio for tick in ticks)


def test_losses_over_decades_are_logarithmic_and_others_are_not() -> None:
    assert value_axis([0.01, 5.0]).base == 10
    assert value_axis([2.0, 10.0]).base == 0
    assert value_axis([-1.0, 500.0]).base == 0
    assert value_axis([None, math.inf]) == Axis(0.0, 1.0)
    assert [tick.label for tick in value_axis([0.02, 5.0]).ticks(9)] == [
        "1e-2",
        "1e-1",
        "1e0",
        "1e1",
    ]


@pytest.mark.parametrize(
    ("least", "step"), [(0.011, 0.02), (0.02, 0.02), (0.3, 0.5), (1.0, 1.0), (6.0, 10.0)]
)
def test_steps_between_ticks_are_1_2_5(least: float, step: float) -> None:
    assert nice_step(least) == pytest.approx(step)


@pytest.mark.parametrize("glyphs", [UTF8, ASCII])
def test_marks_are_told_by_their_sign_not_by_colour(glyphs) -> None:
    signs = [mark_sign(share, glyphs) for share in (None, 0.01, 0.049, 0.05, 1.0)]
    assert signs[0] == " "
    assert signs[1] == signs[2] == glyphs.dot
    assert signs[3] == signs[4] == glyphs.times

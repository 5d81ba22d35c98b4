"""The numbers of a window, by closed forms and counts by hand."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_runs import new_run, values

from topsmon import events
from topsmon.training import window
from topsmon.training.reader import Happening, Identity, Record, RingReader
from topsmon.training.recorder import layout


def record(step: int, **fields: Any) -> Record:
    return Record._make(values(step, **fields))


@pytest.fixture
def identity(rings: Path) -> Identity:
    return RingReader(Path(new_run().path)).identity()


def test_step_times_are_median_mean_and_nearest_rank() -> None:
    """Of 1..100 s: median 50.5, mean 50.5, 95th percentile 95."""
    found = window.window([record(n, step_seconds=float(n)) for n in range(1, 101)])
    assert (found.step_seconds, found.mean_step_seconds, found.high_step_seconds) == (
        50.5,
        50.5,
        95,
    )
    assert found.seconds == 5050.0


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200))
def test_medians_are_those_of_the_statistics_module(times: list[float]) -> None:
    found = window.window([record(n, gradient_norm=t) for n, t in enumerate(times, 1)])
    middle = statistics.median(times)
    assert found.gradient_norm_median == middle
    assert found.gradient_norm_deviation == statistics.median(abs(t - middle) for t in times)
    assert found.gradient_norm_highest == max(times)


def test_what_is_not_known_is_none_and_never_zero() -> None:
    found = window.window([record(1), record(2)])
    unknown = {name for name in events.RunWindow.__struct_fields__ if getattr(found, name) is None}
    assert unknown == {
        "seconds",
        "step_seconds",
        "mean_step_seconds",
        "high_step_seconds",
        "data_wait_ratio",
        "tokens_per_second",
        "samples_per_second",
        "tokens_per_step",
        "samples_per_step",
        "backward_calls_per_step",
        "gradient_norm_median",
        "gradient_norm_deviation",
        "gradient_norm_highest",
        "clipped_ratio",
    }


def test_rates_use_only_steps_in_which_amount_and_time_are_known() -> None:
    records = [
        record(1, tokens=1000.0),  # the first step has no time
        record(2, tokens=1000.0, step_seconds=0.5, data_wait_seconds=0.1),
        record(3, step_seconds=100.0),
        record(4, tokens=3000.0, step_seconds=1.5, data_wait_seconds=0.3),
    ]
    found = window.window(records)
    assert found.tokens_per_second == 4000.0 / 2.0
    assert found.data_wait_ratio == pytest.approx(0.4 / 2.0)
    assert found.tokens_per_step == pytest.approx(5000.0 / 3)


def test_skips_are_told_apart_by_the_growth_before_them() -> None:
    skip, grow = layout.SKIPPED, layout.GREW
    records = [
        record(10, flags=skip),  # never grown
        record(11, flags=grow, last_growth_step=11),
        record(12, flags=skip, last_growth_step=11),
        record(14, flags=skip, last_growth_step=11),
        record(15, flags=skip, last_growth_step=11),  # the fourth step after it
    ]
    found = window.window(records)
    assert (found.skipped, found.growths, found.skips_after_growth) == (4, 1, 2)


def test_the_clipped_share_is_of_clip_calls() -> None:
    called, clipped = layout.CLIP_CALLED, layout.CLIPPED
    flags = [called, called | clipped, called | clipped, called, 0]
    found = window.window([record(n, flags=f) for n, f in enumerate(flags, 1)])
    assert (found.clip_calls, found.clipped_ratio) == (4, 0.5)


@pytest.mark.parametrize(
    ("loss", "flags", "shown", "finite"),
    [
        (1.5, 0, 1.5, True),
        (math.nan, 0, None, None),
        (math.nan, layout.NONFINITE_LOSS, None, False),
        (math.inf, layout.NONFINITE_LOSS, None, False),
        (-math.inf, 0, None, False),
    ],
)
def test_an_unknown_loss_is_not_a_bad_one(
    identity: Identity, loss: float, flags: int, shown: float | None, finite: bool | None
) -> None:
    sample = window.sample(identity, [record(1, loss=loss, flags=flags)], [])
    assert sample is not None
    assert (sample.loss, sample.loss_finite) == (shown, finite)


@pytest.mark.parametrize(
    ("norm", "flags", "finite"),
    [
        (2.0, 0, True),
        (math.inf, layout.CLIP_CALLED, False),
        (math.nan, layout.CLIP_CALLED, False),
        (math.nan, layout.NORM_SAMPLED, False),
        (math.nan, 0, None),
        (math.nan, layout.CLIP_CALLED | layout.PENDING, None),
        (math.nan, layout.CLIP_CALLED | layout.SCALED_CLIP, None),
    ],
)
def test_a_norm_that_was_read_and_is_nan_is_not_finite(
    identity: Identity, norm: float, flags: int, finite: bool | None
) -> None:
    sample = window.sample(identity, [record(1, gradient_norm=norm, flags=flags)], [])
    assert sample is not None
    assert sample.gradient_norm_finite is finite


def test_readings_are_the_newest_that_arrived_and_the_step_the_newest(identity: Identity) -> None:
    records = [
        record(7, loss=0.7, scale=8.0, skipped=3),
        record(8, flags=layout.PENDING, skipped=2),
    ]
    sample = window.sample(identity, records, [])
    assert sample is not None
    assert (sample.step, sample.loss, sample.scale) == (8, 0.7, 8.0)
    assert (sample.totals.steps, sample.totals.skipped) == (8, 3)


def test_readings_that_never_arrive_are_not_waited_for(identity: Identity) -> None:
    old = [record(1, loss=0.5)]
    pending = [record(n, flags=layout.PENDING) for n in range(2, 30)]
    sample = window.sample(identity, old + pending, [])
    assert sample is not None
    assert sample.loss is None


def test_totals_that_never_happened_are_none(identity: Identity) -> None:
    found = window.totals([record(5)], [])
    assert (found.last_skip_step, found.last_growth_step, found.first_nonfinite_loss_step) == (
        None,
        None,
        None,
    )
    assert (found.scale_lowest, found.tokens) == (None, None)
    found = window.totals([record(5, last_skip_step=4, scale_lowest=0.0, tokens_total=9.0)], [])
    assert (found.last_skip_step, found.scale_lowest, found.tokens) == (4, 0.0, 9.0)


def zeros(ratio: float, scale: float | None) -> Happening:
    known = {} if scale is None else {"scale": scale}
    return Happening(time=0.0, kind="gradient-zeros", values={"ratio": ratio, **known})


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        ([], (None, None, None)),
        ([zeros(0.9, None)], (0.9, None, None)),
        ([zeros(1.0, 1.0), zeros(0.4, 256.0), zeros(0.0, 65536.0)], (1.0, 1.0, 0.0)),
        ([zeros(0.2, 4.0), zeros(0.8, 2.0), zeros(0.5, 1.0)], (0.8, 2.0, 0.5)),
        ([zeros(0.2, 4.0), zeros(0.8, 8.0)], (0.8, 8.0, None)),
    ],
)
def test_zero_gradients_at_the_worst_and_later(
    samples: list[Happening], found: tuple[float | None, ...]
) -> None:
    assert window.zeros(samples) == found

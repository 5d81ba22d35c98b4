"""Logarithmic axes: ends and ticks at 1, 2 and 5 times powers of ten, labels apart."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.report.roofline.axes import Tick, axis

positive = st.floats(1e-12, 1e18)


def everywhere(tick: Tick) -> tuple[float, float]:
    """As if labels took no room."""
    return math.log10(tick.value), math.log10(tick.value)


def test_ends_are_the_next_1_2_or_5() -> None:
    found = axis([3.0, 4000.0], "FLOP/byte")
    assert (found.low, found.high) == (2.0, 5000.0)


def test_ends_that_are_such_numbers_stay() -> None:
    found = axis([0.1, 2000.0], "FLOP/byte")
    assert (found.low, found.high) == (0.1, 2000.0)


def test_all_ticks_where_there_is_room() -> None:
    labels = [tick.label for tick in axis([0.05, 20.0], "").ticks(everywhere, gap=0)]
    assert labels == ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10", "20"]


def test_ticks_are_written_in_the_unit_of_the_axis() -> None:
    found = axis([20e12, 2000e12], "TFLOPS", 1e12)
    ticks = found.ticks(everywhere, gap=0)
    assert [tick.label for tick in ticks] == ["20", "50", "100", "200", "500", "1000", "2000"]
    assert ticks[0].value == pytest.approx(20e12)


def test_powers_of_ten_where_there_is_little_room() -> None:
    found = axis([0.1, 2000.0], "")

    def narrow(tick: Tick) -> tuple[float, float]:
        place = math.log10(tick.value)
        return place, place + 0.6

    assert [tick.label for tick in found.ticks(narrow, gap=0)] == ["0.1", "1", "10", "100", "1000"]


def test_large_and_small_numbers_are_short() -> None:
    labels = [tick.label for tick in axis([1e-5, 1e7], "").ticks(everywhere, gap=0)]
    assert {"1e-5", "0.001", "100000", "2e6"} <= set(labels)


def test_a_single_value_still_has_two_decades() -> None:
    found = axis([7.0], "")
    assert found.high / found.low >= 99
    assert found.low < 7.0 < found.high


@given(st.lists(positive, min_size=1, max_size=8), st.sampled_from([1.0, 1e9, 1e12]))
def test_everything_lies_inside_and_ends_are_1_2_5(values: list[float], scale: float) -> None:
    found = axis(values, "", scale)
    for value in values:
        assert -1e-9 <= found.fraction(value) <= 1 + 1e-9
    for end in (found.low, found.high):
        digits = f"{end / scale:.6e}"
        assert digits[0] in "125"
        assert digits[1:8] == ".000000"


@given(positive, positive, st.integers(5, 300), st.integers(1, 8))
def test_labels_never_collide(low: float, high: float, length: int, width: int) -> None:
    found = axis([low, high], "")

    def span(tick: Tick) -> tuple[float, float]:
        begin = found.fraction(tick.value) * length
        return begin, begin + width

    ticks = found.ticks(span, gap=1)
    assert all(tick.label.lstrip("0.")[0] in "125" for tick in ticks)
    for before, after in itertools.pairwise(ticks):
        assert span(after)[0] - span(before)[1] >= 1 - 1e-6

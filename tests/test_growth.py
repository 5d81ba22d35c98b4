"""Counts of errors: what grows counts, what was there before does not."""

from hypothesis import given
from hypothesis import strategies as st

from topsmon.growth import RISES_KEPT, Growth, Rise


def grown(*readings: tuple[float, int]) -> Growth:
    growth = Growth()
    for at, value in readings:
        growth.add(at, value)
    return growth


def test_a_count_that_was_there_before_is_no_rise() -> None:
    assert grown((0.0, 4000), (5.0, 4000)).within(300, 5.0) == Rise(0, 0, 5.0)
    assert Growth().within(300, 5.0) == Rise(0, 0, 0.0)


def test_rises_are_summed_over_the_window() -> None:
    growth = grown((0.0, 10), (5.0, 12), (10.0, 12), (15.0, 15), (400.0, 20))
    assert growth.within(300, 15.0) == Rise(5 + 5, 3, 15.0)
    assert growth.within(300, 400.0) == Rise(5, 1, 300.0)


def test_a_reset_starts_anew() -> None:
    growth = grown((0.0, 500), (5.0, 600), (10.0, 3), (15.0, 4))
    assert growth.within(300, 15.0) == Rise(1, 1, 5.0)


def test_a_short_time_counts_as_a_whole_minute() -> None:
    assert Rise(4, 2, 5.0).per_minute() == 4
    assert Rise(40, 5, 300.0).per_minute() == 8


@given(st.lists(st.integers(0, 100), max_size=RISES_KEPT))
def test_the_rise_of_a_monotone_count_is_its_last_less_its_first(steps: list[int]) -> None:
    values = [sum(steps[:place]) for place in range(len(steps) + 1)]
    growth = grown(*((float(place), value) for place, value in enumerate(values)))
    assert growth.within(1e9, 1e6).added == values[-1] - values[0]


@given(st.lists(st.integers(0, 1000), max_size=300))
def test_a_rise_is_never_negative_and_memory_is_bounded(values: list[int]) -> None:
    growth = grown(*((float(place), value) for place, value in enumerate(values)))
    rise = growth.within(50, float(len(values)))
    assert rise.added >= 0
    assert rise.times <= RISES_KEPT

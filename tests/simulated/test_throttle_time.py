"""Counters of throttled time against the time that the mask of clocks event reasons has a bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.simulated import throttle


def value(spec: Any, time: float) -> float:
    """What the three generators in use are by definition."""
    if isinstance(spec, (int, float)):
        return spec
    ((name, arguments),) = spec.items()
    if name == "sum":
        return sum(value(term, time) for term in arguments)
    if name == "count":
        first, rate, start = arguments
        return first + rate * max(0.0, time - start)
    first, last, start, end = arguments
    return first + (last - first) * min(1.0, max(0.0, (time - start) / (end - start)))


def held(steps: list[list[float]], bits: int, time: float) -> float:
    """Seconds up to `time` in which the mask has one of the bits, step by step."""
    ends = [*(start for start, _ in steps[1:]), float("inf")]
    return sum(
        max(0.0, min(end, time) - start)
        for (start, mask), end in zip(steps, ends, strict=True)
        if int(mask) & bits
    )


masks = st.lists(st.integers(0, 0x7FF), min_size=1, max_size=7)
gaps = st.lists(st.integers(1, 40), min_size=6, max_size=6)


@given(masks, gaps, st.integers(0, 200))
def test_each_counter_is_the_time_with_its_bits(
    masks: list[int], gaps: list[int], time: int
) -> None:
    starts = [0, *itertools.accumulate(gaps)]
    steps = [[start / 4, mask] for start, mask in zip(starts, masks, strict=False)]
    for field, spec in throttle.counters({"steps": steps}, 0).items():
        assert value(spec, time) == pytest.approx(held(steps, throttle.REASONS[field], time))


def test_a_constant_mask_runs_from_the_start() -> None:
    counters = throttle.counters(0x84, 0)
    assert value(counters["throttle_power_seconds"], 12.5) == 12.5
    assert value(counters["throttle_power_brake_seconds"], 12.5) == 12.5
    assert value(counters["throttle_thermal_seconds"], 12.5) == 0


def test_a_mask_may_differ_from_device_to_device() -> None:
    masks = {"each": [0, 4]}
    assert value(throttle.counters(masks, 0)["throttle_power_seconds"], 3) == 0
    assert value(throttle.counters(masks, 1)["throttle_power_seconds"], 3) == 3


@pytest.mark.parametrize(
    "mask", [None, {"wave": [4, 4, 2]}, {"steps": [[0, {"noise": [4, 1]}]]}, {"steps": [[0]]}, "4"]
)
def test_where_the_mask_is_no_steps_the_scenario_must_say(mask: object) -> None:
    assert throttle.counters(mask, 0) == {}

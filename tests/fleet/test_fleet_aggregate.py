"""Distributions and sums, against straightforward computations of their own."""

from __future__ import annotations

import math

import pytest
from fleet_events import CEILING, ceilings, cpu, fleet_of, gpu, rate, sample, status
from hypothesis import given
from hypothesis import strategies as st

from topsmon.fleet.aggregate import histogram, quantile
from topsmon.fleet.metrics import METRICS
from topsmon.fleet.state import FleetState

VALUES = st.lists(
    st.floats(min_value=0.0, max_value=2000.0, allow_nan=False), min_size=1, max_size=60
)


def fleet_with_power(values: list[float | None], per_host: int = 4) -> FleetState:
    found = []
    for number, value in enumerate(values):
        host, index = f"h{number // per_host}", number % per_host
        found += [gpu(host, index), sample(host, index, power_watts=value)]
    return fleet_of(*found)


@given(VALUES, st.floats(min_value=0.001, max_value=1.0))
def test_a_quantile_is_the_smallest_value_that_this_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    found = quantile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    below = [value for value in values if value < found]
    if below:
        smaller = max(below)
        assert sum(value <= smaller for value in values) < share * len(values) + 1e-9


def test_quantiles_of_one_to_a_hundred() -> None:
    # Nearest rank: of 1..100 the 5th, the 50th and the 95th value.
    found = fleet_with_power([float(value) for value in range(100, 0, -1)]).aggregate("power")
    assert (found.low, found.p5, found.p50, found.p95, found.high) == (1, 5, 50, 95, 100)
    assert (found.count, found.missing) == (100, 0)


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 900.0)), max_size=40))
def test_counts_ends_and_worst_equal_those_of_a_plain_sort(values: list[float | None]) -> None:
    found = fleet_with_power(values).aggregate("power", worst=5)
    known = sorted(value for value in values if value is not None)
    assert found.count == len(known)
    assert found.missing == len(values) - len(known)
    assert found.low == (known[0] if known else None)
    assert found.high == (known[-1] if known else None)
    assert [one.value for one in found.worst] == known[::-1][:5]
    if found.histogram is not None:
        assert sum(found.histogram.counts) == len(known)


def test_the_worst_of_a_share_is_its_lowest_and_names_host_and_device() -> None:
    fleet = fleet_of(
        *(gpu("a", index) for index in range(3)),
        sample("a", 0, busy_ratio=0.9),
        sample("a", 1, busy_ratio=0.1),
        sample("a", 2, busy_ratio=0.5),
    )
    worst = fleet.aggregate("busy", worst=2).worst
    assert [(one.host, one.device.label, one.value) for one in worst] == [
        ("a", "GPU 1", 0.1),
        ("a", "GPU 2", 0.5),
    ]


def test_nothing_known_is_none_and_not_zero() -> None:
    found = fleet_of(gpu("a", 0)).aggregate("temperature")
    assert (found.count, found.missing) == (0, 1)
    assert (found.low, found.p50, found.high, found.histogram) == (None, None, None, None)
    assert FleetState().aggregate("busy").count == 0


def test_a_nan_is_not_known() -> None:
    fleet = fleet_of(gpu("a", 0), sample("a", 0, power_watts=math.nan))
    assert fleet.aggregate("power").count == 0


@pytest.mark.parametrize("metric", list(METRICS))
def test_every_metric_reads_what_it_is_named_after(metric: str) -> None:
    fleet = fleet_of(
        gpu("a", 0),
        ceilings("a", 0),
        sample(
            "a",
            0,
            busy_ratio=0.25,
            power_watts=300.0,
            temperature_celsius=61.0,
            memory_used_bytes=20 * 2**30,
            memory_total_bytes=80 * 2**30,
            sm_clock_mhz=1755.0,
        ),
        rate("a", 0, 0.5 * CEILING),
    )
    expected = {
        "busy": 0.25,
        "power": 300.0,
        "temperature": 61.0,
        "memory": 0.25,
        "clock": 1755.0,
        "ratio": 0.5,
        "mfu": None,
    }
    assert fleet.aggregate(metric).p50 == expected[metric]


def test_an_unknown_metric_is_an_error() -> None:
    with pytest.raises(KeyError):
        FleetState().aggregate("mood")


def test_the_processor_counts_only_where_there_is_no_gpu() -> None:
    fleet = fleet_of(
        *(gpu("a", 0), cpu("a"), cpu("b")),
        sample("a", 0, busy_ratio=0.5),
        sample("a", "cpu", busy_ratio=0.1),
        sample("b", "cpu", busy_ratio=0.2),
    )
    found = fleet.aggregate("busy")
    assert (found.count, found.low, found.high) == (2, 0.2, 0.5)


def test_lost_devices_and_hosts_that_are_gone_do_not_count() -> None:
    fleet = fleet_of(
        *(gpu("a", 0), gpu("a", 1), gpu("b", 0)),
        *(sample("a", 0, power_watts=100.0), sample("a", 1, power_watts=200.0)),
        sample("b", 0, power_watts=400.0),
        status("a", 1, "lost"),
    )
    fleet.link("b", "gone", "Connection reset", 1_001.0)
    found = fleet.aggregate("power", 1_001.0)
    assert (found.count, found.missing, found.high) == (1, 2, 100.0)
    totals = fleet.totals(1_001.0)
    assert (totals.devices, totals.live_devices) == (3, 2)
    assert totals.hosts == {"live": 1, "gone": 1}


def test_sums_are_over_the_devices_that_have_both_rate_and_ceiling() -> None:
    fleet = fleet_of(
        *(gpu("a", 0), gpu("a", 1), gpu("a", 2)),
        *(ceilings("a", 0), ceilings("a", 1)),
        *(rate("a", 0, 700e12), rate("a", 1, 600e12), rate("a", 2, 500e12)),
        sample("a", 0, power_watts=650.0),
    )
    totals = fleet.totals(1_000.0)
    assert totals.precision == "bf16"
    assert totals.measured == 2
    assert totals.achieved_ops_per_second == pytest.approx(1300e12)
    assert totals.ceiling_ops_per_second == pytest.approx(2 * CEILING)
    assert (totals.powered, totals.power_watts) == (1, 650.0)


def test_sums_of_nothing_are_none() -> None:
    totals = fleet_of(gpu("a", 0)).totals(1_000.0)
    assert totals.achieved_ops_per_second is None
    assert totals.power_watts is None


def test_only_some_hosts() -> None:
    fleet = fleet_of(
        *(gpu("a", 0), gpu("b", 0)),
        *(sample("a", 0, power_watts=1.0), sample("b", 0, power_watts=2.0)),
    )
    assert fleet.aggregate("power", only={"b"}).p50 == 2.0
    assert fleet.totals(1_000.0, only={"b"}).power_watts == 2.0


@given(VALUES)
def test_a_histogram_has_every_value_once_between_its_edges(values: list[float]) -> None:
    found = histogram(sorted(values), METRICS["power"])
    assert sum(found.counts) == len(values)
    assert found.low <= min(values)
    assert found.high >= max(values)
    width = (found.high - found.low) / len(found.counts)
    for place, count in enumerate(found.counts):
        low = found.low + place * width
        inside = [value for value in values if low + 1e-6 < value < low + width - 1e-6]
        assert count >= len(inside)


def test_a_share_above_one_is_in_the_last_bin_and_not_cut_from_the_ends() -> None:
    found = histogram([0.02, 0.51, 1.07], METRICS["ratio"])
    assert (found.low, found.high) == (0.0, 1.0)
    assert (found.counts[0], found.counts[10], found.counts[-1]) == (1, 1, 1)

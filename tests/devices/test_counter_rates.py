"""Counters made into rates: what wraps, is reset, stands still or lies gives no rate at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poller_process import Read, one_gpu

from topsmon.devices.nvml import Unavailable
from topsmon.devices.rates import Rate, growth

GIB = 1 << 30


def test_a_rate_is_growth_per_second() -> None:
    rate = Rate(limit=1e12)
    first = rate.update(1000, 10.0)
    assert isinstance(first, Unavailable)
    assert first.reason == "two readings are needed"
    assert rate.update(1600, 13.0) == 200
    assert rate.update(1600, 14.0) == 0


def test_a_counter_that_goes_backwards_drops_one_interval() -> None:
    rate = Rate(limit=1e12)
    rate.update(1000, 10.0)
    dropped = rate.update(5, 11.0)
    assert isinstance(dropped, Unavailable)
    assert "reset or has wrapped" in dropped.reason
    assert rate.update(25, 12.0) == 20


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    assert isinstance(growth((1.0, 0), (1.0, 500), 1e12), Unavailable)
    assert isinstance(growth((2.0, 0), (1.0, 500), 1e12), Unavailable)


def test_growth_that_cannot_be_is_not_shown() -> None:
    answer = growth((0.0, 0), (1.0, 2_000_000), limit=1e6)
    assert isinstance(answer, Unavailable)
    assert "implausible" in answer.reason


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 1 << 64)), min_size=1, max_size=20),
    st.floats(1, 1e13),
)
def test_a_rate_is_never_negative_and_never_above_the_limit(
    readings: list[tuple[float, int]], limit: float
) -> None:
    rate = Rate(limit)
    for now, value in readings:
        answer = rate.update(value, now)
        assert isinstance(answer, Unavailable) or 0 <= answer <= limit


def test_a_32_bit_byte_counter_that_wraps_gives_the_true_rate(read: Read) -> None:
    """7 GB/s wraps 4 GiB more than once a second: two readings a second apart could not tell."""
    content = one_gpu(
        pcie_generation_max=4,
        pcie_width_max=16,
        pcie_transmit_bytes={"wrap": [{"count": [0, 7e9]}, 1 << 32]},
        pcie_receive_bytes={"wrap": [{"count": [0, 1e9]}, 1 << 32]},
    )
    samples = read(content, [0.1, 1.1, 2.1, 3.1]).samples
    for sample in samples:
        assert sample.pcie_transmit_bytes_per_second == pytest.approx(7e9)
        assert sample.pcie_receive_bytes_per_second == pytest.approx(1e9)


def test_a_wrap_within_the_window_drops_that_reading(read: Read) -> None:
    """The counter passes 4 GiB 10 ms after the reading at 1 s."""
    content = one_gpu(
        pcie_generation_max=4,
        pcie_width_max=16,
        pcie_transmit_bytes={"wrap": [{"count": [4 * GIB - 1.01e9, 1e9]}, 4 * GIB]},
        pcie_receive_bytes={"count": [0, 5e8]},
    )
    samples = read(content, [0.0, 1.0, 2.0]).samples
    assert samples[1].pcie_transmit_bytes_per_second is None
    assert "wrapped" in samples[1].unavailable["pcie_transmit_bytes_per_second"]
    assert samples[1].pcie_receive_bytes_per_second == pytest.approx(5e8)
    assert samples[2].pcie_transmit_bytes_per_second == pytest.approx(1e9)


def test_a_wide_byte_counter_is_read_once_a_second(read: Read) -> None:
    content = one_gpu(
        pcie_generation_max=5,
        pcie_width_max=16,
        pcie_transmit_bytes={"count": [1e12, 5e10]},
        pcie_receive_bytes={"count": [1e12, 0]},
    )
    result = read(content, [0.0, 1.0, 2.0, 3.0], counters=False)
    assert result.samples[-1].pcie_transmit_bytes_per_second == pytest.approx(5e10)
    assert result.samples[-1].pcie_receive_bytes_per_second == 0
    after = [name for time, name, _ in result.calls if time >= 1]
    assert after.count("nvmlDeviceGetFieldValues") == 3


def test_a_rate_above_the_link_is_no_rate(read: Read) -> None:
    """Generation 1 x4 carries 1 GB/s."""
    content = one_gpu(
        pcie_generation_max=1,
        pcie_width_max=4,
        pcie_transmit_bytes={"count": [1e12, 9e9]},
        pcie_receive_bytes={"count": [1e12, 9e8]},
    )
    sample = read(content, [0.0, 1.0]).samples[-1]
    assert sample.pcie_transmit_bytes_per_second is None
    assert "implausible" in sample.unavailable["pcie_transmit_bytes_per_second"]
    assert sample.pcie_receive_bytes_per_second == pytest.approx(9e8)


def test_throttle_time_that_is_reset_drops_one_interval(read: Read) -> None:
    content = one_gpu(
        clock_event_mask=0,
        throttle_power_seconds={"steps": [[0, 50], [1, 50.4], [2, 0.1], [3, 0.35]]},
    )
    powers = [sample.throttle_ratios.get("power") for sample in read(content, [0, 1, 2, 3]).samples]
    assert powers == [None, pytest.approx(0.4), None, pytest.approx(0.25)]


def test_a_driver_clock_that_jumps_changes_no_rate(read: Read) -> None:
    """Time stamps of the driver are wall clock; an hour is set back between two readings."""
    content = one_gpu(
        timestamp_offset_seconds={"steps": [[0, 0], [1.5, -3600]]},
        throttle_power_seconds={"count": [0, 0.5]},
        pcie_transmit_bytes={"count": [1e12, 1e9]},
        pcie_receive_bytes={"count": [1e12, 2e9]},
    )
    sample = read(content, [0.0, 1.0, 2.0]).samples[-1]
    assert sample.throttle_ratios["power"] == pytest.approx(0.5)
    assert sample.pcie_transmit_bytes_per_second == pytest.approx(1e9)


@pytest.mark.parametrize("value", [4294967295, 2147483632, 18446744073709551615])
def test_a_blank_is_no_count(read: Read, value: int) -> None:
    """DCGM_INT32_BLANK and all ones stand for "no value"."""
    sample = read(one_gpu(ecc_corrected_volatile=value, pcie_replays=2147483632), [0.0]).samples[0]
    assert sample.ecc_corrected_volatile is None
    assert "implausible" in sample.unavailable["ecc_corrected_volatile"]
    assert sample.pcie_replays is None

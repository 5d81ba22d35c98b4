"""Each field of a sample has a simulated value of its own: a swapped field fails.

Read through the real nvidia-ml-py; rates come from counters that grow by a known amount a second.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from poller_process import Read, one_gpu

from topsmon import events

MIB = 1 << 20
KIB = 1 << 10
LINKS = 3

EVERYTHING = one_gpu(
    memory_total_mib=81000,
    memory_reserved_mib=500,
    memory_used_mib=12345,
    busy_percent=87,
    memory_busy_percent=31,
    sm_clock_mhz=1410,
    memory_clock_mhz=1500,
    graphics_clock_mhz=1111,
    video_clock_mhz=1222,
    power_watts=287.5,
    power_average_watts=288,
    power_instant_watts=289,
    power_limit_watts=310,
    power_management_limit_watts=311,
    power_limit_default_watts=350,
    power_limit_min_watts=200,
    power_limit_max_watts=360,
    energy_joules=98765.432,
    temperature_celsius=61,
    memory_temperature_celsius=73,
    temperature_margin_celsius=-4,
    temperature_slowdown_celsius=87,
    fan_count=1,
    fan_percent=38,
    encoder_busy_percent=12,
    decoder_busy_percent=14,
    performance_state=8,
    clock_event_mask=0x24,
    pcie_generation=6,
    pcie_generation_max=5,
    pcie_width=4,
    pcie_width_max=16,
    pcie_transmit_bytes={"count": [1e13, 3e9]},
    pcie_receive_bytes={"count": [2e13, 5e9]},
    pcie_replays=17,
    pcie_replay_rollovers=18,
    ecc_mode=1,
    ecc_mode_pending=0,
    ecc_corrected_volatile=101,
    ecc_corrected_aggregate=102,
    ecc_uncorrected_volatile=103,
    ecc_uncorrected_aggregate=104,
    row_remap_corrected=21,
    row_remap_uncorrected=22,
    row_remap_pending=0,
    row_remap_failed=1,
    pages_retired_single_bit=40,
    pages_retired_double_bit=3,
    pages_retirement_pending=1,
    compute_mode=3,
    persistence_mode=0,
    throttle_power_seconds={"count": [9, 0.01]},
    throttle_thermal_seconds={"count": [8, 0.02]},
    throttle_sync_boost_seconds={"count": [7, 0.03]},
    throttle_board_limit_seconds={"count": [6, 0.04]},
    throttle_low_utilisation_seconds={"count": [5, 0.05]},
    throttle_reliability_seconds={"count": [4, 0.06]},
    throttle_software_thermal_seconds={"count": [3, 0.07]},
    throttle_hardware_thermal_seconds={"count": [2, 0.08]},
    throttle_power_brake_seconds={"count": [1, 0.09]},
    nvlink_count=LINKS,
    nvlink_active=1,
    nvlink_transmit_kib={"count": [100, 1000]},
    nvlink_receive_kib={"count": [100, 2000]},
    nvlink_transmit_raw_kib={"count": [100, 3000]},
    nvlink_receive_raw_kib={"count": [100, 4000]},
    nvlink_replay_errors=1,
    nvlink_recovery_errors=10,
    nvlink_crc_flit_errors=100,
    nvlink_crc_data_errors=1000,
    links={"2": {"nvlink_active": 0}},
    gpm_supported=1,
    gpm_graphics_percent=91,
    gpm_sm_percent=82,
    gpm_occupancy_percent=33,
    gpm_integer_percent=5,
    gpm_tensor_percent=64,
    gpm_tensor_dfma_percent=1,
    gpm_tensor_hmma_percent=60,
    gpm_tensor_dmma_percent=2,
    gpm_tensor_imma_percent=3,
    gpm_dram_percent=46,
    gpm_fp64_percent=7,
    gpm_fp32_percent=28,
    gpm_fp16_percent=19,
    gpm_pcie_transmit_mib_per_second=1100,
    gpm_pcie_receive_mib_per_second=1200,
    gpm_nvlink_transmit_mib_per_second=1300,
    gpm_nvlink_receive_mib_per_second=1400,
)

SAMPLE: dict[str, Any] = {
    "busy_ratio": 0.87,
    "memory_busy_ratio": 0.31,
    "memory_used_bytes": 12345 * MIB,
    "memory_reserved_bytes": 500 * MIB,
    "memory_total_bytes": 81000 * MIB,
    "sm_clock_mhz": 1410,
    "memory_clock_mhz": 1500,
    "power_watts": 287.5,
    "power_limit_watts": 310,
    "power_limit_default_watts": 350,
    "energy_joules": 98765.432,
    "temperature_celsius": 61,
    "memory_temperature_celsius": 73,
    "temperature_margin_celsius": -4,
    "fan_ratio": 0.38,
    "encoder_busy_ratio": 0.12,
    "decoder_busy_ratio": 0.14,
    "performance_state": 8,
    "clock_event_mask": 0x24,
    "pcie_generation": 6,
    "pcie_generation_max": 5,
    "pcie_width": 4,
    "pcie_width_max": 16,
    "pcie_transmit_bytes_per_second": 3e9,
    "pcie_receive_bytes_per_second": 5e9,
    "pcie_replays": 17,
    "ecc_enabled": True,
    "ecc_corrected_volatile": 101,
    "ecc_corrected_aggregate": 102,
    "ecc_uncorrected_volatile": 103,
    "ecc_uncorrected_aggregate": 104,
    "rows_remapped_corrected": 21,
    "rows_remapped_uncorrected": 22,
    "row_remap_pending": False,
    "row_remap_failed": True,
    "pages_retired": 43,
    "pages_retirement_pending": True,
    "compute_mode": "exclusive-process",
    "persistence_mode": False,
    "nvlink_links": LINKS,
    "nvlink_links_up": LINKS - 1,
}
# What goes over a link that is down does not count; its errors do.
UP = LINKS - 1
SAMPLE |= {
    "nvlink_transmit_bytes_per_second": UP * 1000 * KIB,
    "nvlink_receive_bytes_per_second": UP * 2000 * KIB,
    "nvlink_errors": LINKS * 1111,
}
THROTTLE = {
    "power": 0.01,
    "thermal": 0.02,
    "sync_boost": 0.03,
    "board_limit": 0.04,
    "reliability": 0.06,
    "sw_thermal": 0.07,
    "hw_thermal": 0.08,
    "power_brake": 0.09,
}
COUNTERS: dict[str, Any] = {
    "seconds": 1.0,
    "graphics_active_ratio": 0.91,
    "sm_active_ratio": 0.82,
    "sm_occupancy_ratio": 0.33,
    "tensor_active_ratio": 0.64,
    "dram_active_ratio": 0.46,
    "fp64_active_ratio": 0.07,
    "fp32_active_ratio": 0.28,
    "fp16_active_ratio": 0.19,
    "integer_active_ratio": 0.05,
    "pcie_transmit_bytes_per_second": 1100 * MIB,
    "pcie_receive_bytes_per_second": 1200 * MIB,
    "nvlink_transmit_bytes_per_second": 1300 * MIB,
    "nvlink_receive_bytes_per_second": 1400 * MIB,
}
NO_READINGS = {
    "time",
    "monotonic",
    "source",
    "device",
    "unavailable",
    "memory_note",
    "throttle_ratios",
    "counters",
}


def test_the_table_names_every_field() -> None:
    names = {field.name for field in msgspec.structs.fields(events.DeviceSample)}
    assert set(SAMPLE) == names - NO_READINGS
    counters = {field.name for field in msgspec.structs.fields(events.GpuCounters)}
    assert set(COUNTERS) == counters - {"during_burst", "unavailable"}
    numbers = [value for value in SAMPLE.values() if not isinstance(value, (bool, str))]
    assert len(numbers) == len(set(numbers))


def test_every_field_of_a_sample_has_its_own_value(read: Read) -> None:
    sample = read(EVERYTHING, [0.0, 1.0, 2.0], counters=False).samples[-1]
    got = {name: getattr(sample, name) for name in SAMPLE}
    assert got == pytest.approx(SAMPLE)
    assert sample.throttle_ratios == pytest.approx(THROTTLE)
    assert set(sample.unavailable) == {"counters"}


def test_every_counter_has_its_own_value(read: Read) -> None:
    sample = read(EVERYTHING, [0.0, 1.0, 2.0]).samples[-1]
    counters = sample.counters
    assert counters is not None
    assert {name: getattr(counters, name) for name in COUNTERS} == pytest.approx(COUNTERS)
    assert counters.unavailable == sample.unavailable == {}
    # Where GPM tells PCIe traffic it is the better figure: a mean over the whole interval.
    assert sample.pcie_transmit_bytes_per_second == 1100 * MIB
    assert sample.nvlink_transmit_bytes_per_second == UP * 1000 * KIB


@pytest.mark.parametrize(
    ("field", "reading"),
    [
        ("ecc_mode", "ecc_enabled"),
        ("row_remap_pending", "row_remap_pending"),
        ("row_remap_failed", "row_remap_failed"),
        ("pages_retirement_pending", "pages_retirement_pending"),
        ("persistence_mode", "persistence_mode"),
    ],
)
def test_every_flag_is_its_own(read: Read, field: str, reading: str) -> None:
    flags = {
        "ecc_mode": 0,
        "ecc_mode_pending": 0,
        "row_remap_corrected": 0,
        "row_remap_uncorrected": 0,
        "row_remap_pending": 0,
        "row_remap_failed": 0,
        "pages_retirement_pending": 0,
        "persistence_mode": 0,
    }
    sample = read(one_gpu(**{**flags, field: 1}), [0.0]).samples[0]
    told = {name for name, value in msgspec.structs.asdict(sample).items() if value is True}
    assert told == {reading}


def test_without_a_value_every_field_is_unknown_and_says_why(read: Read) -> None:
    """An empty scenario: each reading is None, none is 0, each with its reason."""
    content = one_gpu()
    for field in ("memory_total_mib", "memory_used_mib", "memory_reserved_mib"):
        content["device"][field] = None
    sample = read(content, [0.0, 1.0, 2.0]).samples[-1]
    for name in SAMPLE:
        assert getattr(sample, name) is None, name
        assert sample.unavailable[name], name
    assert sample.throttle_ratios == {}
    assert sample.unavailable["throttle_ratios"]
    assert "no GPM on this device" in sample.unavailable["counters"]

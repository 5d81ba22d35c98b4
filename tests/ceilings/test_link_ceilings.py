"""Memory, PCIe and NVLink."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon import events
from topsmon.ceilings import boards, for_device, memory_bandwidth, pcie
from topsmon.ceilings.gpu import for_board

Gpu = Callable[..., events.Device]


@pytest.mark.parametrize(
    ("bits", "mhz", "gigabytes"),
    [
        (384, 10501, 1008),  # RTX 4090
        (512, 14001, 1792),  # RTX 5090
        (384, 9001, 864),  # L40S
        (5120, 2619, 3352),  # H100 SXM
        (4096, 877, 898),  # V100 SXM2
        (384, 9751, 936.1),  # RTX 3090
        (384, 9501, 912.1),  # RTX 3090 in P2
        (7680, 3996, 7672.3),  # B200
    ],
)
def test_the_reported_clock_counts_twice(bits: int, mhz: float, gigabytes: float) -> None:
    assert memory_bandwidth(bits, mhz) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


def test_rtx_3090_in_p2() -> None:
    measured = 854.2e9
    assert measured / memory_bandwidth(384, 9751) == pytest.approx(0.913, abs=1e-3)
    assert measured / memory_bandwidth(384, 9501) == pytest.approx(0.937, abs=1e-3)


def test_the_driver_is_preferred_and_a_difference_told(gpu: Gpu) -> None:
    device = gpu("NVIDIA B200", memory_bus_bits=8192, memory_clock_max_mhz=3996)
    ceilings = for_device(device)
    assert ceilings.memory_bandwidth_bytes_per_second == pytest.approx(8183.8e9, rel=1e-4)
    assert any("8184 GB/s" in note and "7700" in note for note in ceilings.notes)


def test_a_small_difference_is_no_news(gpu: Gpu) -> None:
    device = gpu("NVIDIA B200", memory_bus_bits=7680, memory_clock_max_mhz=3996)
    ceilings = for_device(device)
    assert ceilings.memory_bandwidth_bytes_per_second == pytest.approx(7672.3e9, rel=1e-4)
    assert ceilings.memory_bandwidth_source.startswith("driver: 7680 bit x 3996 MHz")
    assert not any(note.startswith("memory:") for note in ceilings.notes)


def test_same_name_other_memory_is_told_by_the_driver(gpu: Gpu) -> None:
    device = gpu("NVIDIA GeForce RTX 4070", memory_bus_bits=192, memory_clock_max_mhz=10_001)
    ceilings = for_device(device)
    assert ceilings.memory_bandwidth_bytes_per_second == pytest.approx(480e9, rel=1e-3)
    assert any("504" in note for note in ceilings.notes)


@pytest.mark.parametrize(("bits", "mhz"), [(None, 9751), (384, None), (0, 9751), (None, None)])
def test_without_the_driver_the_table_serves(gpu: Gpu, bits: int | None, mhz: int | None) -> None:
    device = gpu("NVIDIA GeForce RTX 3090", memory_bus_bits=bits, memory_clock_max_mhz=mhz)
    ceilings = for_device(device)
    assert ceilings.memory_bandwidth_bytes_per_second == 936e9
    assert ceilings.memory_bandwidth_source.startswith("board table")


def test_unified_memory_boards_have_the_tables_figure() -> None:
    expected = {"agx-orin-64gb": 204.8, "orin-nx-16gb": 102.4, "thor-t5000": 273, "gb10": 273}
    for key, gigabytes in expected.items():
        ceilings = for_board(boards()[key])
        assert ceilings.memory_bandwidth_bytes_per_second == pytest.approx(gigabytes * 1e9)
        assert ceilings.pcie_bytes_per_second is None


def test_an_unknown_board_has_what_the_driver_tells(gpu: Gpu) -> None:
    device = gpu("NVIDIA FutureCard X1", memory_bus_bits=512, memory_clock_max_mhz=14_001)
    ceilings = for_device(device, pcie_generation=5, pcie_width=16)
    assert ceilings.memory_bandwidth_bytes_per_second == pytest.approx(1792e9, rel=1e-3)
    assert ceilings.pcie_bytes_per_second == pytest.approx(63.0e9, rel=1e-3)
    assert ceilings.nvlink_bytes_per_second is None
    bare = for_device(gpu("NVIDIA FutureCard X1"))
    assert bare.memory_bandwidth_bytes_per_second is None
    assert "not known" in bare.memory_bandwidth_source


@pytest.mark.parametrize(
    ("generation", "gigabytes"),
    [(1, 4.0), (2, 8.0), (3, 15.75), (4, 31.51), (5, 63.0), (6, 121)],
)
def test_pcie_x16(generation: int, gigabytes: float) -> None:
    assert pcie(generation, 16) == pytest.approx(gigabytes * 1e9, rel=1e-3)


@pytest.mark.parametrize(("rate", "share"), [(25, 0.793), (20.93, 0.664), (10.78, 0.342)])
def test_gen4_copies_against_the_ceiling(rate: float, share: float) -> None:
    assert rate * 1e9 / (pcie(4, 16) or 0) == pytest.approx(share, abs=1e-3)


def test_an_unknown_generation_has_no_ceiling() -> None:
    assert pcie(9, 16) is None


@given(generation=st.integers(1, 6), width=st.integers(1, 16))
def test_pcie_grows_with_lanes_and_generations(generation: int, width: int) -> None:
    per_lane = pcie(generation, 1)
    assert per_lane is not None
    assert pcie(generation, width) == pytest.approx(per_lane * width)
    slower = pcie(generation - 1, width)
    assert slower is None or slower < per_lane * width


def test_the_board_limits_the_lanes(gpu: Gpu) -> None:
    ceilings = for_board(boards()["rtx-4060"])
    assert ceilings.pcie_bytes_per_second == pytest.approx(15.75e9, rel=1e-3)
    reported = for_device(gpu("NVIDIA GeForce RTX 4060"), pcie_generation=3, pcie_width=8)
    assert reported.pcie_bytes_per_second == pytest.approx(7.88e9, rel=1e-3)
    assert reported.pcie_source == "generation 3 x8, maximum of the link"


@pytest.mark.parametrize(
    ("key", "gigabytes"),
    [
        ("p100-sxm2", 80),
        ("v100-sxm2-32gb", 150),
        ("a100-sxm4-80gb", 300),
        ("a800-sxm4-80gb", 200),
        ("h100-sxm", 450),
        ("b200", 900),
        ("rtx-3090", 56.25),
        ("rtx-4090", None),
        ("v100-pcie", None),
    ],
)
def test_nvlink_per_direction(key: str, gigabytes: float | None) -> None:
    expected = gigabytes * 1e9 if gigabytes is not None else None
    assert for_board(boards()[key]).nvlink_bytes_per_second == expected


@pytest.mark.parametrize(
    ("key", "mebibytes"),
    [("h100-sxm", 50), ("h200-sxm", 60), ("b200", 126), ("rtx-4090", 72), ("titan-v", 4.5)],
)
def test_l2(key: str, mebibytes: float) -> None:
    assert for_board(boards()[key]).l2_bytes == mebibytes * 2**20

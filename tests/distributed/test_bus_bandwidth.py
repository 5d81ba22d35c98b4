"""algbw and busbw by nccl-tests' definitions, on figures that people have published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.distributed.bus import (
    OPERATIONS,
    algorithm_bandwidth,
    bus_bandwidth,
    bus_factor,
    seconds_on_bus,
)


def test_all_reduce_of_sixteen_ranks() -> None:
    # NVIDIA/nccl-tests#167: 199,680 bytes in 125.8 us; the table there shows 1.59 and 2.98 GB/s.
    assert algorithm_bandwidth(199_680, 125.8e-6) == pytest.approx(1.587e9, rel=1e-3)
    assert bus_bandwidth("all-reduce", 16, 199_680, 125.8e-6) == pytest.approx(2.976e9, rel=1e-3)
    assert bus_bandwidth("all-reduce", 16, 1 << 30, 0.134) == pytest.approx(15.02e9, rel=1e-3)


def test_all_gather_counts_the_whole_output() -> None:
    # NVIDIA/nccl-tests#45: 8 ranks, 1 GiB of output in 5 ms: 214.7 and 187.9 GB/s.
    assert algorithm_bandwidth(1 << 30, 5e-3) == pytest.approx(214.7e9, rel=1e-3)
    assert bus_bandwidth("all-gather", 8, 1 << 30, 5e-3) == pytest.approx(187.9e9, rel=1e-3)


@pytest.mark.parametrize(
    ("operation", "two", "eight"),
    [
        ("all-reduce", 1.0, 1.75),
        ("all-gather", 0.5, 0.875),
        ("reduce-scatter", 0.5, 0.875),
        ("broadcast", 1.0, 1.0),
        ("peer-to-peer", 1.0, 1.0),
    ],
)
def test_factors(operation: str, two: float, eight: float) -> None:
    assert bus_factor(operation, 2) == two
    assert bus_factor(operation, 8) == eight


@given(
    st.sampled_from(OPERATIONS),
    st.integers(2, 4096),
    st.floats(1e3, 1e12),
    st.floats(1e-6, 1e3),
)
def test_time_and_bandwidth_undo_each_other(
    operation: str, ranks: int, size: float, seconds: float
) -> None:
    busbw = bus_bandwidth(operation, ranks, size, seconds)
    assert seconds_on_bus(operation, ranks, size, busbw) == pytest.approx(seconds)


@pytest.mark.parametrize(("operation", "ranks"), [("all-to-none", 2), ("all-reduce", 0)])
def test_what_cannot_be_is_refused(operation: str, ranks: int) -> None:
    with pytest.raises(ValueError, match=r"all-to-none|0 ranks"):
        bus_factor(operation, ranks)

"""FLOPs and bytes of the workload probes, against counts by hand and by brute force."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from topsmon.probes.lab import attention, attention_decode, convolution, message_passing  # noqa: E402
from topsmon.probes.precisions import all_gemms  # noqa: E402


def test_the_convolution_that_is_quoted_with_half_its_flops():
    # 64 to 128 channels, 3x3, padding 1, on 32x64x224x224: 118.4 G are multiply-adds.
    shape = convolution.Shape(32, 64, 128, 224, 4.0)
    assert shape.flops == 2 * 118_380_036_096 == 236_760_072_192
    assert shape == convolution.shapes(all_gemms()["fp32"])[-1]
    assert shape.words() == "32x64x224x224 by 128x64x3x3"


def test_groups_divide_the_flops():
    # pytorch PR #183405: 231,211,008 for 8x64x28x28 outputs' worth of Conv2d(64, 128, 3, groups=4).
    assert convolution.Shape(8, 64, 128, 28, 4.0, groups=4).flops == 231_211_008
    depthwise = convolution.Shape(1, 32, 32, 10, 4.0, groups=32)
    assert depthwise.flops == 2 * 32 * 10 * 10 * 9
    # Input and output of 3200 numbers, 32 filters of 9.
    assert depthwise.bytes_moved == (3200 + 288 + 3200) * 4


@given(
    batch=st.integers(1, 2),
    per_group=st.integers(1, 3),
    groups=st.integers(1, 3),
    side=st.integers(1, 4),
)
def test_flops_of_a_convolution_by_walking_over_it(batch, per_group, groups, side):
    shape = convolution.Shape(batch, per_group * groups, 2 * groups, side, 2.0, groups)
    count = 0
    for _ in itertools.product(range(batch), range(2 * groups), range(side), range(side)):
        for _ in itertools.product(range(per_group), range(3), range(3)):
            count += 2
    assert shape.flops == count


def test_attention_by_hand():
    # Two positions of three numbers: four scores of 2*3 FLOPs, four weighted values of 2*3.
    shape = attention.Shape(1, 1, 2, 2, 3, 2.0)
    assert shape.flops == 48
    # Causal: the first sees itself, the second both: three pairs of 12 FLOPs.
    assert shape.causal_flops == 36
    # Q, K, V and the result, six numbers of two bytes each.
    assert shape.bytes_moved == 48
    assert shape.cache_bytes == 24


@given(length=st.integers(1, 40), heads=st.integers(1, 3), size=st.integers(1, 8))
def test_causal_attention_by_counting_visible_pairs(length, heads, size):
    shape = attention.Shape(2, heads, length, length, size, 4.0)
    pairs = sum(1 for i in range(length) for j in range(length) if j <= i)
    assert shape.causal_flops == pytest.approx(2 * heads * pairs * 4 * size)
    assert shape.flops == 4 * 2 * heads * length**2 * size


def test_prefill_is_compute_bound_and_decode_is_not():
    # Square: 4 B H S^2 D over 4 B H S D numbers is S operations a number.
    square = attention.Shape(1, 32, 2048, 2048, 128, 2.0)
    assert square.flops / square.bytes_moved == 2048 / 2
    # One query: 4 B H S D over 2 B H S D numbers and a little.
    for element_bytes, limit in ((2.0, 1.0), (4.0, 0.5)):
        last = attention_decode.shapes(element_bytes, gpu=True)[-1]
        assert last.flops / last.bytes_moved == pytest.approx(limit, rel=1e-3)
        assert last.flops / last.bytes_moved < limit


def test_one_edge_by_hand():
    step = message_passing.Step(1, 2)
    # 64 additions; rows of 256 bytes: read, written, read, read, written; two indices.
    assert step.flops == 64
    assert step.bytes_moved == 5 * 256 + 16
    assert step.flops / step.bytes_moved == pytest.approx(0.0494, abs=1e-4)
    # Two nodes before and after, one message, eight pairs of indices.
    assert step.needed_bytes == 5 * 256 + 8 * 16

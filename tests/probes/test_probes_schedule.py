"""Which precision and shape comes next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.probes.schedule import (
    CPU_SHAPES,
    GPU_SHAPES,
    SHAPES_PER_PRECISION,
    Explored,
    Schedule,
    choose_shapes,
    explore,
    operations,
    pick,
    remark,
)
from topsmon.units import PRECISIONS

START = Explored(0.0, 64)


def no_bytes(shape):
    return 0.0


def test_a_multiply_add_is_two_operations():
    # One FP32 GEMM of 3456 x 4096 x 4096 (NVIDIA/cutlass#941) is 115,964,116,992 FLOP.
    assert operations((3456, 4096, 4096)) == 115_964_116_992


@pytest.mark.parametrize(
    ("shape", "milliseconds", "tera"),
    [
        ((8192, 8192, 8192), 4.262, 258.0),  # A100 FP16, random normal inputs (thonking.ai)
        ((38400, 4096, 1024), 4.148, 77.7),  # A100 INT8 (triton-lang/triton#634)
        ((38400, 4096, 1024), 1.457, 221.1),  # the same in FP16
        ((8192, 4096, 4096), 3.65, 75.3),  # GB300 INT8, row-major right side (pytorch#187094)
        ((8192, 4096, 4096), 0.273, 1007.0),  # the same in TF32
    ],
)
def test_published_times_as_rates(shape, milliseconds, tera):
    assert operations(shape) / (milliseconds / 1e3) / 1e12 == pytest.approx(tera, rel=1e-3)


def test_the_usual_shapes_are_multiples_of_64_and_some_are_not_square():
    for shapes in (GPU_SHAPES, CPU_SHAPES):
        assert all(remark(shape) == "" for shape in shapes)
        assert any(len(set(shape)) > 1 for shape in shapes)


@pytest.mark.parametrize("size", [4095, 33708, 50257, 2056])
def test_an_odd_size_gets_a_remark_that_names_it(size):
    assert str(size) in remark((size, 4096, 4096))
    assert "64" in remark((size, 4096, 4096))


def test_published_best_shapes_are_the_ones_for_a_big_gpu():
    chosen = choose_shapes(GPU_SHAPES, 700e12, 0.02, 2**31, no_bytes)
    assert chosen == [
        (1024, 10240, 5120),
        (2048, 2048, 13312),
        (4096, 4096, 4096),
        (1792, 16128, 3072),
        (8192, 8192, 8192),
    ]


def test_no_call_of_a_chosen_shape_exceeds_the_limit():
    # FP64 of an RTX 3090 at 0.55 TFLOPS: 2048^3 would take 31 ms, 1024^3 takes 3.9 ms.
    chosen = choose_shapes(GPU_SHAPES, 0.55e12, 0.02, 2**31, no_bytes)
    assert chosen == [(512, 512, 512), (1024, 1024, 1024)]


def test_shapes_beyond_the_memory_budget_are_left_out():
    def fp32_bytes(shape):
        m, n, k = shape
        return 4.0 * (m * k + k * n + m * n)

    chosen = choose_shapes(GPU_SHAPES, 50e12, 0.02, 100e6, fp32_bytes)
    assert max(map(fp32_bytes, chosen)) <= 100e6
    assert choose_shapes(GPU_SHAPES, 50e12, 0.02, 1000, fp32_bytes) == []


@given(st.floats(1e6, 1e16))
def test_there_is_always_a_shape_and_never_more_than_a_few(rate):
    chosen = choose_shapes(CPU_SHAPES, rate, 0.04, 2**40, no_bytes)
    assert 1 <= len(chosen) <= SHAPES_PER_PRECISION
    assert chosen == sorted(chosen, key=operations)
    assert len(chosen) == 1 or operations(chosen[-1]) <= rate * 0.04


def test_exploring_never_makes_a_call_that_blocks_for_seconds():
    # BF16 on a CPU without native BF16: 0.4 GOPS, so that 1024^3 would take 5 s.
    made = []

    def seconds_of(shape):
        made.append(operations(shape) / 0.4e9)
        return made[-1]

    assert explore(seconds_of, 0.04, 2**31, no_bytes, START).rate == pytest.approx(0.4e9)
    assert max(made) <= 0.04


def test_exploring_goes_on_while_calls_are_short():
    asked = []

    def seconds_of(shape):
        asked.append(shape[0])
        return 5e-6 + operations(shape) / 400e12

    found = explore(seconds_of, 0.02, 2**31, no_bytes, START)
    assert asked == [64, 128, 256, 512, 1024, 2048]
    assert found.rate == pytest.approx(400e12, rel=0.2)
    assert found.size == 2048


def test_exploring_goes_on_where_it_ended():
    # One thread stops at 512 (64 ms for 1024 is too long); sixteen go on from there.
    alone = explore(lambda shape: operations(shape) / 33.5e9, 0.04, 2**31, no_bytes, START)
    assert alone.size == 512
    asked = []

    def seconds_of(shape):
        asked.append(shape[0])
        return operations(shape) / 500e9

    together = explore(seconds_of, 0.04, 2**31, no_bytes, alone)
    assert asked == [512, 1024]
    assert together.rate == pytest.approx(500e9)


def test_a_call_that_waits_for_cores_does_not_spoil_what_is_known():
    alone = explore(lambda shape: operations(shape) / 100e9, 0.04, 2**31, no_bytes, START)
    waiting = explore(lambda shape: 0.016 + operations(shape) / 200e9, 0.04, 2**31, no_bytes, alone)
    assert waiting.rate >= alone.rate == pytest.approx(100e9)


def test_the_first_round_takes_fp32_then_fp64_then_the_others():
    schedule = Schedule(tuple(PRECISIONS))
    order = []
    while schedule.first_round(None):
        key = schedule.following(None)
        order.append(key)
        schedule.measured(key)
    assert order[:2] == ["fp32", "fp64"]
    assert sorted(order) == sorted(PRECISIONS)
    assert schedule.following(None) == "fp32"


def test_precisions_take_turns_and_shapes_go_round():
    schedule = Schedule(("fp32", "fp64"))
    seen = []
    for _ in range(6):
        key = schedule.following(None)
        seen.append((key, schedule.rounds(key)))
        schedule.measured(key)
    assert seen == [
        ("fp32", 0), ("fp64", 0), ("fp32", 1), ("fp64", 1), ("fp32", 2), ("fp64", 2),
    ]  # fmt: skip


def test_a_newly_chosen_precision_goes_first_and_does_not_catch_up_for_ever():
    schedule = Schedule(("fp32", "fp64", "bf16"))
    for _ in range(20):
        schedule.measured(schedule.following(("fp32", "fp64")))
    assert schedule.first_round(None)
    order = []
    for _ in range(4):
        order.append(schedule.following(None))
        schedule.measured(order[-1])
    assert order[0] == "bf16"
    assert order.count("bf16") == 2


def test_what_cannot_run_is_left_out_for_good():
    schedule = Schedule(("fp32", "tf32"))
    schedule.drop("tf32")
    assert schedule.following(("tf32",)) is None
    schedule.measured("fp32")
    assert not schedule.first_round(None)


def test_want_of_memory_does_not_keep_the_first_round_going():
    schedule = Schedule(("fp32", "fp64"))
    schedule.measured("fp32")
    schedule.passed_over("fp64")
    assert not schedule.first_round(None)
    assert schedule.following(None) == "fp32"


def test_every_shape_is_tried_before_the_best_is_preferred() -> None:
    shapes = [(64, 64, 64), (128, 128, 128), (256, 256, 256)]
    rates: dict[tuple[int, int, int], float] = {}
    for turn, shape in enumerate(shapes):
        assert pick(shapes, turn, rates) == shape
        rates[shape] = {64: 1.0, 128: 3.0, 256: 2.0}[shape[0]]
    picked = [pick(shapes, turn, rates) for turn in range(3, 15)]
    assert picked.count((128, 128, 128)) == 6 + 2
    assert set(picked) == set(shapes)

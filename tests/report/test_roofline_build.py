"""Roofline values: intensities, ridges, what stands under which roof, what is left out and why."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roofline_devices import (
    GPU,
    H100_BF16,
    H100_MEMORY,
    ceiling,
    device,
    h100,
    measured_h100,
    probe,
    processor,
    rate,
)

from topsmon.report import roofline
from topsmon.report.counted import Count, load

# Arithmetic intensity ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "n", "expected"),
    [
        # 2N^3 / (3 matrices of N^2 values of 2 bytes) = N/3
        ("bf16", 4096, 4096 / 3),
        ("fp16", 8192, 8192 / 3),
        # of 4 bytes: N/6; of 8 bytes: N/12
        ("fp32", 4096, 4096 / 6),
        ("tf32", 4096, 4096 / 6),
        ("fp64", 4096, 4096 / 12),
        # operands of 1 byte, result of 2 (BF16) and 4 (INT32): 2N/4 and 2N/6
        ("fp8", 4096, 4096 / 2),
        ("int8", 4096, 4096 / 3),
    ],
)
def test_square_gemms(precision: str, n: int, expected: float) -> None:
    assert roofline.gemm_intensity(precision, (n, n, n)) == pytest.approx(expected)


def test_nvfp4_counts_its_scales() -> None:
    # 16 values take 8 bytes and one byte of scale; the result is BF16: 2N / (9/16 + 9/16 + 2)
    n = 4096
    assert roofline.gemm_intensity("fp4", (n, n, n)) == pytest.approx(2 * n / 3.125)


def test_a_matrix_times_a_vector_is_one_operation_a_byte() -> None:
    assert roofline.gemm_intensity("bf16", (8192, 1, 8192)) == pytest.approx(1.0, rel=1e-3)


@given(st.tuples(*[st.integers(1, 1 << 16)] * 3))
def test_intensity_is_operations_over_the_bytes_of_three_matrices(shape) -> None:
    m, n, k = shape
    moved = 4 * (m * k + k * n + m * n)
    assert roofline.gemm_intensity("fp32", shape) == pytest.approx(2 * m * n * k / moved)


# Lines --------------------------------------------------------------------------------------------


def ridge(line: roofline.Roofline, word: str, precision: str = "bf16") -> roofline.Ridge:
    return next(
        item for item in line.ridges if (item.precision, item.roof_word) == (precision, word)
    )


def test_ridge_of_an_h100_sxm_in_bf16() -> None:
    rated = ridge(roofline.build(h100()), "rated")
    assert rated.ops_per_byte == pytest.approx(295.2, abs=0.05)
    assert rated.ops_per_second == H100_BF16
    assert (rated.slope, rated.slope_word) == ("DRAM", "rated")


def test_rated_held_and_measured_roofs_each_with_their_word() -> None:
    line = roofline.build(measured_h100())
    # at 1755 of 1830 MHz
    assert line.roof("bf16", "held").ops_per_second == pytest.approx(H100_BF16 * 1755 / 1830)
    assert line.roof("bf16", "rated").ops_per_second == H100_BF16
    assert line.roof("bf16", "measured").ops_per_second == 735e12
    assert line.roof("int8", "measured").unit == "TOPS"
    assert line.focus == "bf16"


def test_measured_roofs_begin_on_the_best_measured_bandwidth() -> None:
    line = roofline.build(measured_h100())
    measured = ridge(line, "measured")
    assert measured.slope == "DRAM triad"
    assert measured.ops_per_byte == pytest.approx(735 / 3.02)
    assert ridge(line, "held").slope_word == "rated"


def test_memory_and_cache_slopes() -> None:
    slopes = {
        slope.name: (slope.bytes_per_second, slope.word)
        for slope in roofline.build(measured_h100()).slopes
    }
    assert slopes == {
        "DRAM": (H100_MEMORY, "rated"),
        "DRAM copy": (2.90e12, "measured"),
        "DRAM triad": (3.02e12, "measured"),
        "L2": (6.1e12, "measured"),
    }


def test_the_fastest_step_of_a_ladder_where_no_cache_was_told_apart() -> None:
    ladder = {"bytes_per_second_over_bytes": ((2.0**15, 90e9), (2.0**20, 60e9), (2.0**28, 12e9))}
    line = roofline.build(processor(probe("cache", {}, "cpu", series=ladder)))
    (cache,) = [slope for slope in line.slopes if slope.level == "cache"]
    assert cache.bytes_per_second == 90e9
    assert "32.0 KiB" in cache.detail


def test_a_cpu_without_rated_bandwidth_uses_the_measured_one_and_says_so() -> None:
    line = roofline.build(processor(probe("memory", {"copy_bytes_per_second": 20e9}, "cpu")))
    rated = ridge(line, "rated", "fp32")
    assert rated.ops_per_byte == pytest.approx(199 / 20)
    assert (rated.slope, rated.slope_word) == ("DRAM copy", "measured")
    assert any(
        "No rated memory bandwidth: the memory channels cannot be read." in note
        and "measured bandwidth alone" in note
        for note in line.notes
    )


def test_without_any_bandwidth_there_is_no_slanted_roof_and_it_says_so() -> None:
    line = roofline.build(processor())
    assert line.slopes == ()
    assert line.ridges == ()
    assert any("there is no slanted roof" in note for note in line.notes)


def test_zero_bandwidth_is_no_bandwidth() -> None:
    values = {"copy_bytes_per_second": 0.0, "triad_bytes_per_second": None}
    result = probe("memory", values, "cpu", unavailable={"triad_bytes_per_second": "no memory"})
    line = roofline.build(processor(result))
    assert line.slopes == ()
    assert "DRAM triad not measured: no memory." in line.notes


def test_wrong_results_are_neither_roof_nor_slope_nor_point() -> None:
    wrong = {"rate_ops_per_second": 9e12, "intensity_flops_per_byte": 9.0}
    line = roofline.build(
        h100(
            rate("bf16", 735e12, correct=False),
            probe("memory", {"copy_bytes_per_second": 2e12}, correct=False),
            probe("convolution", wrong, correct=False),
        )
    )
    assert line.roof("bf16", "measured") is None
    assert line.roof("bf16", "held") is None
    assert [slope.word for slope in line.slopes] == ["rated"]
    assert line.points == ()
    assert "The latest BF16 result is wrong: it is no measured roof." in line.notes
    assert "convolution is left out: its result is wrong." in line.notes
    assert any("memory probe gave a wrong result" in note for note in line.notes)


def test_invalid_results_stay_with_their_reason() -> None:
    line = roofline.build(
        h100(rate("bf16", 300e12, valid=False, invalid_reason="another process uses GPU 0"))
    )
    roof = line.roof("bf16", "measured")
    assert (roof.detail, roof.invalid_reason) == (
        "GEMM 8192³, not valid",
        "another process uses GPU 0",
    )
    (point,) = line.points
    assert not point.trusted
    assert not line.roof("bf16", "measured").trusted
    assert any(note.startswith("! marks") for note in line.notes)
    assert line.notes.count("Not valid: another process uses GPU 0.") == 1
    assert (point.detail, point.invalid_reason) == ("not valid", "another process uses GPU 0")


def test_results_of_an_earlier_session_are_called_that() -> None:
    old = h100()
    old.rates["bf16"].remembered = rate("bf16", 700e12)
    line = roofline.build(old)
    assert "from an earlier session" in line.roof("bf16", "measured").detail
    assert line.points[0].detail == "from an earlier session"


def test_an_unknown_board_has_no_rated_lines() -> None:
    line = roofline.build(
        h100(
            rate("bf16", 50e12),
            rates=(),
            unknown="no board of this name is known",
            memory_bandwidth_bytes_per_second=None,
            memory_bandwidth_source="",
        )
    )
    assert [roof.word for roof in line.roofs] == ["measured"]
    assert "No rated BF16 ceiling: no board of this name is known." in line.notes
    assert line.points[0].roof_ratio is None


def test_a_device_of_which_nothing_is_known() -> None:
    line = roofline.build(device())
    assert (line.roofs, line.slopes, line.points) == ((), (), ())
    assert "BF16 has not been measured yet." in line.notes


def test_a_range_keeps_its_lower_end() -> None:
    low = ceiling("fp32", 199e9, 3100.0, origin="range", ops_per_second_low=99.5e9)
    roof = roofline.build(processor(rates=(low,))).roof("fp32", "rated")
    assert roof.low_ops_per_second == 99.5e9
    assert "range from 99.5 GFLOPS" in roof.detail


# Points -------------------------------------------------------------------------------------------


def test_points_stand_where_they_were_measured_and_under_the_roof() -> None:
    line = roofline.build(measured_h100())
    points = {point.label: point for point in line.points}
    large = points["BF16 8192³"]
    assert large.ops_per_byte == pytest.approx(8192 / 3)
    assert large.bound == "compute"
    assert large.roof_ratio == pytest.approx(735 / 989.4)
    # 2MNK / 2(MK + KN + MN) with N = 64: 63 operations a byte, under the slope
    thin = points["BF16 8192x64x8192"]
    assert thin.bound == "memory"
    assert thin.roof_ops_per_second == pytest.approx(thin.ops_per_byte * H100_MEMORY)
    for point in line.points:
        assert point.word == "measured"
        if point.roof_ratio is not None:
            assert point.roof_ratio < 1
            assert point.ops_per_second <= min(
                line.roof(point.precision, "rated").ops_per_second,
                point.ops_per_byte * H100_MEMORY,
            )


def test_nothing_above_a_ceiling_is_clamped() -> None:
    line = roofline.build(h100(rate("bf16", 1100e12)))
    assert line.points[0].ops_per_second == 1100e12
    assert line.points[0].roof_ratio == pytest.approx(1100 / 989.4)


def test_probes_with_intensity_and_rate_are_points() -> None:
    line = roofline.build(measured_h100())
    points = {point.label: point for point in line.points if point.kind == "probe"}
    assert set(points) == {"convolution", "attention decode"}
    assert points["convolution"].precision == "bf16"
    assert points["attention decode"].precision is None
    assert points["attention decode"].roof_ratio is None


def test_a_probe_that_measured_nothing_is_no_point() -> None:
    values = {"rate_ops_per_second": None, "intensity_flops_per_byte": 9.0}
    line = roofline.build(
        h100(probe("convolution", values, unavailable={"rate_ops_per_second": "out of memory"}))
    )
    assert line.points == ()
    assert "convolution is left out: not measured: out of memory." in line.notes


def test_only_the_chosen_precisions() -> None:
    line = roofline.build(measured_h100(), ["fp32"], focus="int8")
    assert {roof.precision for roof in line.roofs} == {"fp32", "int8"}
    assert line.focus == "int8"


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(ValueError, match="no precision 'fp17': there are fp64, fp32"):
        roofline.build(h100(), focus="fp17")


# Layers -------------------------------------------------------------------------------------------


def tally(flops: int, values: int) -> dict[str, int]:
    return {
        "flops": flops,
        "macs": flops // 2,
        "other_flops": 0,
        "bytes": 4 * values,
        "float_elements": values,
        "other_bytes": 0,
    }


def counted(*layers: tuple[str, int, int], dtype: str = "bfloat16") -> Count:
    """A counter's document with layers of (path, FLOPs, values moved)."""
    rows = [
        {
            "path": path,
            "class": "Linear",
            "calls": 1,
            "parameters": 1,
            "forward": tally(flops, values),
            "backward": tally(0, 0),
        }
        for path, flops, values in layers
    ]
    total = {"forward": tally(1, 1), "backward": tally(0, 0)}
    return load(
        json.dumps(
            {
                "schema": 1,
                "target": "model.py:make",
                "torch": "2.13.0",
                "python": "3.11.7",
                "mode": "eval",
                "inputs": [],
                "real_tensors_because": "",
                "flops_by_dtype": {dtype: 1},
                "layers": rows,
                "total": {**total, "parameters": 1, "trainable_parameters": 1},
                "uncounted": [],
                "causal_masked_flops": 0,
            }
        ).encode()
    )


def test_layers_stand_at_the_roof_for_their_intensity() -> None:
    # 2 bytes a value in BF16: 20e9 / (2 x 1e6) = 10000, and 1e6 / (2 x 1e6) = 0.5 FLOP/byte
    count = counted(("norm", 1_000_000, 1_000_000), ("fc", 20_000_000_000, 1_000_000))
    line = roofline.build(h100(), count=count)
    fc, norm = line.points
    assert (fc.label, fc.word, fc.bound) == ("fc Linear", "possible", "compute")
    assert fc.ops_per_byte == pytest.approx(10_000)
    assert fc.ops_per_second == H100_BF16
    assert (norm.label, norm.bound) == ("norm Linear", "memory")
    assert norm.ops_per_second == pytest.approx(0.5 * H100_MEMORY)
    assert any("Layers of model.py:make" in note and "not run" in note for note in line.notes)


def test_alike_layers_are_one_point_and_empty_ones_none() -> None:
    count = counted(("a.fc", 1000, 10), ("b.fc", 1000, 10), ("c.fc", 1500, 10), ("flatten", 0, 10))
    assert [point.label for point in roofline.build(h100(), count=count).points] == [
        "a.fc Linear and 1 alike",
        "c.fc Linear",
    ]


def test_the_type_of_the_model_is_in_focus() -> None:
    count = counted(("fc", 1000, 10), dtype="float32")
    line = roofline.build(h100(), count=count)
    assert line.focus == "fp32"
    assert line.points[0].ops_per_byte == pytest.approx(1000 / 40)


def test_layers_without_a_bandwidth_are_left_out_with_the_reason() -> None:
    line = roofline.build(processor(), count=counted(("fc", 1000, 10), dtype="float32"))
    assert line.points == ()
    assert any("without a memory bandwidth" in note for note in line.notes)


# JSON ---------------------------------------------------------------------------------------------


def test_json_has_all_numbers_with_their_words() -> None:
    document = msgspec.json.decode(roofline.to_json(roofline.build(measured_h100())))
    assert document["schema_version"] == 1
    assert document["device"] == GPU
    assert {slope["word"] for slope in document["slopes"]} == {"rated", "measured"}
    (point,) = [item for item in document["points"] if item["label"] == "BF16 8192³"]
    assert point["ops_per_byte"] == pytest.approx(2730.67, abs=0.01)
    assert point["roof_ratio"] == pytest.approx(0.7429, abs=1e-4)
    (rated,) = [
        item
        for item in document["ridges"]
        if (item["precision"], item["roof_word"]) == ("bf16", "rated")
    ]
    assert rated["ops_per_byte"] == pytest.approx(295.2, abs=0.05)

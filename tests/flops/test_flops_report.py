"""Counts held against ceilings: bounds, best times, text and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flops_models import Block, counts, resnet50
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from topsmon import events, units
from topsmon.report import flops
from topsmon.report.bounds import Peak, bound, peaks
from topsmon.report.counted import Count, load, rows, total_times


def ceilings(bandwidth: float | None = 2e12, **rates: float) -> events.Ceilings:
    return events.Ceilings(
        time=0.0,
        monotonic=0.0,
        source="test",
        device="GPU-0",
        rates=tuple(
            events.Ceiling(precision=key, ops_per_second=rate, origin="published", source="test")
            for key, rate in (rates or {"fp32": 20e12, "fp16_acc32": 320e12}).items()
        ),
        memory_bandwidth_bytes_per_second=bandwidth,
    )


BOARD = flops.Device("Some Board", ceilings())


def counted(factory: Any, *inputs: str, **options: Any) -> Count:
    return load(json.dumps(counts(factory, *inputs, **options)).encode())


@pytest.fixture(scope="module")
def resnet() -> Count:
    return counted(resnet50, "1x3x224x224")


def test_the_ridge_point_parts_compute_from_memory() -> None:
    peak = Peak("fp32", "FP32", "TFLOPS", 20e12, 2e12, "test")
    assert peak.ridge_ops_per_byte == 10
    assert bound(peak, 10.0, 1.0).by == "compute"
    assert bound(peak, 9.99, 1.0).by == "memory"
    assert bound(peak, 40e12, 2e12).seconds == 2.0
    assert bound(peak, 20e12, 8e12).seconds == 4.0


@given(st.floats(1, 1e15), st.floats(1, 1e13), st.floats(1e9, 1e15), st.floats(1e9, 1e13))
def test_no_work_is_faster_than_either_ceiling(
    operations: float, moved: float, rate: float, bandwidth: float
) -> None:
    least = bound(Peak("fp32", "", "", rate, bandwidth, ""), operations, moved)
    assert least.seconds >= operations / rate
    assert least.seconds >= moved / bandwidth
    assert least.seconds in {operations / rate, moved / bandwidth}


def test_without_a_memory_bandwidth_the_bound_is_not_known() -> None:
    peak = Peak("fp32", "FP32", "TFLOPS", 20e12, None, "test")
    assert peak.ridge_ops_per_byte is None
    assert bound(peak, 40e12, 1e20) == bound(peak, 40e12, 0)
    assert bound(peak, 40e12, 1).by is None


def test_precisions_take_the_first_rate_the_device_has() -> None:
    found = peaks(ceilings(fp64_tensor=3e12, fp64=1e12, fp16_vec=5e12))
    assert [(peak.precision, peak.ops_per_second) for peak in found] == [
        ("fp64", 3e12),
        ("fp16", 5e12),
    ]
    assert peaks(None) == ()


def test_floating_values_shrink_with_the_precision_and_indices_do_not() -> None:
    tally = counted(lambda: nn.Embedding(100, 16), "1x10:int64").total.forward
    assert tally.bytes_at("fp32") == tally.bytes == 10 * 8 + 2 * 10 * 16 * 4
    assert tally.bytes_at("fp16") == 10 * 8 + 2 * 10 * 16 * 2


def test_the_models_time_is_the_sum_of_its_layers() -> None:
    count = counted(lambda: nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()), "4096x1024")
    linear = 2 * 4096 * 1024 * 1024 + 4096 * 1024
    peak = peaks(ceilings())[0]
    times = total_times(count, peak, backward=False)
    assert times.compute == pytest.approx(linear / 20e12)
    assert times.memory == pytest.approx(2 * 4096 * 1024 * 4 / 2e12)
    assert times.by == "compute"


def test_layers_are_summed_by_depth(resnet: Count) -> None:
    peak = peaks(ceilings())[0]
    single = rows(resnet, peak, backward=True)
    summed = rows(resnet, peak, backward=True, depth=1)
    assert len(summed) < len(single)
    for part in (single, summed):
        assert sum(row.tally.flops for row in part) == 3 * 8_178_368_512 - 236_027_904
        assert sum(row.parameters for row in part) == 25_557_032
    assert sum(row.times.seconds for row in summed if row.times) == pytest.approx(
        total_times(resnet, peak, backward=True).seconds
    )


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_text_fits_its_width(resnet: Count, width: int, ascii_only: bool) -> None:
    shown = flops.text(resnet, BOARD, width=width, ascii_only=ascii_only)
    assert all(len(line) <= width for line in shown.splitlines())
    assert shown.isascii() or not ascii_only
    assert "8.178 G" in shown
    assert "4.089 G" in shown
    assert "25.56 M" in shown


def test_wider_text_has_more_columns(resnet: Count) -> None:
    narrow, wide = (flops.text(resnet, BOARD, width=width) for width in (80, 140))
    assert "calls" not in narrow or "class" not in narrow
    assert all(word in wide for word in ("class", "calls", "MACs", "Conv2d", "Bottleneck"))


def test_long_paths_keep_their_ends() -> None:
    inner: nn.Module = nn.Linear(2, 2)
    for _ in range(40):
        inner = nn.Sequential(inner)
    shown = flops.text(counted(lambda: inner, "1x2"), BOARD, width=80, ascii_only=True)
    assert any(line.startswith("...") and ".0.0 " in line for line in shown.splitlines())
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_the_article_is_answered_in_words() -> None:
    count = counted(lambda: nn.Conv2d(64, 128, 3, padding=1), "32x64x224x224")
    shown = flops.text(count, BOARD)
    assert "236.8 G" in shown
    assert "118.4 G" in shown
    assert "multiply and an add are 2 FLOP" in shown


def test_what_is_missing_is_said() -> None:
    document = counts(lambda: Block(64, 4), "1x8x64")
    document["uncounted"] = [{"operation": "my::op", "calls": 3, "layer": "mlp"}]
    count = load(json.dumps(document).encode())
    shown = flops.text(count, flops.Device("this processor", ceilings(None)))
    assert "LOWER BOUND: not counted are my::op (3x, in mlp)" in shown
    assert "causal attention" in shown
    assert "memory bandwidth is not known" in shown
    best = [line for line in shown.splitlines() if line.startswith("FP32")]
    assert best[0].split().count("N/A") == 3
    assert json.loads(flops.to_json(count, BOARD))["lower_bound"] is True


def test_without_any_ceiling_counts_are_still_shown(resnet: Count) -> None:
    nothing = flops.Device("a board", None)
    shown = flops.text(resnet, nothing)
    assert "no ceiling is known" in shown
    assert "8.178 G" in shown
    assert "best 0" not in shown


def test_integers_are_operations_and_not_flops() -> None:
    document = counts(lambda: nn.Linear(8, 8), "1x8")
    document["flops_by_dtype"] = {"int8": 128}
    shown = flops.text(load(json.dumps(document).encode()), BOARD)
    assert "OP/B" in shown
    assert "FLOP/B" not in shown


def test_the_layers_precision_can_be_chosen(resnet: Count) -> None:
    assert "best FP32" in flops.text(resnet, BOARD)
    assert "best FP16" in flops.text(resnet, BOARD, precision="fp16")
    with pytest.raises(ValueError, match="no ceiling for fp8; it has fp32, fp16"):
        flops.text(resnet, BOARD, precision="fp8")


def test_json_has_ceilings_bounds_and_reasons(resnet: Count) -> None:
    document = json.loads(flops.to_json(resnet, BOARD))
    half = document["device"]["precisions"][1]
    assert half["precision"] == "fp16"
    assert half["ridge_ops_per_byte"] == 160
    assert document["total"]["forward_and_backward"]["flops"] == 24_299_077_632
    assert document["layers"][0]["best"]["fp32"]["forward"] == {
        "best_seconds": pytest.approx(236_027_904 / 20e12),
        "bound": "compute",
    }
    unknown = json.loads(flops.to_json(resnet, flops.Device("cpu", ceilings(None))))
    assert unknown["device"]["precisions"][0]["ridge_ops_per_byte"] is None
    assert unknown["device"]["precisions"][0]["forward"]["bound"] is None
    assert "not known" in unknown["device"]["unavailable"]


@pytest.mark.parametrize("document", [b"", b"{}", b"[1]", b"\xff", b'{"schema": 1}'])
def test_a_broken_document_is_one_error(document: bytes) -> None:
    with pytest.raises(ValueError, match="no document of counts"):
        load(document)


def test_a_newer_document_is_refused() -> None:
    document = {**counts(lambda: nn.Linear(1, 1), "1x1"), "schema": 2}
    with pytest.raises(ValueError, match="schema 2"):
        load(json.dumps(document).encode())


def test_control_characters_of_a_model_are_not_drawn() -> None:
    module = nn.Sequential()
    module.add_module("a\x1b[2J", nn.Linear(1, 1))
    assert "\x1b" not in flops.text(counted(lambda: module, "1x1"), BOARD)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (8_178_368_512, "FLOP", "8.178 GFLOP"),
        (236_760_072_192, "FLOP", "236.8 GFLOP"),
        (0, "FLOP", "0 FLOP"),
        (999, "", "999"),
        (1000, "", "1.000 k"),
        (999_950, "B", "1.000 MB"),
        (0.0012, "s", "1.200 ms"),
        (3.15e-6, "s", "3.150 us"),
        (7.88e-10, "s", "0.7880 ns"),
        (1.5, "s", "1.500 s"),
        (4.2e18, "FLOP", "4200 PFLOP"),
        (None, "s", "N/A"),
    ],
)
def test_quantities_have_prefixes(value: float | None, unit: str, shown: str) -> None:
    assert units.si(value, unit) == shown

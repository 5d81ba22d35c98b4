"""Numbers that are not valid, zero, or held against no rated ceiling: what is said of them."""

from __future__ import annotations

from typing import Any

import bench_runs as runs
import pytest
import roofline_devices as devices
from bench_runs import CUBE, SMALL, burst, device, precision, run

from topsmon import events
from topsmon.cli.bench import _exit_code
from topsmon.cli.measure import GPU_ONLY as NOT_FOR_CPUS
from topsmon.laboratory import Outcome
from topsmon.report import bench, roofline
from topsmon.report.bench.build import GPU_ONLY
from topsmon.report.bench.model import Shape
from topsmon.report.roofline.scene import scene
from topsmon.report.roofline.text import LABELS
from topsmon.report.shown import nothing_computed

BUSY = "only {} % of CPU time received"
TOP = "3400 MHz, the highest clock measured here; told: nominal clock 3000 MHz"
MIDDLE = (2048, 2048, 4096)


def shared(ops: float, shape: Shape, share: int) -> Any:
    return burst(ops, shape=shape, valid=False, invalid_reason=BUSY.format(share))


def only_row(old: bench.BenchDocument, new: bench.BenchDocument) -> bench.Row:
    (found,) = bench.compare(old, new).devices
    (row,) = found.rows
    return row


# Comparisons --------------------------------------------------------------------------------------


def test_shapes_of_both_runs_that_are_not_valid_in_one_are_no_missing_shapes() -> None:
    before = precision("fp32", burst(9e11, shape=SMALL), shared(8e11, CUBE, 61))
    now = precision("fp32", burst(9e11, shape=CUBE), shared(8e11, SMALL, 70))
    row = only_row(run(device(before)), run(device(now)))
    assert row.verdict == "cannot tell"
    assert row.reason == (
        "no shape is valid in both runs: 8192^3 before: not valid: only 61 % of CPU time received; "
        "4096^3 now: not valid: only 70 % of CPU time received"
    )


def test_shapes_that_differ_are_sorted_by_their_work() -> None:
    before = precision("fp32", burst(9e11, shape=CUBE), burst(8e11, shape=SMALL))
    row = only_row(run(device(before)), run(device(precision("fp32", burst(9e11, shape=MIDDLE)))))
    assert row.reason == "no shape in common: 4096^3, 8192^3 before, 2048x2048x4096 now"


def test_a_fall_to_zero_is_a_failure() -> None:
    old = run(device(precision("bf16", burst(700e12))))
    comparison = bench.compare(old, run(device(precision("bf16", burst(0.0)))))
    (row,) = comparison.devices[0].rows
    assert row.wrong
    assert row.change_ratio == -1.0
    assert "nothing was computed" in row.reason
    assert bench.exit_code(comparison) == 2
    assert "FAIL" in bench.comparison_text(comparison, 100, True)


def test_one_shape_of_zero_is_a_failure_beside_a_good_one() -> None:
    good = burst(700e12, shape=SMALL)
    old = run(device(precision("bf16", good, burst(700e12))))
    comparison = bench.compare(old, run(device(precision("bf16", good, burst(0.0)))))
    assert bench.exit_code(comparison) == 2
    assert "8192^3" in comparison.devices[0].rows[0].reason


def test_a_rate_after_a_zero_cannot_be_told() -> None:
    row = only_row(*(run(device(precision("bf16", burst(ops)))) for ops in (0.0, 700e12)))
    assert (row.verdict, row.wrong) == ("cannot tell", False)
    assert row.reason == "before nothing was computed"


def test_a_bandwidth_of_zero_is_a_failure() -> None:
    def moved(value: float) -> bench.BenchDocument:
        result = runs.probe("memory", {"copy_bytes_per_second": value})
        return bench.document(runs.state(runs.gpu(runs.H100), result), ["GPU-0"])

    comparison = bench.compare(moved(3e12), moved(0.0))
    assert bench.exit_code(comparison) == 2
    assert "nothing was moved" in bench.text(moved(0.0), 100, True)


# One benchmark ------------------------------------------------------------------------------------


def test_a_rate_of_zero_says_that_nothing_was_computed() -> None:
    state = runs.state(runs.gpu(runs.H100), runs.rate("bf16", 0.0))
    document = bench.document(state, ["GPU-0"])
    (result,) = document.devices[0].precisions
    assert any("nothing was computed" in remark for remark in result.remarks)
    assert "nothing was computed" in bench.text(document, 200, True)


def test_a_shape_of_zero_is_named_beside_a_good_one() -> None:
    state = runs.state(
        runs.gpu(runs.H100), runs.rate("bf16", 700.0), runs.rate("bf16", 0.0, shape=SMALL)
    )
    (result,) = bench.document(state, ["GPU-0"]).devices[0].precisions
    assert any("nothing was computed" in text and "4096^3" in text for text in result.remarks)


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (runs.rate("bf16", 0.0), True),
        (runs.rate("bf16", 700.0), False),
        (runs.rate("bf16", None), True),
        (runs.rate("bf16", None, valid=False), False),
        (runs.rate("bf16", None, correct=None), False),
        (runs.probe("memory", {"copy_bytes_per_second": 0.0}), True),
        (runs.probe("memory", {"copy_low_bytes_per_second": 0.0}), False),
        (runs.probe("memory", {"copy_bytes_per_second": None}), False),
        (runs.probe("launch", {"launch_seconds": 0.0}), False),
    ],
)
def test_what_counts_as_nothing_computed(result: Any, failed: bool) -> None:
    assert nothing_computed(result) is failed


def test_a_cpu_says_why_it_has_no_transfer() -> None:
    assert set(GPU_ONLY) == NOT_FOR_CPUS
    state = runs.state(runs.cpu())
    document = bench.document(state, ["cpu"], asked=["transfer", "memory"])
    assert document.devices[0].not_measured == {
        "transfer": "a CPU has no transfer between host and device",
        "memory": "no result came",
    }


def test_of_shapes_that_are_all_not_valid_the_fastest_is_shown() -> None:
    disturbed: dict[str, Any] = {"device": "cpu", "valid": False, "invalid_reason": "shared"}
    state = runs.state(
        runs.cpu(),
        runs.rate("fp32", 0.938, shape=(1024,) * 3, **disturbed),
        runs.rate("fp32", 0.932, shape=(512,) * 3, **disturbed),
    )
    (result,) = bench.document(state, ["cpu"]).devices[0].precisions
    assert result.best.shape == (1024,) * 3
    roof = roofline.build(state.devices["cpu"]).roof("fp32", "measured")
    assert roof is not None
    assert roof.ops_per_second == 938e9


def test_a_slow_valid_shape_is_shown_before_a_fast_one_that_is_not() -> None:
    state = runs.state(
        runs.gpu(runs.H100),
        runs.rate("bf16", 500.0),
        runs.rate("bf16", 900.0, shape=SMALL, valid=False),
    )
    best = state.devices["GPU-0"].rates["bf16"].best
    assert best is not None
    assert best.shape == CUBE


@pytest.mark.parametrize(("source", "word"), [(TOP, "at top clock"), ("nominal", "rated")])
def test_a_ceiling_at_a_measured_clock_is_not_called_rated(source: str, word: str) -> None:
    device, rates, ready = runs.cpu()
    assert isinstance(rates, events.Ceilings)
    known = events.Ceilings(
        **runs.STAMP, device="cpu", rates=rates.rates, clock_source=source, absent=rates.absent
    )
    state = runs.state([device, known, ready], runs.rate("fp32", 0.19, device="cpu"))
    header = next(
        row
        for row in bench.text(bench.document(state, ["cpu"]), 200, True).splitlines()
        if row.startswith("GEMM")
    )
    assert word in header
    drawn = roofline.text(roofline.build(state.devices["cpu"]), width=120, ascii_only=True)
    assert f"FP32 {word}" in drawn
    assert ("the highest clock measured here" in drawn) is (word == "at top clock")


# Rooflines ----------------------------------------------------------------------------------------


def busy_cpu(triad: float = 20.5e9, cache: float = 60e9) -> roofline.Roofline:
    """A CPU whose every number was disturbed, with different shares of its time."""
    disturbed: list[events.AnyEvent] = []
    for share, size in ((61, 512), (64, 1024), (70, 2048)):
        disturbed.append(
            devices.rate(
                "fp32",
                150e9 + size * 1e6,
                (size,) * 3,
                "cpu",
                valid=False,
                invalid_reason=BUSY.format(share),
            )
        )
    values: dict[str, float | None] = {
        "copy_bytes_per_second": 21e9,
        "triad_bytes_per_second": triad,
    }
    caches: dict[str, float | None] = {"last_level_bytes_per_second": cache}
    reason: dict[str, Any] = {"valid": False, "invalid_reason": BUSY.format(66)}
    disturbed.append(devices.probe("memory", values, "cpu", **reason))
    disturbed.append(devices.probe("cache", caches, "cpu", **reason))
    return roofline.build(devices.processor(*disturbed))


def test_reasons_that_differ_by_a_percentage_are_told_once() -> None:
    line = busy_cpu()
    text = roofline.text(line, width=200)
    assert "Not valid: only 61 to 70 % of CPU time received." in line.notes
    assert text.count("of CPU time received") == 1


def test_what_is_computed_from_doubtful_numbers_is_marked() -> None:
    line = busy_cpu()
    assert [ridge.trusted for ridge in line.ridges] == [False] * len(line.ridges)
    labels = [mark.labels for mark in scene(line).marks if mark.kind == "ridge" and mark.labels]
    assert labels
    assert all("!" in label for group in labels for label in group)
    rows = [row for row in roofline.text(line, width=200).splitlines() if "of the roof" in row]
    assert rows
    assert all("%! of the roof" in row for row in rows)


def test_a_valid_point_under_a_roof_that_is_not_is_marked() -> None:
    valid = roofline.text(roofline.build(devices.measured_h100()), width=200)
    assert "%! of the roof" not in valid
    assert "ridge 295 " in valid


def test_an_own_measurement_is_no_ceiling_to_hold_against() -> None:
    # FP8 emulated: no ceiling; a point at 1.4 times the one that was held to be the roof
    line = roofline.build(
        devices.h100(
            devices.rate("fp8", 100e12, emulated=True),
            devices.probe(
                "scaled",
                {"rate_ops_per_second": 137.8e12, "intensity_flops_per_byte": 2000.0},
                labels={"precision": "fp8"},
            ),
        ),
        ["fp8"],
    )
    assert {point.roof_ratio for point in line.points} == {None}
    text = roofline.text(line, width=200)
    assert "no ceiling, compute-bound" in text
    assert "of the roof" not in text


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("width", [60, 70, 80, 90, 100])
def test_labels_of_a_plot_stand_two_cells_apart(width: int, ascii_only: bool) -> None:
    for line in (busy_cpu(), roofline.build(devices.measured_h100())):
        for row in roofline.chart(line, width, 24, ascii_only=ascii_only):
            roles = [run.role for run in row for _ in run.text]
            runs_of_labels = "".join("x" if role in LABELS else " " for role in roles)
            assert "x x" not in runs_of_labels, "".join(run.text for run in row)


@pytest.mark.parametrize(("width", "height"), [(480, 320), (640, 480), (960, 640)])
@pytest.mark.parametrize("triad", [17e9, 20.5e9, 20.9e9])
@pytest.mark.parametrize("cache", [22e9, 30e9, 60e9])
def test_every_slope_in_a_picture_of_a_cpu_has_a_label(
    width: int, height: int, triad: float, cache: float
) -> None:
    rows = roofline.svg(busy_cpu(triad, cache), width=width, height=height).splitlines()
    for name in ("DRAM copy", "DRAM triad", "last-level cache"):
        assert any(name in row and 'class="over ' in row for row in rows), name


# Exit codes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([runs.rate("bf16", 700.0)], 0),
        ([runs.rate("bf16", 700.0), runs.rate("fp32", 50.0, valid=False)], 0),
        ([runs.rate("bf16", 700.0, valid=False)], 3),
        ([], 3),
        ([runs.rate("bf16", 700.0), runs.rate("fp32", 0.0)], 2),
        ([runs.rate("bf16", 0.0, shape=SMALL), runs.rate("bf16", 700.0)], 2),
        ([runs.rate("bf16", 1.0, correct=False), runs.rate("bf16", 700.0)], 2),
        ([runs.rate("bf16", 700.0), runs.probe("memory", {"copy_bytes_per_second": 0.0})], 2),
    ],
)
def test_exit_codes_of_one_benchmark(results: list[Any], code: int) -> None:
    found = runs.state(runs.gpu(runs.H100), *results)
    outcome = Outcome(found, seen={}, devices=("GPU-0",), interrupted=False)
    assert _exit_code(outcome) == code

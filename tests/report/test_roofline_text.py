"""The roofline in character cells: places of points, ticks, labels, the table below."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roofline_devices import H100_BF16, ceiling, device, h100, measured_h100, probe, processor, rate

from topsmon import events
from topsmon.report import roofline
from topsmon.report.columns import cells
from topsmon.report.roofline.scene import scene

SIZES = [(60, 16), (80, 24), (100, 30), (120, 34), (200, 60)]
LABELS = {"label", "rated-label", "held-label", "measured-label", "cache-label", "other-label"}


def rows(line: roofline.Roofline, width: int, height: int, *, ascii_only: bool = False):
    return [
        "".join(run.text for run in row)
        for row in roofline.chart(line, width, height, ascii_only=ascii_only)
    ]


def x_ticks(chart: list[str]) -> dict[float, int]:
    """Columns of the notches of the lower axis, by the numbers centred below them."""
    notches = [column for column, sign in enumerate(chart[-2]) if sign in "┬+"]
    notches = [column for column in notches if chart[-2][column] != "└"][-99:]
    numbers = [
        (float(match.group()), (match.start() + match.end()) / 2)
        for match in re.finditer(r"[0-9][0-9.e-]*", chart[-1])
    ]
    return {
        number: min(notches, key=lambda column: abs(column - middle)) for number, middle in numbers
    }


def y_ticks(chart: list[str]) -> dict[float, int]:
    """Rows of the numbers of the upright axis."""
    return {float(row.split("┤")[0]): number for number, row in enumerate(chart[:-2]) if "┤" in row}


def place(ticks: dict[float, int], value: float) -> float:
    """Where a value belongs by two ticks of a logarithmic axis."""
    (first, at_first), (last, at_last) = min(ticks.items()), max(ticks.items())
    share = math.log10(value / first) / math.log10(last / first)
    return at_first + (at_last - at_first) * share


def signs(chart: list[str], sign: str) -> list[tuple[int, int]]:
    """Columns and rows of a sign in the plot."""
    return [
        (column, row)
        for row, text in enumerate(chart[:-2])
        for column, found in enumerate(text)
        if found == sign
    ]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_plot_has_exactly_its_size(width: int, height: int, ascii_only: bool) -> None:
    chart = rows(roofline.build(measured_h100()), width, height, ascii_only=ascii_only)
    assert len(chart) == height
    assert {cells(row) for row in chart} == {width}
    assert not ascii_only or all(row.isascii() for row in chart)


def test_smaller_sizes_are_taken_as_60x16() -> None:
    chart = rows(roofline.build(h100()), 10, 3)
    assert (len(chart), len(chart[0])) == (16, 60)


def test_a_point_stands_at_its_intensity_and_rate_by_the_axes() -> None:
    # The one GEMM: 520 TFLOPS at 2048/3 = 683 FLOP/byte.
    chart = rows(roofline.build(h100(rate("bf16", 520e12, (2048,) * 3)), ["bf16"]), 120, 40)
    ((column, row),) = signs(chart, "●")
    assert column == pytest.approx(place(x_ticks(chart), 2048 / 3), abs=1)
    assert min(x_ticks(chart).values()) < column < max(x_ticks(chart).values())
    assert row == pytest.approx(place(y_ticks(chart), 520), abs=1)


def test_the_rated_ridge_stands_at_295_and_989() -> None:
    chart = rows(roofline.build(h100(), ["bf16"]), 120, 40)
    ((column, row),) = signs(chart, "◆")
    assert column == pytest.approx(place(x_ticks(chart), 295.2), abs=1)
    assert row == pytest.approx(place(y_ticks(chart), 989.4), abs=1)
    assert any("ridge 295 FLOP/byte" in text for text in chart)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_lines_run_where_the_axes_say(ascii_only: bool) -> None:
    line = roofline.build(h100(), ["bf16"])
    chart = rows(line, 120, 40)
    found = []
    for row, runs in enumerate(roofline.chart(line, 120, 40, ascii_only=ascii_only)):
        column = 0
        for run in runs:
            if run.role == "rated":
                found += [(column + offset, row) for offset in range(len(run.text))]
            column += len(run.text)
    x, y = x_ticks(chart), y_ticks(chart)
    assert max(y.items())[1] < min(y.items())[1]
    assert max(x.items())[1] > min(x.items())[1]
    right = max(found)
    assert right == (119, pytest.approx(place(y, 989.4), abs=1))
    # 3.352e12 bytes a second feed 33.52 TFLOPS at 10 and 335.2 at 100 operations a byte
    for intensity in (10, 100):
        at = round(place(x, intensity))
        crossed = [row for column, row in found if abs(column - at) <= 1]
        assert place(y, 3.352 * intensity) == pytest.approx(sum(crossed) / len(crossed), abs=1)


def test_a_rate_above_the_ceiling_is_drawn_above_it() -> None:
    chart = rows(roofline.build(h100(rate("bf16", 4 * H100_BF16)), ["bf16"]), 120, 40)
    ((_, point_row),) = signs(chart, "●")
    assert point_row == pytest.approx(place(y_ticks(chart), 4 * 989.4), abs=1)
    roof_row = place(y_ticks(chart), 989.4)
    assert point_row < roof_row - 2


@pytest.mark.parametrize("make", [measured_h100, processor])
def test_ticks_are_1_2_5(make) -> None:
    chart = rows(roofline.build(make()), 120, 40)
    for number in (*x_ticks(chart), *y_ticks(chart)):
        assert f"{number:e}"[0] in "125"
        assert f"{number:e}"[1:8] == ".000000"
    x = sorted(x_ticks(chart))
    assert 2.0 <= x[1] / x[0] <= 2.5


def allowed_labels(line: roofline.Roofline) -> set[str]:
    what = scene(line)
    found = {label for stroke in what.strokes for label in stroke.labels}
    return found | {label for mark in what.marks for label in mark.labels}


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("make", [measured_h100, processor])
def test_labels_are_whole_and_apart(make, width: int, height: int) -> None:
    line = roofline.build(make())
    allowed = allowed_labels(line)
    for row in roofline.chart(line, width, height):
        for number, run in enumerate(row):
            if run.role in LABELS:
                assert run.text in allowed
                after = row[number + 1].role if number + 1 < len(row) else ""
                assert after not in LABELS


def test_every_point_in_focus_is_named_in_the_plot() -> None:
    line = roofline.build(measured_h100())
    runs = {run.text for row in roofline.chart(line, 120, 40) for run in row if run.role in LABELS}
    for mark in scene(line).marks:
        if mark.focus and mark.kind != "ridge":
            assert runs.intersection(mark.labels), mark


def test_lines_are_named_with_their_bandwidth_and_source() -> None:
    text = "\n".join(rows(roofline.build(measured_h100(), ["bf16"]), 160, 50))
    assert "DRAM rated 3352 GB/s" in text
    assert "DRAM triad measured 3020 GB/s" in text
    assert "L2 measured 6100 GB/s" in text
    assert "BF16 rated 989 TFLOPS" in text
    assert "measured 735" in text


def test_the_table_has_all_numbers_with_units() -> None:
    text = roofline.text(roofline.build(measured_h100()), width=140)
    for words in (
        r"BF16 rated +989 TFLOPS +ridge 295 FLOP/byte +published: data sheet",
        r"DRAM copy measured +2900 GB/s",
        r"BF16 8192³ +735 TFLOPS +2731 FLOP/byte +74\.3% of the roof, compute-bound",
        r"INT8 measured +1429 TOPS +ridge 473 OP/byte",
        r"convolution +310 TFLOPS +402 FLOP/byte +31\.3% of the roof, compute-bound",
    ):
        assert re.search(words, text), words


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_asked_and_nothing_of_the_table_is_lost(width: int) -> None:
    text = roofline.text(roofline.build(measured_h100()), width=width, height=16)
    assert max(cells(row) for row in text.splitlines()) <= width
    joined = " ".join(text.split())
    assert "at 1755 MHz, held during the best burst" in joined
    assert "42.6% of the roof, memory-bound" in joined


def test_a_table_cut_to_one_line_each_says_that_it_is_cut() -> None:
    own, others = roofline.short_legend(roofline.build(measured_h100()), 80)
    texts = ["".join(run.text for run in row) for row in (*own, *others)]
    assert max(cells(text) for text in texts) <= 80
    assert any(text.endswith("..") for text in texts)
    assert "BF16 rated" in texts[0]
    assert not any("BF16" in "".join(run.text for run in row) for row in others)


def test_ascii_text_is_ascii_throughout() -> None:
    text = roofline.text(roofline.build(measured_h100()), width=100, height=30, ascii_only=True)
    assert text.isascii()
    assert "BF16 8192^3" in text
    assert "?" not in text


def test_the_title_names_device_precision_and_simulation() -> None:
    line = roofline.build(h100(), simulated="healthy-eight")
    assert roofline.text(line).startswith(
        "SIMULATED (healthy-eight)  GPU 0 NVIDIA H100 80GB HBM3: roofline, BF16"
    )


def test_a_cpu_is_drawn_in_gflops_and_says_what_is_missing() -> None:
    text = roofline.text(
        roofline.build(processor(probe("memory", {"copy_bytes_per_second": 20e9}, "cpu")))
    )
    assert "GFLOPS" in text
    assert re.search(r"FP32 rated +199 GFLOPS +ridge 9\.95 FLOP/byte", text)
    assert "measured bandwidth alone" in " ".join(text.split())


def test_what_must_not_be_trusted_is_marked() -> None:
    busy = {"valid": False, "invalid_reason": "another process uses GPU 0"}
    memory = probe("memory", {"copy_bytes_per_second": 1e12}, **busy)
    text = roofline.text(
        roofline.build(h100(rate("bf16", 300e12, **busy), memory)), width=120, height=40
    )
    assert "BF16 measured 300 TFLOPS!" in text
    assert "DRAM copy measured 1000 GB/s!" in text
    assert "BF16 rated 989 TFLOPS!" not in text
    assert re.search(r"BF16 8192³! +300 TFLOPS", text)
    assert "! marks what must not be trusted" in text


def test_nothing_known_is_said_in_the_plot() -> None:
    assert "nothing to draw yet" in roofline.text(roofline.build(device()))


def test_wide_names_do_not_move_the_plot() -> None:
    values = {"rate_ops_per_second": 300e12, "intensity_flops_per_byte": 40.0}
    chart = rows(roofline.build(h100(probe("畳み込み", values))), 80, 24)
    assert {cells(row) for row in chart} == {80}
    assert any("畳み込み" in row for row in chart)


rates = st.floats(1e6, 1e16)
intensities = st.floats(1e-6, 1e9)


@settings(max_examples=60, deadline=None)
@given(
    rated=st.none() | rates,
    measured=st.none() | rates,
    bandwidth=st.none() | rates,
    copy=st.none() | rates,
    points=st.lists(st.tuples(intensities, rates), max_size=6),
    width=st.integers(60, 200),
    height=st.integers(16, 60),
    ascii_only=st.booleans(),
)
def test_any_positive_values_are_drawn_with_all_points_inside(
    rated, measured, bandwidth, copy, points, width, height, ascii_only
) -> None:
    seen: list[events.AnyEvent] = [
        probe(f"probe_{number}", {"intensity_flops_per_byte": x, "rate_ops_per_second": y})
        for number, (x, y) in enumerate(points)
    ]
    if measured is not None:
        seen.append(rate("bf16", measured))
    if copy is not None:
        seen.append(probe("memory", {"copy_bytes_per_second": copy}))
    line = roofline.build(
        h100(
            *seen,
            rates=() if rated is None else (ceiling("bf16", rated),),
            memory_bandwidth_bytes_per_second=bandwidth,
        )
    )
    chart = rows(line, width, height, ascii_only=ascii_only)
    assert len(chart) == height
    assert {cells(row) for row in chart} == {width}
    what = scene(line)
    for mark in what.marks:
        assert -1e-9 <= what.x.fraction(mark.x) <= 1 + 1e-9
        assert -1e-9 <= what.y.fraction(mark.y) <= 1 + 1e-9
    for stroke in what.strokes:
        for x, y in (stroke.start, stroke.end):
            assert -1e-9 <= what.x.fraction(x) <= 1 + 1e-9
            assert -1e-9 <= what.y.fraction(y) <= 1 + 1e-9
    if points:
        assert signs(chart, "#" if ascii_only else "■") or measured is not None
    text = roofline.text(line, width=width, height=height, ascii_only=ascii_only)
    assert max(cells(row) for row in text.splitlines()) <= width

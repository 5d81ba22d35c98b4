"""What is said about one precision: units, validity, origin, age, reasons."""

from __future__ import annotations

import pytest
from screen_demo import (
    CPU,
    GIB,
    NOW,
    WALL,
    ceilings,
    cpu,
    cpu_only,
    eight,
    fold,
    gpu,
    rate,
    sample,
    stamp,
)

from topsmon import events
from topsmon.state import State
from topsmon.tui.rate_rows import RateRow, age_text, hidden, row, rows
from topsmon.tui.view import View, ratio_mark

GPU = "GPU-00000000"


def view_of(state: State, **changes) -> View:
    key = next(iter(state.devices))
    values = {"state": state, "findings": (), "now": NOW, "wall": WALL, "interval": 0.5}
    return View(**{**values, "selected": key, **changes})


def row_of(state: State, key: str) -> RateRow:
    view = view_of(state)
    assert view.device is not None
    return row(view, view.device, key)


def h100(*more: events.AnyEvent) -> State:
    from screen_demo import H100

    return fold([gpu(0), ceilings(GPU, H100), sample(GPU), *more])


def test_a_rate_with_everything() -> None:
    state = h100(rate(GPU, "bf16", 412e12, held_clock_mhz=1155.0), rate(GPU, "fp32", 52e12))
    found = row_of(state, "bf16")
    assert (found.rate, found.unit, found.ceiling) == ("412", "TFLOPS", "989")
    assert found.ratio_text == "41.6%"
    # 989.4 x 1155 / 1830 MHz = 624.5 TFLOPS; 412 / 624.5 = 66.0 %; 624.5 / 989.4 = 63.1 %
    assert found.held_text == "66.0%"
    assert found.held == pytest.approx(0.631, abs=0.001)
    assert found.speed_up == "7.9×"
    assert found.shape == "8192×8192×8192"
    assert found.status == "now"


def test_integers_are_tops() -> None:
    found = row_of(h100(rate(GPU, "int8", 1414e12)), "int8")
    assert (found.rate, found.unit, found.ceiling) == ("1414", "TOPS", "1979")


def test_a_row_has_one_unit() -> None:
    """118 GFLOPS of 192 GFLOPS, not 0.118 TFLOPS of 192 GFLOPS."""
    found = row_of(cpu_only(), "fp32")
    assert (found.rate, found.unit, found.ceiling) == ("118", "GFLOPS", "192")


def test_above_the_ceiling_is_not_clamped() -> None:
    assert row_of(h100(rate(GPU, "bf16", 1058.7e12)), "bf16").ratio_text == "107.0%"


def test_invalid_numbers_say_why() -> None:
    found = row_of(cpu_only(), "fp32")
    assert (found.status, found.status_role) == ("invalid: 62% CPU", "warn")


def test_other_reasons_are_given_in_words() -> None:
    state = h100(
        rate(GPU, "bf16", 4e14, valid=False, invalid_reason="shared: python train.py (PID 12)")
    )
    assert row_of(state, "bf16").status == "invalid: shared: python train.py (PID 12)"


def test_a_wrong_result_is_a_failure() -> None:
    found = row_of(h100(rate(GPU, "bf16", 4e14, correct=False)), "bf16")
    assert (found.status, found.status_role) == ("WRONG result", "fail")


def test_emulated_is_said() -> None:
    assert row_of(cpu_only(), "bf16").status == "emulated, 2 min"


def test_results_of_an_earlier_session_have_their_age() -> None:
    state = h100()
    state.remember(rate(GPU, "bf16", 7e14, age=3 * 3600))
    assert row_of(state, "bf16").status == "3 h ago"
    assert ratio_mark(state.devices[GPU], "bf16") == "~"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (9.9, "now"), (47, "40 s ago"), (75, "1 min ago"), (7300, "2 h ago")],
)
def test_ages_are_coarse(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_what_the_device_cannot_run_says_why() -> None:
    found = row_of(eight(ticks=1, count=1), "fp4")
    assert found.explanation == "not on sm_90"
    assert not found.runs
    assert found.rate == ""


def test_not_measured_is_neither_zero_nor_silent() -> None:
    found = row_of(h100(), "bf16")
    assert (found.rate, found.ratio, found.explanation) == ("", None, "not measured")
    assert found.ceiling == "989"


def test_an_unknown_board_has_rates_but_no_ratio() -> None:
    unknown = events.Ceilings(**stamp(), device=GPU, unknown="board is not known")
    state = fold([gpu(0, name="NVIDIA FutureCard X1"), unknown, rate(GPU, "bf16", 1.7e15)])
    found = row_of(state, "bf16")
    assert (found.rate, found.ceiling, found.ratio_text) == ("1700", "", "")
    assert found.explanation == "no ceiling: board is not known"


def test_a_ceiling_that_is_a_range_is_shown_as_one() -> None:
    wide = events.Ceiling(
        precision="fp32",
        ops_per_second=1280e9,
        ops_per_second_low=640e9,
        origin="range",
        source="one or two FMA units",
    )
    state = fold(
        [cpu(memory_total_bytes=GIB), events.Ceilings(**stamp(), device="cpu", rates=(wide,))]
    )
    assert row_of(state, "fp32").ceiling == "0.640-1.28"


def test_short_of_room_the_rows_that_cannot_run_go_first() -> None:
    view = view_of(eight(ticks=1, count=1))
    assert view.device is not None
    shown = rows(view, view.device, 7)
    assert [entry.key for entry in shown] == [
        "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8",
    ]  # fmt: skip
    assert hidden(view, view.device, shown) == 0
    fewer = rows(view, view.device, 3)
    assert "bf16" in [entry.key for entry in fewer]
    assert hidden(view, view.device, fewer) == 4


def test_only_chosen_precisions_are_shown() -> None:
    view = view_of(eight(ticks=1, count=1), precisions=("fp32", "bf16"))
    assert view.device is not None
    assert [entry.key for entry in rows(view, view.device, 9)] == ["fp32", "bf16"]


def test_the_cpu_ceiling_in_the_demo_is_the_formula() -> None:
    """2 cores x 3 GHz x 32 FLOP/cycle (two 256-bit FMA units), half of it for FP64."""
    assert CPU["fp32"] == 2 * 3e9 * 32
    assert CPU["fp64"] == CPU["fp32"] / 2


def test_no_speed_up_from_a_rate_that_is_not_valid() -> None:
    slow = rate(GPU, "fp32", 2e12, valid=False, invalid_reason="shared: somebody")
    assert row_of(h100(rate(GPU, "bf16", 412e12), slow), "bf16").speed_up == ""
    bad = rate(GPU, "bf16", 412e12, valid=False, invalid_reason="shared: somebody")
    assert row_of(h100(bad, rate(GPU, "fp32", 52e12)), "bf16").speed_up == ""

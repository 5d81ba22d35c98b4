"""Sparks, bars and charts: fixed scales, no invented values, nothing wider than asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from topsmon.tui.charts import dots_per_cell, draw, resample
from topsmon.tui.glyphs import ASCII, UTF8, bar, choose, spark, to_ascii


def test_spark_has_a_fixed_scale() -> None:
    assert spark([0.99, 0.992, 0.99], 3, UTF8) == "▇▇▇"
    assert spark([0.5], 1, UTF8) == spark([0.5, 0.5, 0.51], 1, UTF8)


def test_spark_ends_at_seven_eighths() -> None:
    assert "█" not in spark([1.0, 1.3], 2, UTF8)


def test_spark_tells_nothing_from_zero() -> None:
    assert spark([None, 0.0], 2, UTF8) == " ▁"


def test_spark_shows_the_newest_at_the_right() -> None:
    assert spark([0.0, 0.0, 1.0], 2, UTF8) == "▁▇"
    assert spark([1.0], 4, UTF8) == "   ▇"


@given(st.lists(st.none() | st.floats(-1, 3), max_size=50), st.integers(1, 40))
def test_spark_has_the_asked_width(values: list[float | None], width: int) -> None:
    for glyphs in (UTF8, ASCII):
        drawn = spark(values, width, glyphs)
        assert cell_len(drawn) == width


@pytest.mark.parametrize(
    ("ratio", "filled"), [(0.0, ""), (0.25, "━━╸"), (0.5, "━━━━━"), (1.0, "━" * 10)]
)
def test_bar_is_proportional_to_half_a_cell(ratio: float, filled: str) -> None:
    assert bar(ratio, 10, UTF8)[0] == filled


def test_bar_above_the_ceiling_says_so() -> None:
    assert bar(1.07, 10, UTF8) == ("━" * 9 + "▶", "")


def test_bar_marks_the_ceiling_at_held_clock() -> None:
    filled, rest = bar(0.41, 20, UTF8, tick=0.631)
    assert (filled + rest).index("┼") == 12


@given(st.floats(0, 3), st.integers(0, 60), st.none() | st.floats(0, 2))
def test_bar_has_the_asked_width(ratio: float, width: int, tick: float | None) -> None:
    for glyphs in (UTF8, ASCII):
        assert len("".join(bar(ratio, width, glyphs, tick))) == width


def test_resample_takes_the_mean_of_each_interval() -> None:
    times = [0.0, 0.5, 1.0, 1.5, 2.0]
    assert resample(times, [0.0, 1.0, 0.4, 0.6, 0.9], 1.0, 2, last=1) == [0.5, 0.5]


def test_resample_keeps_gaps_and_bridges_jitter() -> None:
    assert resample([0.1, 2.1], [0.4, 0.8], 1.0, 3, last=2) == [0.4, 0.4, 0.8]
    assert resample([0.1, 9.1], [0.4, 0.8], 1.0, 3, last=9) == [None, None, 0.8]
    assert resample([0.1, 1.1, 2.1], [0.4, None, 0.8], 1.0, 3, last=2)[0] == 0.4


def test_resample_does_not_move_what_was_drawn() -> None:
    """The same second stays in the same interval while time goes on."""
    times, values = [float(t) for t in range(20)], [t / 20 for t in range(20)]
    early = resample(times[:18], values[:18], 2.0, 4, last=7)
    late = resample(times, values, 2.0, 4, last=8)
    assert early[1:] == late[:3]


def test_chart_puts_full_scale_at_the_top_and_zero_at_the_bottom() -> None:
    rows = draw([[1.0, 1.0], [0.0, 0.0]], 1, 3, UTF8)
    assert [row[0].series for row in rows] == [0, None, 1]
    assert rows[0][0].sign == "⠉"
    assert rows[2][0].sign == "⣀"


def test_chart_joins_points_and_leaves_gaps() -> None:
    joined = draw([[0.0, 1.0]], 1, 2, UTF8)
    assert all(row[0].series == 0 for row in joined)
    gap = draw([[0.0, 0.0, None, None, 0.0, 0.0]], 3, 1, UTF8)[0]
    assert [cell.sign for cell in gap] == ["⣀", " ", "⣀"]


@given(st.lists(st.none() | st.floats(-1, 2), max_size=60), st.integers(0, 30), st.integers(0, 12))
def test_chart_has_the_asked_size(values: list[float | None], width: int, height: int) -> None:
    for glyphs in (UTF8, ASCII):
        padded = (values + [None] * 60)[: width * dots_per_cell(glyphs)]
        rows = draw([padded], width, height, glyphs)
        assert len(rows) == (height if width else 0)
        assert all(len(row) == width for row in rows)


@pytest.mark.parametrize("encoding", ["ascii", "iso8859-1", "latin-1", "ANSI_X3.4-1968", None])
def test_other_encodings_get_ascii(encoding: str | None) -> None:
    assert choose(ascii_only=False, encoding=encoding, terminal="xterm-256color") is ASCII


@pytest.mark.parametrize("terminal", ["linux", "vt100"])
def test_terminals_without_braille_get_ascii(terminal: str) -> None:
    assert choose(ascii_only=False, encoding="utf-8", terminal=terminal) is ASCII


@pytest.mark.parametrize(
    "terminal", ["xterm", "xterm-256color", "screen", "screen-256color", "tmux-256color"]
)
def test_utf8_terminals_get_utf8_unless_told_otherwise(terminal: str) -> None:
    assert choose(ascii_only=False, encoding="UTF-8", terminal=terminal) is UTF8
    assert choose(ascii_only=True, encoding="UTF-8", terminal=terminal) is ASCII


@given(st.text(max_size=40))
def test_ascii_text_keeps_its_width(text: str) -> None:
    converted = to_ascii(text)
    assert converted.isascii()
    assert cell_len(converted) == cell_len(text)

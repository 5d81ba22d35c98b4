"""Lines are measured in cells, also where characters take two of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from topsmon.tui.cells import (
    Span,
    changed_until,
    clip,
    fit,
    left,
    line_width,
    plain_text,
    right,
    two_sided,
    words,
)

printable = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Mn", "Me", "Zl", "Zp"]))
spans = st.lists(st.builds(Span, printable, st.sampled_from(["text", "muted"])), max_size=6)


def test_a_cut_is_marked() -> None:
    assert clip("power limit", 6) == "power…"
    assert clip("power", 5) == "power"
    assert clip("训练脚本", 5) == "训练…"


@given(printable, st.integers(0, 30))
def test_padded_text_has_exactly_the_width(text: str, width: int) -> None:
    assert cell_len(left(text, width)) == width
    assert cell_len(right(text, width)) == width


@given(spans, st.integers(0, 40))
def test_fit_never_exceeds_the_width(line: list[Span], width: int) -> None:
    assert line_width(fit(line, width)) <= width


def test_fit_joins_neighbours_of_one_role() -> None:
    assert fit([Span("a", "text"), Span("", "fail"), Span("b", "text")], 9) == (Span("ab", "text"),)


def test_the_right_side_gives_way() -> None:
    assert plain_text(two_sided([Span("left")], [Span("right")], 12)) == "left   right"
    assert plain_text(two_sided([Span("left")], [Span("right")], 10)) == "left"


def test_words_are_not_broken() -> None:
    assert words("one two three", 7) == ["one two", "three"]
    assert words("", 7) == []


def test_a_repaint_ends_where_lines_become_equal() -> None:
    old = (Span("aaa", "text"), Span("bb", "muted"), Span("cc", "text"))
    assert changed_until(old, old) == 0
    assert changed_until(old, (Span("aax", "text"), *old[1:])) == 3
    assert changed_until(old, (*old[:2], Span("cc", "fail"))) == 7
    assert changed_until(old, (Span("aaaa", "text"), *old[1:])) == 8


def cells_of(line: list[Span]) -> list[tuple[str, str]]:
    return [(character, span.role) for span in line for character in span.text]


@given(spans, spans)
def test_what_is_not_repainted_is_equal(old: list[Span], new: list[Span]) -> None:
    end = changed_until(tuple(old), tuple(new))
    # Lines are equal when their cells are, however these are divided into spans.
    if cells_of(old) != cells_of(new):
        assert end > 0 or line_width(new) == line_width(old) == 0

"""Lines of styled text measured in terminal cells.

A line is a tuple of spans; a span is text and the name of a role that the palette gives a colour.
Widths are cells, not characters: a CJK process name takes two cells a character.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

ELLIPSIS = "…"


class Span(NamedTuple):
    """Text in one role."""

    text: str
    role: str = "text"


Line = tuple[Span, ...]


def width_of(text: str) -> int:
    """Cells that a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def clip(text: str, width: int) -> str:
    """Return the text cut to `width` cells, its last cell an ellipsis where something is lost."""
    if width <= 0:
        return ""
    if width_of(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def left(text: str, width: int) -> str:
    """Return the text at the left of exactly `width` cells, cut where it is too long."""
    clipped = clip(text, width)
    return clipped + " " * (width - width_of(clipped))


def right(text: str, width: int) -> str:
    """Return the text at the right of exactly `width` cells, cut where it is too long."""
    clipped = clip(text, width)
    return " " * (width - width_of(clipped)) + clipped


def line_width(spans: Iterable[Span]) -> int:
    """Cells that the spans take together."""
    return sum(width_of(span.text) for span in spans)


def fit(spans: Iterable[Span], width: int) -> Line:
    """Return the spans cut to `width` cells and joined where neighbours share a role."""
    result: list[Span] = []
    room = width
    for span in spans:
        if not span.text:
            continue
        if room <= 0:
            _mark_cut(result)
            break
        text = span.text if width_of(span.text) <= room else clip(span.text, room)
        room = room - width_of(text) if text is span.text else 0
        if result and result[-1].role == span.role:
            result[-1] = Span(result[-1].text + text, span.role)
        else:
            result.append(Span(text, span.role))
        if text is not span.text:
            break
    return tuple(result)


def _mark_cut(spans: list[Span]) -> None:
    """Replace the last cell by an ellipsis unless it is blank."""
    if not spans:
        return
    last = spans[-1]
    if not last.text.endswith((" ", ELLIPSIS)):
        spans[-1] = Span(clip(last.text + " ", width_of(last.text)), last.role)


def two_sided(left_spans: Iterable[Span], right_spans: Iterable[Span], width: int) -> Line:
    """Return spans at both ends of a line; the right ones give way when both do not fit."""
    left_line = fit(left_spans, width)
    used = line_width(left_line)
    right_line = tuple(right_spans)
    gap = width - used - line_width(right_line)
    if gap < 2:
        return left_line
    return fit((*left_line, Span(" " * gap, "text"), *right_line), width)


def words(text: str, width: int) -> list[str]:
    """Return the text broken at blanks into lines of at most `width` cells."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        candidate = f"{current} {word}" if current else word
        if width_of(candidate) <= width or not current:
            current = candidate
        else:
            lines.append(clip(current, width))
            current = word
    if current:
        lines.append(clip(current, width))
    return lines


def plain_text(line: Iterable[Span]) -> str:
    """Return the text of a line without its roles."""
    return "".join(span.text for span in line)


def changed_until(old: Line, new: Line) -> int:
    """Return the cell after the last one in which two lines differ, 0 if they are equal."""
    if old == new:
        return 0
    end, old_end = line_width(new), line_width(old)
    if end != old_end:
        return max(end, old_end)
    for before, after in zip(reversed(old), reversed(new), strict=False):
        if before != after:
            if before.role == after.role and before.text.isascii() and after.text.isascii():
                end -= _common_ending(before.text, after.text)
            break
        end -= width_of(after.text)
    return end


def _common_ending(old: str, new: str) -> int:
    count = 0
    for before, after in zip(reversed(old), reversed(new), strict=False):
        if before != after:
            break
        count += 1
    return count

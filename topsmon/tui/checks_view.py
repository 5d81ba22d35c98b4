"""The verdicts of all checks over what this session has measured so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from topsmon import events
from topsmon.tui.cells import Line, Span, fit, left, words
from topsmon.tui.panel import Panel
from topsmon.tui.view import View
from topsmon.units import plain

ROLES: dict[events.CheckState, str] = {
    "PASS": "good",
    "WARN": "warn",
    "FAIL": "fail",
    "INVALID": "warn",
    "NO-VERDICT": "muted",
    "EMULATED": "muted",
    "UNSUPPORTED": "muted",
}
NOT_MEASURED = "not measured yet"
"""Cause of a verdict that waits for its first measurement."""
ORDER = (
    *("FAIL", "WARN", "INVALID", "PASS", NOT_MEASURED),
    *("EMULATED", "UNSUPPORTED", "NO-VERDICT"),
)
LABEL, STATE = 8, 12
TITLE_LEAST, TITLE_MOST = 24, 44
VALUE_LEAST, VALUE_MOST = 14, 28
DETAIL_MOST = 9
HEAD_DETAIL = 10
PROGRESS = 2


class Widths(NamedTuple):
    """Cells of the columns after label and state; 0 for one that is left out."""

    title: int
    value: int
    expected: int


class CheckList(Panel):
    """One row a check and device; under them the selected one in words and the progress."""

    headed_from = 8

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self.first = self.below = 0

    def title(self, view: View) -> str:
        """Count the verdicts."""
        return f"checks  {summary(view.checks)}" if view.checks else "checks"

    def subtitle(self, view: View) -> str:
        """Count the rows that are out of sight."""
        glyphs = view.glyphs
        above = f"{glyphs.up}{self.first} checks above" if self.first else ""
        below = f"{glyphs.down}{self.below} below" if self.below else ""
        return "   ".join(filter(None, (above, below)))

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return head, rows, the selected row's words and what is still to be measured."""
        if not view.checks:
            return [fit((Span("nothing to judge yet", "muted"),), width)]
        below = _below(view, width)
        room = max(0, height - 2 - PROGRESS)
        detail = _detail(view.checks[view.check], width)
        detail = _cut(detail, min(DETAIL_MOST, room // 2))
        count = max(1, min(len(view.checks), room - len(detail) - 1))
        self.first = _first(self.first, view.check, count, len(view.checks))
        self.below = len(view.checks) - self.first - count
        shown = view.checks[self.first : self.first + count]
        widths = _widths(width)
        lines = [_head(widths, width)]
        lines += [
            _row(view, result, widths, width, selected=self.first + place == view.check)
            for place, result in enumerate(shown)
        ]
        if detail:
            lines += [(), *detail]
        if len(lines) + 1 + len(below) <= height:
            lines += [()] * (height - len(lines) - len(below))
            lines += below
        return lines[:height]


def summary(results: Sequence[events.CheckResult]) -> str:
    """How many there are of each verdict, the worst first: "1 FAIL, 2 WARN, 12 not measured"."""
    counts = Counter(_word(result) for result in results)
    return ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word])


def _word(result: events.CheckResult) -> str:
    return NOT_MEASURED if result.cause == NOT_MEASURED else result.state


def progress(results: Sequence[events.CheckResult]) -> tuple[int, int]:
    """How many of the checks that can be measured have an answer, and how many there are."""
    possible = [result for result in results if result.state != "UNSUPPORTED"]
    return sum(result.cause != NOT_MEASURED for result in possible), len(possible)


def verdict_lines(result: events.CheckResult) -> list[tuple[str, str]]:
    """Heads and texts about one verdict: numbers, cause, what to do, evidence, on what grounds."""
    measured = result.value_text
    if measured and result.threshold_text:
        measured += f", expected {result.threshold_text}"
    pairs = [
        ("measured", measured),
        ("expected", "" if measured else result.threshold_text),
        ("because", result.cause),
        ("do", result.remedy),
        ("", result.command),
        *(("" if place else "evidence", text) for place, text in enumerate(result.evidence)),
        ("basis", result.basis),
    ]
    if result.experimental and result.threshold_text:
        pairs.append(("", "the limit is chosen by topsmon, nobody published one: it never fails"))
    return [(head, plain(text, 2000)) for head, text in pairs if text]


def _widths(width: int) -> Widths:
    room = width - LABEL - STATE
    title = min(max(TITLE_LEAST, room - 2 * VALUE_MOST + 4), TITLE_MOST)
    value = min(max(VALUE_LEAST, (room - title) * 9 // 16), VALUE_MOST)
    expected = room - title - value
    return Widths(title, value, expected if expected >= VALUE_LEAST else 0)


def _head(widths: Widths, width: int) -> Line:
    text = left("", LABEL) + left("verdict", STATE) + left("check", widths.title)
    text += left("measured", widths.value) + ("expected" if widths.expected else "")
    return fit((Span(text, "muted"),), width)


def _row(
    view: View, result: events.CheckResult, widths: Widths, width: int, *, selected: bool
) -> Line:
    ending = "@cursor" if selected else ""
    role = "text" if result.value_text or result.state == "PASS" else "muted"
    mark = view.glyphs.cursor if selected else " "
    spans = [
        Span(mark + left(plain(result.label, 20), LABEL - 1), role + ending),
        Span(left(result.state, STATE), ROLES[result.state] + ending),
        Span(left(plain(result.title, 80), widths.title - 1) + " ", role + ending),
    ]
    if result.value_text:
        spans.append(
            Span(left(plain(result.value_text, 80), widths.value - 1) + " ", role + ending)
        )
        expected = left(plain(result.threshold_text or result.cause, 80), widths.expected)
        spans.append(Span(expected, "muted" + ending))
    else:
        why = result.cause or result.threshold_text
        spans.append(
            Span(left(plain(why, 200), width - LABEL - STATE - widths.title), "muted" + ending)
        )
    return fit(spans, width)


def _detail(result: events.CheckResult, width: int) -> list[Line]:
    title = f"{plain(result.label, 20)}  {plain(result.title, 80)}"
    lines: list[Line] = [fit((Span(title, "strong"),), width)]
    for head, text in verdict_lines(result):
        role = "key" if text == result.command else "text"
        for place, part in enumerate(words(text, width - HEAD_DETAIL)):
            shown = head if place == 0 else ""
            lines.append((Span(left(shown, HEAD_DETAIL), "muted"), Span(part, role)))
    return lines


def _cut(lines: list[Line], room: int) -> list[Line]:
    if len(lines) <= room:
        return lines
    if room < 2:
        return []
    more = f"{len(lines) - room + 1} more lines: Enter"
    return [*lines[: room - 1], (Span(" " * HEAD_DETAIL), Span(more, "muted"))]


def _below(view: View, width: int) -> list[Line]:
    """What is still to be measured, and how; one line each."""
    device = view.device
    own = [result for result in view.checks if device is not None and result.device == device.key]
    lines: list[Line] = []
    if device is not None and own:
        done, count = progress(own)
        text = f"{device.label}: {done} of {count} checks have an answer"
        if view.prevented is None and not view.paused:
            on = device.key in view.benchmarking
            text += "; b measures less" if on else "; b measures its rates now"
        lines.append(fit((Span(text, "muted"),), width))
    hint = (Span("topsmon check", "key"), Span(" measures and judges all of it at once", "muted"))
    return [*lines, fit(hint, width)]


def _first(first: int, place: int, room: int, count: int) -> int:
    """The row at the top so that the selected one is in sight."""
    first = max(min(first, place), place - room + 1)
    return max(0, min(first, count - room))

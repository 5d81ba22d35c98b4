"""The roofline of the selected device: ceilings, measured lines, work as points between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from topsmon.report import roofline
from topsmon.report.columns import wrap
from topsmon.report.roofline.text import LOWEST, NARROWEST
from topsmon.tui.cells import Line, Span, fit
from topsmon.tui.panel import Panel
from topsmon.tui.view import View
from topsmon.units import PRECISIONS

PLOT_SHARE = 0.6
"""The plot takes at least this much of the height; what its table leaves goes to it as well."""

ROLES = {
    "rated": "series-1",
    "held": "series-2",
    "measured": "good",
    "cache": "series-3",
    "other": "muted",
    "gemm": "strong",
    "probe": "strong",
    "layer": "strong",
    "ridge": "strong",
    "away": "muted",
    "axis": "muted",
    "guide": "faint",
    "label": "text",
    "rated-label": "series-1",
    "held-label": "series-2",
    "measured-label": "good",
    "cache-label": "series-3",
    "other-label": "muted",
    "detail": "muted",
    "blank": "text",
}
"""Role of the palette for each role of the drawing."""


class _Drawn(NamedTuple):
    """What was drawn last, and from what."""

    line: roofline.Roofline
    size: tuple[int, int]
    ascii_only: bool
    lines: list[Line]


class RooflineView(Panel):
    """A plot with all its numbers below it; where there is no room for a plot the numbers alone."""

    headed_from = LOWEST + 2

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self._drawn: _Drawn | None = None

    def title(self, view: View) -> str:
        """Name the device and the precision that is drawn in full."""
        of = f"  {view.device.label} {PRECISIONS[view.precision].label}" if view.device else ""
        return f"roofline{of}"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return plot and table; drawn anew only when a number has changed."""
        if view.device is None:
            return [(Span("no device yet", "muted"),)]
        line = roofline.build(view.device, view.precisions, focus=view.precision)
        wanted = (line, (width, height), view.glyphs.ascii_only)
        if self._drawn is None or self._drawn[:3] != wanted:
            self._drawn = _Drawn(*wanted, draw(*wanted))
        return list(self._drawn.lines)


def draw(line: roofline.Roofline, size: tuple[int, int], ascii_only: bool) -> list[Line]:
    """Return at most as many lines as the height of `size`, none wider than its width."""
    width, height = size
    own, others = roofline.short_legend(line, width, ascii_only=ascii_only)
    notes = [part for note in line.notes for part in wrap(note, width)]
    below: list[Line] = [*_spans(own), *((Span(note, "muted"),) for note in notes), *_spans(others)]
    if width < NARROWEST or height < LOWEST:
        return [fit(row, width) for row in _cut(below, height)]
    plot = max(LOWEST, int(height * PLOT_SHARE), height - len(below))
    rows = _spans(roofline.chart(line, width, plot, ascii_only=ascii_only))
    return [fit(row, width) for row in (*rows, *_cut(below, height - plot))]


def _cut(rows: list[Line], room: int) -> list[Line]:
    """The rows that fit; the last one says how many do not."""
    if len(rows) <= room:
        return rows
    if room <= 0:
        return []
    hidden = len(rows) - room + 1
    return [*rows[: room - 1], (Span(f" and {hidden} more lines: topsmon roofline", "muted"),)]


def _spans(rows: Iterable[Iterable[tuple[str, str]]]) -> list[Line]:
    return [tuple(Span(text, ROLES[role]) for text, role in row) for row in rows]

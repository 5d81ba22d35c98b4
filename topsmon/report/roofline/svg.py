"""The roofline as a picture: SVG with real text, readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from xml.sax.saxutils import escape, quoteattr

from topsmon.report.columns import cells, wrap
from topsmon.report.roofline.axes import Axis, Tick
from topsmon.report.roofline.canvas import GUIDE
from topsmon.report.roofline.labels import (
    Box,
    Size,
    along_roof,
    along_slope,
    beside,
    first_free,
)
from topsmon.report.roofline.legend import entries, other_entries
from topsmon.report.roofline.model import Roofline
from topsmon.report.roofline.scene import Mark, Scene, Stroke, scene, to_name
from topsmon.report.roofline.text import FAINT, LINES, NOTHING, title

NARROWEST, LOWEST = 480, 320
FONT, ROW, CELL = 13, 19, 7.8
"""Height of letters, of a line of text, and width to allow for a letter, in pixels."""
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 64, 24, 64, 56
RADIUS = 4.5
SAMPLE = 34

STYLE = """
svg { font: 13px system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif; background: #ffffff }
.page { fill: #ffffff } .text { fill: #1f1f1f } .muted { fill: #5c5c5c }
.title { font-size: 16px; font-weight: bold }
.over { paint-order: stroke; stroke: #ffffff; stroke-width: 3px; stroke-linejoin: round }
.line { fill: none; stroke-width: 2px }
.frame { fill: none; stroke: #8a8a8a } .grid { stroke: #e6e6e6 }
.guide { stroke: #a8a8a8; stroke-width: 1px; stroke-dasharray: 1 4 }
.rated { stroke: #005fa8 } .held { stroke: #9a5200; stroke-dasharray: 9 5 }
.measured { stroke: #1c7430; stroke-dasharray: 2 4 }
.cache { stroke: #7b3f98; stroke-dasharray: 7 3 2 3 }
.other { stroke: #9a9a9a; stroke-width: 1px; stroke-dasharray: 2 5 }
.rated-text { fill: #005fa8 } .held-text { fill: #9a5200 } .measured-text { fill: #1c7430 }
.cache-text { fill: #7b3f98 } .other-text { fill: #5c5c5c }
.gemm { fill: #1c7430 } .probe { fill: #b3261e } .layer { fill: none; stroke: #005fa8 }
.ridge { fill: #1f1f1f } .away { fill: #9a9a9a }
@media (prefers-color-scheme: dark) {
svg { background: #161616 }
.page { fill: #161616 } .text { fill: #e6e6e6 } .muted { fill: #a6a6a6 }
.over { stroke: #161616 } .frame { stroke: #757575 } .grid { stroke: #2c2c2c }
.guide { stroke: #5e5e5e } .rated { stroke: #6cb4ff } .held { stroke: #e2a04a }
.measured { stroke: #74c686 } .cache { stroke: #cb9ae6 } .other { stroke: #757575 }
.rated-text { fill: #6cb4ff } .held-text { fill: #e2a04a } .measured-text { fill: #74c686 }
.cache-text { fill: #cb9ae6 } .other-text { fill: #a6a6a6 }
.gemm { fill: #74c686 } .probe { fill: #ff8a80 } .layer { stroke: #6cb4ff }
.ridge { fill: #e6e6e6 } .away { fill: #757575 }
}
"""


class _Sheet:
    """What is drawn so far: elements, and the places that labels must keep off."""

    def __init__(self, plot: Box) -> None:
        self.plot = plot
        self.elements: list[str] = []
        self._solid: list[Box] = []
        self._lines: list[tuple[tuple[float, float], tuple[float, float], str]] = []

    def add(self, element: str) -> None:
        self.elements.append(element)

    def line(self, start: tuple[float, float], end: tuple[float, float], kind: str) -> None:
        """Draw a line, which labels do not cross unless they may cross its kind."""
        self.add(_straight(start, end, f"line {kind}"))
        self._lines.append((start, end, kind))

    def keep_off(self, box: Box) -> None:
        self._solid.append(box)

    def free(self, box: Box, *, over: frozenset[str]) -> bool:
        """True where a label lies in the plot and covers nothing but lines of some kinds."""
        around = Box(box.left - 2, box.top, box.right + 2, box.bottom)
        return (
            around.inside(self.plot)
            and not any(around.overlaps(other) for other in self._solid)
            and not any(
                _crosses(around, start, end) for start, end, kind in self._lines if kind not in over
            )
        )


def _crosses(box: Box, start: tuple[float, float], end: tuple[float, float]) -> bool:
    """True where a straight line has a part inside a box (Liang and Barsky's clipping)."""
    (x, y), across, down = start, end[0] - start[0], end[1] - start[1]
    first, last = 0.0, 1.0
    for step, room in (
        (-across, x - box.left),
        (across, box.right - x),
        (-down, y - box.top),
        (down, box.bottom - y),
    ):
        if step == 0:
            if room < 0:
                return False
        elif step < 0:
            first = max(first, room / step)
        else:
            last = min(last, room / step)
    return first <= last


def svg(line: Roofline, *, width: int = 960, height: int = 640) -> str:
    """Return the picture: a plot of this size in pixels (at least 480x320), its numbers below it.

    It follows the light or dark scheme of the page; without one it is light.
    """
    width, height = max(width, NARROWEST), max(height, LOWEST)
    plot = Box(MARGIN_LEFT, MARGIN_TOP, width - MARGIN_RIGHT, height - MARGIN_BOTTOM)
    sheet = _Sheet(plot)
    what = scene(line)
    _axes(sheet, what)
    _draw(sheet, what)
    bottom = _table(sheet, line, width, height + ROW / 2)
    heading = title(line)
    size = f'width="{width}" height="{bottom:.0f}"'
    root = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {bottom:.0f}"'
    return "\n".join(
        [
            f'{root} role="img" aria-label={quoteattr(heading)}>',
            f"<title>{escape(heading)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" {size}/>',
            _text(MARGIN_LEFT, 26, heading, "text title"),
            *sheet.elements,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, kind: str = "text", anchor: str = "start") -> str:
    """A line of text; y is its base line."""
    # Blanks at the ends and in a row carry no meaning here, so that no xml:space is needed.
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _straight(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    return (
        f'<line class="{kind}" x1="{start[0]:.1f}" y1="{start[1]:.1f}"'
        f' x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>'
    )


def _place(sheet: _Sheet, what: Scene, x: float, y: float) -> tuple[float, float]:
    plot = sheet.plot
    return (
        plot.left + what.x.fraction(x) * (plot.right - plot.left),
        plot.bottom - what.y.fraction(y) * (plot.bottom - plot.top),
    )


def _axes(sheet: _Sheet, what: Scene) -> None:
    plot = sheet.plot

    def x_span(tick: Tick) -> tuple[float, float]:
        x, half = _place(sheet, what, tick.value, what.y.low)[0], len(tick.label) * CELL / 2
        return x - half, x + half

    def y_span(tick: Tick) -> tuple[float, float]:
        y = _place(sheet, what, what.x.low, tick.value)[1]
        return y - FONT / 2, y + FONT / 2

    for tick in what.x.ticks(x_span, gap=CELL):
        x = _place(sheet, what, tick.value, what.y.low)[0]
        sheet.add(_straight((x, plot.top), (x, plot.bottom), "grid"))
        sheet.add(_text(x, plot.bottom + ROW, tick.label, "muted", "middle"))
    for tick in what.y.ticks(y_span, gap=FONT / 2):
        y = _place(sheet, what, what.x.low, tick.value)[1]
        sheet.add(_straight((plot.left, y), (plot.right, y), "grid"))
        sheet.add(_text(plot.left - 8, y + FONT * 0.35, tick.label, "muted", "end"))
    sheet.add(
        f'<rect class="frame" x="{plot.left}" y="{plot.top}"'
        f' width="{plot.right - plot.left}" height="{plot.bottom - plot.top}"/>'
    )
    sheet.add(_text(plot.left - 56, plot.top - 12, what.y.unit, "muted"))
    _unit_below(sheet, what.x)


def _unit_below(sheet: _Sheet, axis: Axis) -> None:
    plot = sheet.plot
    words = f"arithmetic intensity, {axis.unit}"
    sheet.add(
        _text((plot.left + plot.right) / 2, plot.bottom + 2.2 * ROW, words, "muted", "middle")
    )


def _draw(sheet: _Sheet, what: Scene) -> None:
    """Lines first, then marks over them, the most important on top; labels where room is left."""
    strokes: list[tuple[Stroke, tuple[float, float], tuple[float, float]]] = []
    for stroke in reversed(what.strokes):
        start = _place(sheet, what, *stroke.start)
        end = _place(sheet, what, *stroke.end)
        sheet.line(start, end, stroke.role)
        strokes.insert(0, (stroke, start, end))
    ridge = next((mark for mark in what.marks if mark.kind == "ridge"), None)
    if ridge is not None:
        foot = _place(sheet, what, ridge.x, what.y.low)
        top = _place(sheet, what, ridge.x, ridge.y)
        sheet.line(top, foot, GUIDE)
    marks: list[tuple[Mark, Box]] = []
    for mark in reversed(what.marks):
        x, y = _place(sheet, what, mark.x, mark.y)
        box = Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS)
        sheet.keep_off(box)
        sheet.add(_sign(mark, x, y))
        marks.insert(0, (mark, box))
    before, after = to_name(what)
    _label_marks(sheet, [item for item in marks if item[0] in before])
    _label_strokes(sheet, [item for item in strokes if item[0].role != "other"])
    _label_marks(sheet, [item for item in marks if item[0] in after])
    _label_strokes(sheet, [item for item in strokes if item[0].role == "other"])
    if what.empty:
        x, y = (sheet.plot.left + sheet.plot.right) / 2, (sheet.plot.top + sheet.plot.bottom) / 2
        sheet.add(_text(x, y, "nothing to draw yet", "text", "middle"))


def _sign(mark: Mark, x: float, y: float) -> str:
    """A dot for a GEMM, a square for a probe, a ring for a layer, a rhomb for a ridge."""
    kind = mark.kind if mark.focus else "away"
    label = f"<title>{escape(mark.labels[0])}</title>" if mark.labels else ""
    r = RADIUS
    if mark.kind in {"gemm", "layer"}:
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r}">{label}</circle>'
    if mark.kind == "probe":
        corners = ((-r, -r), (r, -r), (r, r), (-r, r))
    else:
        corners = ((0.0, -r - 1), (r + 1, 0.0), (0.0, r + 1), (-r - 1, 0.0))
    points = " ".join(f"{x + across:.1f},{y + down:.1f}" for across, down in corners)
    return f'<polygon class="{kind}" points="{points}">{label}</polygon>'


def _label_strokes(
    sheet: _Sheet, strokes: Iterable[tuple[Stroke, tuple[float, float], tuple[float, float]]]
) -> None:
    for stroke, start, end in strokes:
        kind = f"over {stroke.role}-text"
        if stroke.kind == "roof":
            box = Box(start[0], start[1] - 1, end[0] - 4, start[1] + 1)
            _write(sheet, stroke.labels, kind, partial(along_roof, box, step=2 * CELL))
        else:
            spots = [_spot(start, end, share / 20) for share in (*range(10, 1, -1), *range(11, 19))]
            right_first = stroke.role == "measured"
            place = partial(along_slope, spots, right_first=right_first)
            # A label on another line is better than a slope without a name.
            _write(sheet, stroke.labels, kind, place, over=(NOTHING, FAINT, LINES))


def _spot(start: tuple[float, float], end: tuple[float, float], share: float) -> Box:
    x = start[0] + (end[0] - start[0]) * share
    y = start[1] + (end[1] - start[1]) * share
    return Box(x, y, x, y)


def _label_marks(sheet: _Sheet, marks: Iterable[tuple[Mark, Box]]) -> None:
    for mark, box in marks:
        kind = "text over" if mark.focus else "over other-text"
        if not _write(sheet, mark.labels, kind, partial(beside, box)):
            # A letter on a line is better than a point without a name.
            letters = [label for label in mark.labels if len(label) == 1]
            _write(sheet, letters, kind, partial(beside, box), over=(LINES,))


def _write(
    sheet: _Sheet,
    labels: Sequence[str],
    kind: str,
    places: Callable[[Size], Iterable[Box]],
    over: Sequence[frozenset[str]] = (NOTHING, FAINT),
) -> bool:
    """Write the first label that finds a place where it crosses no line but those it may.

    Otherwise return False: the table below has all numbers.
    """
    for may_cross in over:
        for label in labels:
            size = Size(cells(label) * CELL, FONT + 2, gap_x=6, gap_y=3)
            found = first_free(places(size), partial(sheet.free, over=may_cross))
            if found is not None:
                sheet.keep_off(found)
                sheet.add(_text(found.left, found.bottom - 4, label, kind))
                return True
    return False


def _table(sheet: _Sheet, line: Roofline, width: int, top: float) -> float:
    """Write the numbers and notes under the plot; return where they end."""
    own = entries(line)
    table = [*own, *other_entries(line)]
    rows = [entry for entry in table if entry.rate]
    name, rate, intensity = (
        max((cells(entry.cells()[column]) for entry in rows), default=0) * CELL
        for column in range(3)
    )
    left = MARGIN_LEFT / 2
    name_at = left + SAMPLE + 10
    rate_at = name_at + name + rate + 16
    intensity_at = rate_at + 20
    detail_at = intensity_at + intensity + 16
    y = top + ROW
    for number, entry in enumerate(table):
        if entry.role is not None:
            sample = (left, y - 4), (left + SAMPLE, y - 4)
            sheet.add(_straight(*sample, f"line {entry.role}"))
        elif entry.kind is not None:
            sheet.add(_text(left + 4, y, entry.key))
            sign = Mark(0.0, 0.0, entry.kind, (), focus=number < len(own))
            sheet.add(_sign(sign, left + SAMPLE - RADIUS - 2, y - 4.5))
        sheet.add(_text(name_at, y, entry.name))
        if entry.rate:
            sheet.add(_text(rate_at, y, entry.rate, "text", "end"))
            sheet.add(_text(intensity_at, y, entry.intensity))
        room = int((width - detail_at - 8) / CELL)
        if cells(entry.detail) <= room:
            sheet.add(_text(detail_at, y, entry.detail, "muted"))
        else:
            for part in wrap(entry.detail, int((width - name_at - 8) / CELL)):
                y += ROW
                sheet.add(_text(name_at, y, part, "muted"))
        y += ROW
    y += ROW / 2
    for note in line.notes:
        for part in wrap(note, int((width - 2 * left) / CELL)):
            sheet.add(_text(left, y, part, "muted"))
            y += ROW
    return y

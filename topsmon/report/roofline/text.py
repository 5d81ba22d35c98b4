"""The roofline as lines of character cells, for a terminal, a log or the live screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from topsmon import units
from topsmon.report.columns import cells, clip, pad, wrap
from topsmon.report.roofline.axes import Axis, Tick
from topsmon.report.roofline.canvas import GUIDE, Canvas, Line, Run, column_of, row_of, sample
from topsmon.report.roofline.labels import (
    Box,
    Size,
    along_roof,
    along_slope,
    at,
    beside,
    first_free,
)
from topsmon.report.roofline.legend import Entry, entries, other_entries
from topsmon.report.roofline.model import Roofline
from topsmon.report.roofline.scene import Mark, Role, Scene, Stroke, scene, to_name

NARROWEST, LOWEST = 60, 16
AROUND = 3
"""Lines above and below the plot: the unit, the axis, its numbers."""
SIGNS = {"gemm": "●", "probe": "■", "layer": "○", "ridge": "◆"}
ASCII_SIGNS = {"gemm": "@", "probe": "#", "layer": "o", "ridge": "+"}
LABEL, DETAIL, AWAY = "label", "detail", "away"
LABEL_OF: dict[Role, str] = {
    "rated": "rated-label",
    "held": "held-label",
    "measured": "measured-label",
    "cache": "cache-label",
    "other": "other-label",
}
"""Role of the label of each role of line."""
FAINT = frozenset({"other", GUIDE})
"""Roles of lines that a label may cover where nothing else is free."""
NOTHING: frozenset[str] = frozenset()
LINES = FAINT | {"rated", "held", "measured", "cache"}
TAKEN = frozenset({AWAY, *SIGNS})
LABELS = frozenset({LABEL, *LABEL_OF.values()})
APART = TAKEN | LABELS
SAMPLE = 3
GAP = "  "


def text(line: Roofline, *, width: int = 100, height: int = 30, ascii_only: bool = False) -> str:
    """Return the roofline as plain text: a plot of `height` lines, then all its numbers and notes.

    Sizes below 60x16 are taken as that.
    """
    width = max(width, NARROWEST)
    rows = [*chart(line, width, height, ascii_only=ascii_only), ()]
    rows += legend(line, width, ascii_only=ascii_only)
    lines = wrap(title(line), width)
    lines += ["".join(run.text for run in row) for row in rows]
    for note in line.notes:
        lines += wrap(note, width)
    return "\n".join(_plain(row, ascii_only).rstrip() for row in lines) + "\n"


def title(line: Roofline) -> str:
    """Device and precision in one line; a simulation says so first."""
    begin = f"SIMULATED ({units.plain(line.simulated, 40)})  " if line.simulated else ""
    focus = units.PRECISIONS[line.focus]
    return f"{begin}{line.device_label} {line.device_name}: roofline, {focus.long_name}"


def _plain(text: str, ascii_only: bool) -> str:
    if not ascii_only:
        return text
    return text.replace("³", "^3").encode("ascii", "replace").decode()


# The table under the plot ---------------------------------------------------------------------


def legend(line: Roofline, width: int, *, ascii_only: bool = False) -> list[Line]:
    """Return the numbers of everything that is drawn, on lines of at most `width` cells."""
    table = [*entries(line), *other_entries(line)]
    return _table(table, len(entries(line)), width, ascii_only=ascii_only, whole=True)


def short_legend(
    line: Roofline, width: int, *, ascii_only: bool = False
) -> tuple[list[Line], list[Line]]:
    """Return the same with one line for each, cut: what is in focus, and the rest."""
    table = [*entries(line), *other_entries(line)]
    count = len(entries(line))
    lines = _table(table, count, width, ascii_only=ascii_only, whole=False)
    return lines[:count], lines[count:]


def _table(
    table: Iterable[Entry], own: int, width: int, *, ascii_only: bool, whole: bool
) -> list[Line]:
    """Align the table. `own` of its entries are in focus; `whole` wraps what else would be cut."""
    table = [
        entry._replace(name=_plain(entry.name, ascii_only), detail=_plain(entry.detail, ascii_only))
        for entry in table
    ]
    if width < NARROWEST:
        table = [entry._replace(intensity="") for entry in table]
    columns = [entry.cells() for entry in table if entry.rate]
    sizes = [max((cells(row[column]) for row in columns), default=0) for column in range(3)]
    sizes[0] = min(sizes[0], max(8, width - SAMPLE - 1 - sum(sizes[1:]) - 2 * len(GAP)))
    lines: list[Line] = []
    for number, entry in enumerate(table):
        sign = _sign(entry, ascii_only, focus=number < own)
        if not entry.rate:
            lines.append((sign, Run(_cut(" " + entry.name, width - SAMPLE), DETAIL)))
            continue
        name = _cut(entry.name, sizes[0])
        rate = " " * (sizes[1] - cells(entry.rate)) + entry.rate
        numbers = f" {pad(name, sizes[0])}{GAP}{rate}{GAP}{pad(entry.intensity, sizes[2])}"
        numbers = _cut(numbers, width - SAMPLE)
        room = width - SAMPLE - cells(numbers) - len(GAP)
        fits = cells(entry.detail) <= room or not whole
        detail = GAP + _cut(entry.detail, room) if fits and room > 0 else ""
        lines.append((sign, Run(numbers, LABEL), Run(detail, DETAIL)))
        if not fits:
            indent = " " * (SAMPLE + 1 + len(GAP))
            wrapped = wrap(entry.detail, width, first=indent, rest=len(indent))
            lines += [(Run(part, DETAIL),) for part in wrapped]
    return lines


def _sign(entry: Entry, ascii_only: bool, *, focus: bool) -> Run:
    if entry.role is not None:
        return Run(sample(entry.role, SAMPLE, ascii_only=ascii_only), entry.role)
    signs = ASCII_SIGNS if ascii_only else SIGNS
    if entry.kind is None:
        return Run(" " * SAMPLE, DETAIL)
    return Run(pad(f"{entry.key:1} {signs[entry.kind]}", SAMPLE), entry.kind if focus else AWAY)


def _cut(text: str, width: int) -> str:
    """The text, or as much as fits and two dots: the same in any encoding."""
    return text if cells(text) <= width else clip(text, max(width - 2, 0)) + ".."[: max(width, 0)]


# The plot -------------------------------------------------------------------------------------


def chart(line: Roofline, width: int, height: int, *, ascii_only: bool = False) -> list[Line]:
    """Return the plot with its axes: `height` lines of `width` cells, at least 60x16."""
    width, height = max(width, NARROWEST), max(height, LOWEST)
    what, rows = scene(line), height - AROUND
    ticks = _row_ticks(what.y, rows, ascii_only)
    margin = max((len(label) for label in ticks.values()), default=0) + 1
    canvas = Canvas(width - margin - 1, rows, ascii_only=ascii_only)
    _draw(canvas, what, ascii_only)
    upright, notch = ("|", "+") if ascii_only else ("│", "┤")
    lines: list[Line] = [(Run(what.y.unit.ljust(width), "axis"),)]
    for row, runs in enumerate(canvas.rows()):
        label = ticks.get(row, "")
        edge = label.rjust(margin - 1) + " " + (notch if label else upright)
        lines.append((Run(edge, "axis"), *runs))
    return [*lines, *_x_axis(what.x, canvas.width, margin, ascii_only)]


def _row_ticks(axis: Axis, height: int, ascii_only: bool) -> dict[int, str]:
    """Numbers of the upright axis by row, with a row between two of them."""

    def row(tick: Tick) -> int:
        return row_of(axis.fraction(tick.value), height, ascii_only=ascii_only)

    def span(tick: Tick) -> tuple[float, float]:
        begin = axis.fraction(tick.value) * (height - 1)
        return begin, begin + 1

    ticks = axis.ticks(span, gap=0.5)
    return {row(tick): tick.label for tick in ticks}


def _x_axis(axis: Axis, width: int, margin: int, ascii_only: bool) -> list[Line]:
    """The axis with its ticks, their numbers centred below, the unit at the right."""

    def column(tick: Tick) -> int:
        return column_of(axis.fraction(tick.value), width, ascii_only=ascii_only)

    def span(tick: Tick) -> tuple[float, float]:
        begin = column(tick) - len(tick.label) // 2
        return begin, begin + len(tick.label)

    corner, rule, notch = ("+", "-", "+") if ascii_only else ("└", "─", "┬")
    signs = [rule] * width
    numbers = [" "] * (margin + 1 + width)
    for tick in axis.ticks(span, gap=1, reserved=width - len(axis.unit) - 2):
        signs[column(tick)] = notch
        begin = margin + 1 + int(span(tick)[0])
        numbers[begin : begin + len(tick.label)] = tick.label
    numbers[len(numbers) - len(axis.unit) :] = axis.unit
    return [
        (Run(" " * margin + corner + "".join(signs), "axis"),),
        (Run("".join(numbers), "axis"),),
    ]


def _draw(canvas: Canvas, what: Scene, ascii_only: bool) -> None:
    """Lines first, then marks over them, then labels where room is left."""
    strokes: list[tuple[Stroke, Box]] = []
    for stroke in what.strokes:
        if stroke.minor:
            continue
        start, end = _place(what, *stroke.start), _place(what, *stroke.end)
        canvas.stroke(start, end, stroke.role)
        (left, bottom), (right, top) = canvas.cell(*start), canvas.cell(*end)
        strokes.append((stroke, Box(left, top, right + 1, bottom + 1)))
    ridge = next((mark for mark in what.marks if mark.kind == "ridge"), None)
    if ridge is not None:
        canvas.guide(*_place(what, ridge.x, ridge.y))
    signs = ASCII_SIGNS if ascii_only else SIGNS
    marks: list[tuple[Mark, Box]] = []
    for mark in what.marks:
        column, row = canvas.cell(*_place(what, mark.x, mark.y))
        if canvas.role_at(column, row) not in TAKEN:
            canvas.put(column, row, signs[mark.kind], mark.kind if mark.focus else AWAY)
        marks.append((mark, Box(column, row, column + 1, row + 1)))
    before, after = to_name(what)
    _label_marks(canvas, [item for item in marks if item[0] in before], ascii_only)
    _label_strokes(canvas, [item for item in strokes if item[0].role != "other"])
    _label_marks(canvas, [item for item in marks if item[0] in after], ascii_only)
    _label_strokes(canvas, [item for item in strokes if item[0].role == "other"])
    if what.empty:
        _write(canvas, ["nothing to draw yet"], LABEL, lambda size: [at(1, 1, size)])


def _place(what: Scene, x: float, y: float) -> tuple[float, float]:
    return what.x.fraction(x), what.y.fraction(y)


def _size(text: str) -> Size:
    return Size(cells(text), 1, gap_x=1, gap_y=0)


def _label_strokes(canvas: Canvas, strokes: Iterable[tuple[Stroke, Box]]) -> None:
    for stroke, box in strokes:
        role = LABEL_OF[stroke.role]
        if stroke.kind == "roof":
            _write(canvas, stroke.labels, role, partial(along_roof, box, step=2))
        else:
            spots = _spots(box)
            right_first = stroke.role == "measured"
            place = partial(along_slope, spots, right_first=right_first)
            _write(canvas, stroke.labels, role, place)


def _spots(box: Box) -> list[Box]:
    """Cells of a rising line, one a row, its lower half first and from the middle down."""
    rows = int(box.bottom - box.top)
    across = (box.right - box.left) / rows
    found = []
    for step in range(rows):
        left = box.left + across * step
        top = box.bottom - 1 - step
        found.append(Box(int(left), top, int(left + across + 0.999), top + 1))
    middle = len(found) // 2
    return found[middle::-1] + found[middle + 1 :]


def _label_marks(canvas: Canvas, marks: Iterable[tuple[Mark, Box]], ascii_only: bool) -> None:
    for mark, box in marks:
        labels = [_plain(label, ascii_only) for label in mark.labels]
        role = LABEL if mark.focus else LABEL_OF["other"]
        if not _write(canvas, labels, role, partial(beside, box)):
            # A letter on a line is better than a point without a name.
            letters = [label for label in labels if len(label) == 1]
            _write(canvas, letters, role, partial(beside, box), over=(LINES,))


def _write(
    canvas: Canvas,
    labels: Sequence[str],
    role: str,
    places: Callable[[Size], Iterable[Box]],
    over: Sequence[frozenset[str]] = (NOTHING, FAINT),
) -> bool:
    """Write the first label that finds a place where it covers nothing but what it may.

    Otherwise return False: the table under the plot has all numbers.
    """
    for may_cover in over:
        for label in labels:
            boxes = (_to_cells(box) for box in places(_size(label)))
            found = first_free(boxes, partial(_room, canvas, may_cover))
            if found is not None:
                canvas.put(int(found.left), int(found.top), label, role)
                return True
    return False


def _room(canvas: Canvas, over: frozenset[str], box: Box) -> bool:
    """True where a label has room: a cell between it and marks, two between it and labels."""
    return canvas.free(box, over=over) and all(
        canvas.role_at(int(column), int(box.top)) not in roles
        for column, roles in (
            (box.left - 2, LABELS),
            (box.left - 1, APART),
            (box.right, APART),
            (box.right + 1, LABELS),
        )
        if 0 <= column < canvas.width
    )


def _to_cells(box: Box) -> Box:
    left, top = round(box.left), round(box.top)
    return Box(left, top, left + round(box.right - box.left), top + round(box.bottom - box.top))

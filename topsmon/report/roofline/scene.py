"""What is drawn of a roofline, whatever the medium: axes, strokes and marks in their own units."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from topsmon import units
from topsmon.report.roofline.axes import Axis, axis
from topsmon.report.roofline.model import Point, Ridge, Roof, Roofline, Slope, Word
from topsmon.report.shown import ceiling_word

Role = Literal["rated", "held", "measured", "cache", "other"]
"""How a stroke looks. "other" are the roofs of precisions that are not in focus."""
MarkKind = Literal["gemm", "probe", "layer", "ridge"]

LEFT_OF_RIDGE, RIGHT_OF_RIDGE = 30.0, 20.0
AROUND_POINT = 1.6
LAYER_NAMES = 6
"""Names of layers that are written into the plot: of those with the most work."""
GIGA_BELOW = 1e12
PLAIN_FROM = 1e-3
DEEPEST = 1e6
"""A slope is followed down to at most this fraction of the highest roof."""


@dataclass(frozen=True)
class Stroke:
    """A straight line on logarithmic axes, from left to right.

    One of `labels` is written along it, the first that finds room. `minor` is a measured bandwidth
    beside a higher one of the same memory: too near to be told apart where resolution is low.
    """

    start: tuple[float, float]
    end: tuple[float, float]
    role: Role
    kind: Literal["roof", "slope"]
    labels: tuple[str, ...]
    minor: bool = False


@dataclass(frozen=True)
class Mark:
    """A sign at one place. `focus` False: of another precision than that in focus.

    `labels` are as in a stroke; a GEMM that is not in focus has none, its roof says what it is.
    """

    x: float
    y: float
    kind: MarkKind
    labels: tuple[str, ...]
    focus: bool


@dataclass(frozen=True)
class Scene:
    """Everything to draw, the most important first; it is not to be covered by the rest."""

    x: Axis
    y: Axis
    strokes: tuple[Stroke, ...]
    marks: tuple[Mark, ...]
    empty: bool


def scene(line: Roofline) -> Scene:
    """Lay a roofline out: choose ranges that hold all of it, and cut the lines to them."""
    roofs = drawn_roofs(line)
    meets = [
        roof.ops_per_second / slope.bytes_per_second
        for roof in roofs
        for slope in line.slopes
        if _carries(line, slope, roof)
    ]
    ridges = [_ridge(ridge) for ridge in line.ridges if ridge.precision == line.focus]
    keys = point_keys(line)
    points = [_mark(line, point, keys.get(point)) for point in line.points]
    x = axis(
        [
            *(value / LEFT_OF_RIDGE for value in meets),
            *(value * RIGHT_OF_RIDGE for value in meets),
            *(value for point in points for value in _around(point.x)),
        ],
        intensity_unit(line.focus),
    )
    y = _rates_axis(line, x, roofs, points)
    strokes = [*_roof_strokes(line, x, roofs), *_slope_strokes(line, x, y, roofs)]
    strokes.sort(key=lambda stroke: stroke.role == "other")
    marks = sorted((*ridges, *points), key=_rank)
    return Scene(x, y, tuple(strokes), tuple(marks), empty=not (strokes or points))


def _around(value: float) -> tuple[float, float]:
    return value / AROUND_POINT, value * AROUND_POINT


def point_keys(line: Roofline) -> dict[Point, str]:
    """A letter for each of the first points in focus: it stands for a name that finds no room."""
    own = [point for point in line.points if in_focus(line, point)]
    return dict(zip(own, string.ascii_lowercase, strict=False))


def in_focus(line: Roofline, point: Point) -> bool:
    """True for what belongs to the precision in focus or to none."""
    return point.precision in {line.focus, None}


def _mark(line: Roofline, point: Point, key: str | None) -> Mark:
    focus = in_focus(line, point)
    sign = doubt_sign(point)
    labels = [point.label + sign]
    if point.kind == "gemm":
        # The precision in focus is in the title.
        shape = point.label.partition(" ")[2]
        labels = [*labels, shape + sign] if focus else []
    if key is not None:
        labels.append(key)
    return Mark(point.ops_per_byte, point.ops_per_second, point.kind, tuple(labels), focus)


def _ridge(ridge: Ridge) -> Mark:
    """The ridge at the held clock is close to the rated one and stays without a label."""
    short = f"ridge {intensity_number(ridge.ops_per_byte)}{doubt_sign(ridge)}"
    labels = (f"{short} {intensity_unit(ridge.precision)}", short)
    return Mark(
        ridge.ops_per_byte,
        ridge.ops_per_second,
        "ridge",
        () if ridge.roof_word == "held" else labels,
        focus=True,
    )


def drawn_roofs(line: Roofline) -> list[Roof]:
    """All roofs in focus; of another precision the measured one, the rated one failing that."""
    found = [roof for roof in line.roofs if roof.precision == line.focus]
    others = {roof.precision: roof for roof in line.roofs if roof.precision != line.focus}
    for precision, last in others.items():
        found.append(line.roof(precision, "measured") or line.roof(precision, "rated") or last)
    return found


def _carries(line: Roofline, slope: Slope, roof: Roof) -> bool:
    """True where a slope leads up to a roof: the caches to those in focus."""
    if slope.level == "cache":
        return roof.precision == line.focus
    return slope is line.carrier(roof.word) or (slope.word == "measured" == roof.word)


def intensity_unit(precision: str | None) -> str:
    """FLOP/byte, or OP/byte of integers."""
    found = units.PRECISIONS.get(precision or "")
    return "OP/byte" if found is not None and found.unit == "TOPS" else "FLOP/byte"


def intensity_number(ops_per_byte: float) -> str:
    """An intensity with three digits, without its unit."""
    if ops_per_byte < PLAIN_FROM:
        return f"{ops_per_byte:.2e}"
    return units.significant(ops_per_byte)


def rate_text(ops_per_second: float, precision: str | None) -> str:
    """A rate with its unit: "989 TFLOPS", and below 1e12 a second "192 GFLOPS"."""
    found = units.PRECISIONS.get(precision or "")
    unit = found.unit if found is not None else "TFLOPS"
    if ops_per_second < GIGA_BELOW:
        return f"{units.significant(ops_per_second / 1e9)} {unit.replace('T', 'G', 1)}"
    return f"{units.significant(ops_per_second / 1e12)} {unit}"


def _rates_axis(line: Roofline, x: Axis, roofs: Sequence[Roof], points: Sequence[Mark]) -> Axis:
    values = [value for point in points for value in _around(point.y)]
    values += [value for roof in roofs for value in _around(roof.ops_per_second)]
    memory = [slope for slope in line.slopes if slope.level == "memory"] or list(line.slopes)
    if memory:
        lowest = min(slope.rate(x.low) for slope in memory)
        values.append(max(lowest, max(values, default=lowest) / DEEPEST))
    if not roofs:
        values += [slope.rate(x.high) for slope in line.slopes]
    top = max(values, default=1e12)
    prefix, scale = ("T", 1e12) if top >= GIGA_BELOW else ("G", 1e9)
    kinds = {roof.unit[1:] for roof in roofs} or {units.PRECISIONS[line.focus].unit[1:]}
    unit = ", ".join(prefix + kind for kind in sorted(kinds))
    return axis(values or [top], unit, scale)


def _roof_strokes(line: Roofline, x: Axis, roofs: Iterable[Roof]) -> Iterator[Stroke]:
    for roof in roofs:
        slope = line.carrier(roof.word)
        begin = x.low if slope is None else roof.ops_per_second / slope.bytes_per_second
        yield Stroke(
            (begin, roof.ops_per_second),
            (x.high, roof.ops_per_second),
            role_of_roof(line, roof),
            "roof",
            _roof_labels(line, roof),
        )


def _roof_labels(line: Roofline, roof: Roof) -> tuple[str, ...]:
    rate = rate_text(roof.ops_per_second, roof.precision)
    word = roof_word(line, roof)
    short = word if roof.precision == line.focus else roof.label
    labels = f"{roof.label} {word} {rate}", f"{short} {rate}", f"{short} {rate.split()[0]}"
    return tuple(label + doubt_sign(roof) for label in labels)


def _slope_labels(slope: Slope) -> tuple[str, ...]:
    rate = units.bandwidth(slope.bytes_per_second) + doubt_sign(slope)
    return f"{slope.name} {slope.word} {rate}", f"{slope.name} {rate}"


def roof_word(line: Roofline, roof: Roof) -> str:
    """Where a roof comes from, for people."""
    return ceiling_word(top_clock=line.at_top_clock) if roof.word == "rated" else roof.word


def doubt_sign(item: Roof | Slope | Point | Ridge) -> str:
    """What follows the name of something that must not be trusted."""
    return "" if item.trusted else "!"


def role_of_roof(line: Roofline, roof: Roof) -> Role:
    """How a roof is drawn."""
    return _of_word(roof.word) if roof.precision == line.focus else "other"


def role_of_slope(slope: Slope) -> Role:
    """How a slope is drawn."""
    return "cache" if slope.level == "cache" else _of_word(slope.word)


def _of_word(word: Word) -> Role:
    return "rated" if word == "possible" else word


def _slope_strokes(line: Roofline, x: Axis, y: Axis, roofs: Sequence[Roof]) -> Iterator[Stroke]:
    """Slopes from the edge of the plot up to the highest roof that each leads to."""
    for slope in line.slopes:
        carried = [roof.ops_per_second for roof in roofs if _carries(line, slope, roof)]
        top = max(carried, default=max((roof.ops_per_second for roof in roofs), default=y.high))
        end = min(x.high, min(top, y.high) / slope.bytes_per_second)
        begin = max(x.low, y.low / slope.bytes_per_second)
        if begin < end:
            yield Stroke(
                (begin, slope.rate(begin)),
                (end, slope.rate(end)),
                role_of_slope(slope),
                "slope",
                _slope_labels(slope),
                minor=slope.level == "memory" and slope is not line.memory(slope.word),
            )


def to_name(what: Scene) -> tuple[list[Mark], list[Mark]]:
    """The marks whose names come before those of the lines, and those that come after them."""
    own = [mark for mark in what.marks if mark.focus]
    ridges = [mark for mark in own if mark.kind == "ridge"]
    layers = [mark for mark in own if mark.kind == "layer"]
    first = [mark for mark in own if mark.kind in {"gemm", "probe"}] + ridges[:1]
    foreign = [mark for mark in what.marks if not mark.focus]
    return first, [*ridges[1:], *layers[:LAYER_NAMES], *foreign]


def _rank(mark: Mark) -> tuple[bool, int]:
    return not mark.focus, ("gemm", "probe", "ridge", "layer").index(mark.kind)

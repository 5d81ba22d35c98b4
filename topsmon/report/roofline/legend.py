"""All numbers of a roofline as a table: the lines, then the points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topsmon import units
from topsmon.report.roofline.model import Point, PointKind, Roof, Roofline, Slope
from topsmon.report.roofline.scene import (
    Role,
    doubt_sign,
    in_focus,
    intensity_number,
    intensity_unit,
    point_keys,
    rate_text,
    role_of_roof,
    role_of_slope,
    roof_word,
)

LAYERS_LISTED = 20


class Entry(NamedTuple):
    """One line of the table.

    `role` is that of a stroke or None, `kind` that of a point or None. `key` is the letter by which
    the plot may name a point, "" for none.
    """

    role: Role | None
    kind: PointKind | None
    key: str
    name: str
    rate: str
    intensity: str
    detail: str

    def cells(self) -> tuple[str, str, str]:
        """What is aligned in columns."""
        return self.name, self.rate, self.intensity


def entries(line: Roofline) -> list[Entry]:
    """Return what belongs to the precision in focus or to none: its lines, then its points."""
    keys = point_keys(line)
    points = [point for point in line.points if in_focus(line, point)]
    return [
        *(_roof(line, roof) for roof in line.roofs if roof.precision == line.focus),
        *(_slope(slope) for slope in line.slopes),
        *_points(points, keys),
    ]


def other_entries(line: Roofline) -> list[Entry]:
    """Return what belongs to the other precisions, but for their ceilings at the held clock."""
    points = [point for point in line.points if not in_focus(line, point)]
    roofs = [roof for roof in line.roofs if roof.precision != line.focus and roof.word != "held"]
    return [*(_roof(line, roof) for roof in roofs), *_points(points, {})]


def _roof(line: Roofline, roof: Roof) -> Entry:
    unit = intensity_unit(roof.precision)
    ridge = next(
        (
            f"ridge {intensity_number(ridge.ops_per_byte)}{doubt_sign(ridge)} {unit}"
            for ridge in line.ridges
            if (ridge.precision, ridge.roof_word) == (roof.precision, roof.word)
        ),
        "",
    )
    return Entry(
        role_of_roof(line, roof),
        None,
        "",
        f"{roof.label} {roof_word(line, roof)}{doubt_sign(roof)}",
        rate_text(roof.ops_per_second, roof.precision),
        ridge,
        roof.detail,
    )


def _slope(slope: Slope) -> Entry:
    return Entry(
        role_of_slope(slope),
        None,
        "",
        f"{slope.name} {slope.word}{doubt_sign(slope)}",
        units.bandwidth(slope.bytes_per_second),
        "",
        slope.detail,
    )


def _points(points: list[Point], keys: dict[Point, str]) -> Iterator[Entry]:
    layers = [point for point in points if point.kind == "layer"]
    hidden = layers[LAYERS_LISTED:]
    for point in points:
        if point in hidden:
            continue
        yield Entry(
            None,
            point.kind,
            keys.get(point, ""),
            point.label + doubt_sign(point),
            rate_text(point.ops_per_second, point.precision),
            f"{intensity_number(point.ops_per_byte)} {intensity_unit(point.precision)}",
            _comparison(point),
        )
    if hidden:
        yield Entry(
            None, None, "", f"and {len(hidden)} more layers (all are in the JSON)", "", "", ""
        )


def _comparison(point: Point) -> str:
    """How the point stands to the roof above it."""
    parts = []
    if point.kind != "layer" and not point.has_ceiling:
        parts.append("no ceiling")
    elif point.kind != "layer" and point.roof_ratio is not None:
        sign = "" if point.trusted and point.roof_trusted else "!"
        parts.append(f"{units.percent(point.roof_ratio)}{sign} of the roof")
    if point.bound is not None:
        parts.append(f"{point.bound}-bound")
    if point.detail:
        parts.append(point.detail)
    return ", ".join(parts)

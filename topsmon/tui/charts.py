"""Line charts on a fixed scale, drawn in braille dots (or one ASCII sign a cell)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from topsmon.tui.glyphs import Glyphs

_DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille cell by dot column and row, from the top (Unicode block U+2800)."""


class ChartCell(NamedTuple):
    """One cell: its sign and the index of the series it belongs to (None: empty)."""

    sign: str
    series: int | None


EMPTY = ChartCell(" ", None)


def resample(
    times: Sequence[float], values: Sequence[float | None], step: float, count: int, last: int
) -> list[float | None]:
    """Return the means of `values` in `count` intervals of `step` seconds, up to number `last`.

    Interval n begins at n * step, whatever is drawn, so that a moving chart does not shimmer. One
    without a sample takes its predecessor's mean if the gap is at most two intervals, else None.
    """
    first = last - count + 1
    sums = [0.0] * max(count, 0)
    numbers = [0] * max(count, 0)
    for time, value in zip(reversed(times), reversed(values), strict=False):
        place = int(time // step) - first
        if place < 0:
            break
        if place < count and value is not None:
            sums[place] += value
            numbers[place] += 1
    result: list[float | None] = [
        total / number if number else None for total, number in zip(sums, numbers, strict=True)
    ]
    known = [index for index, number in enumerate(numbers) if number]
    for before, after in pairwise(known):
        if 1 < after - before <= 3:
            result[before + 1 : after] = [result[before]] * (after - before - 1)
    return result


def draw(
    series: Sequence[Sequence[float | None]], width: int, height: int, glyphs: Glyphs
) -> list[list[ChartCell]]:
    """Draw series of ratios (0..1; above and below they run along the edge) as lines.

    Each series holds `width * dots_per_cell(glyphs)` values. Where two series share a cell it shows
    both their dots and belongs to the first.
    """
    if width <= 0 or height <= 0:
        return []
    if glyphs.ascii_only:
        return _draw_ascii(series, width, height, glyphs)
    return _draw_braille(series, width, height)


def dots_per_cell(glyphs: Glyphs) -> int:
    """Values that one cell of a chart shows: two in braille, one in ASCII."""
    return 1 if glyphs.ascii_only else 2


def _row(value: float, rows: int) -> int:
    """Row of a ratio, 0 at the top."""
    return rows - 1 - min(rows - 1, max(0, int(value * rows)))


def _draw_braille(
    series: Sequence[Sequence[float | None]], width: int, height: int
) -> list[list[ChartCell]]:
    bits = [[0] * width for _ in range(height)]
    owner: list[list[int | None]] = [[None] * width for _ in range(height)]
    for index, values in enumerate(series):
        previous: int | None = None
        for column, value in enumerate(values):
            if value is None:
                previous = None
                continue
            row = _row(value, height * 4)
            start, end = (row, row) if previous is None else _span(previous, row)
            for dot in range(start, end + 1):
                cell_row, cell = dot // 4, column // 2
                bits[cell_row][cell] |= _DOT_BITS[column % 2][dot % 4]
                if owner[cell_row][cell] is None:
                    owner[cell_row][cell] = index
            previous = row
    return [
        [
            ChartCell(chr(0x2800 + bits[row][cell]), owner[row][cell]) if bits[row][cell] else EMPTY
            for cell in range(width)
        ]
        for row in range(height)
    ]


def _span(previous: int, row: int) -> tuple[int, int]:
    """Dots that join a point to the one before it, without drawing that one's row again."""
    if row > previous:
        return previous + 1, row
    if row < previous:
        return row, previous - 1
    return row, row


def _draw_ascii(
    series: Sequence[Sequence[float | None]], width: int, height: int, glyphs: Glyphs
) -> list[list[ChartCell]]:
    cells = [[EMPTY] * width for _ in range(height)]
    signs = glyphs.line + "o+"
    for index, values in enumerate(series):
        for column, value in enumerate(values):
            if value is not None:
                row = _row(value, height)
                if cells[row][column].series is None:
                    cells[row][column] = ChartCell(signs[index % len(signs)], index)
    return cells

"""Tables and phrases that a benchmark and its comparison share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topsmon.report.bench.model import Shape
from topsmon.report.columns import cells, pad, wrap
from topsmon.units import NOT_AVAILABLE, plain

NARROWEST = 40
DOUBTED = "!"
"""Marks a number that must not be trusted."""


class Column(NamedTuple):
    """One column of a table, left out where `optional` is the highest and the table is too wide.

    `optional` 0 stays at any width.
    """

    title: str
    values: list[str]
    right: bool = True
    optional: int = 0

    @property
    def width(self) -> int:
        """Cells that the widest entry takes."""
        return max(cells(text) for text in (self.title, *self.values))


def table(columns: Iterable[Column], width: int) -> list[str]:
    """Return the lines of a table of at most `width` cells, as far as its columns may be left out.

    Columns without a number in any row are left out as well.
    """
    shown = [column for column in columns if set(column.values) - {NOT_AVAILABLE, ""}]
    while sum(column.width + 2 for column in shown) - 2 > width:
        droppable = max(shown, key=lambda column: column.optional)
        if not droppable.optional:
            break
        shown.remove(droppable)
    lines = []
    for row in zip(*([column.title, *column.values] for column in shown), strict=True):
        parts = [
            " " * (column.width - cells(cell)) + cell if column.right else pad(cell, column.width)
            for cell, column in zip(row, shown, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join the names that have the same text: (("BF16", "x"), ("FP16", "x")) -> ("BF16, FP16", x).

    The order is that in which the texts come first.
    """
    names: dict[str, list[str]] = {}
    for name, text in pairs:
        known = names.setdefault(text, [])
        if name not in known:
            known.append(name)
    return [(", ".join(found), text) for text, found in names.items()]


def lines_of(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    """One wrapped line for each text, after the names that it is about."""
    return [
        line
        for names, text in grouped(pairs)
        for line in wrap(f"{plain(names, 200)}: {plain(text, 800)}", width, rest=4)
    ]


def shape_words(shape: Shape | None) -> str:
    """M x N x K, a cube in short: "8192^3"."""
    if shape is None:
        return NOT_AVAILABLE
    m, n, k = shape
    return f"{m}^3" if m == n == k else f"{m}x{n}x{k}"


def signed_percent(ratio: float | None) -> str:
    """A change: 0.031 -> "+3.1%"."""
    return NOT_AVAILABLE if ratio is None else f"{ratio * 100:+.1f}%"


def finish(lines: Sequence[str], *, ascii_only: bool) -> str:
    """Return the lines as one text, in ASCII where that is all that the terminal shows."""
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.encode("ascii", "replace").decode("ascii") if ascii_only else text

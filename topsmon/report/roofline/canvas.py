"""A grid of character cells on which lines are drawn in braille dots or in ASCII signs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topsmon.report.columns import cells
from topsmon.report.roofline.labels import Box
from topsmon.report.roofline.scene import Role

DOT_COLUMNS, DOT_ROWS = 2, 4
_BRAILLE = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille cell by dot column and row, from the top (Unicode block U+2800)."""
_PATTERNS: dict[str, tuple[int, int]] = {
    "rated": (1, 1),
    "held": (6, 4),
    "measured": (2, 1),
    "cache": (4, 2),
    "other": (4, 1),
}
"""Of so many dots along a line, so many are set."""
_ASCII_FLAT = {"rated": "-", "held": "=", "measured": ".", "cache": "~", "other": ":"}
_ASCII_RISING = {**_ASCII_FLAT, "rated": "/"}
GUIDE = "guide"
SECOND_HALF = None
"""Stands in the second cell of a wide character."""


class Run(NamedTuple):
    """Text in one role: a stroke's, a mark's kind, "axis", "guide", "blank", that of a label."""

    text: str
    role: str


Line = tuple[Run, ...]


def column_of(x: float, width: int, *, ascii_only: bool) -> int:
    """Cell in which a fraction of a width falls."""
    dots = 1 if ascii_only else DOT_COLUMNS
    return round(x * (width * dots - 1)) // dots


def row_of(y: float, height: int, *, ascii_only: bool) -> int:
    """Cell in which a fraction of a height falls, counted from the top."""
    dots = 1 if ascii_only else DOT_ROWS
    return (height * dots - 1 - round(y * (height * dots - 1))) // dots


class Canvas:
    """Cells with a sign and a role each. Whatever was drawn first keeps a cell's role."""

    def __init__(self, width: int, height: int, *, ascii_only: bool) -> None:
        self.width, self.height = width, height
        self._ascii = ascii_only
        self._dots = [[0] * width for _ in range(height)]
        self._signs: list[list[str | None]] = [[""] * width for _ in range(height)]
        self._roles: list[list[str]] = [[""] * width for _ in range(height)]

    @property
    def resolution(self) -> tuple[int, int]:
        """Columns and rows of what a line is made of: dots, or cells in ASCII."""
        if self._ascii:
            return self.width, self.height
        return self.width * DOT_COLUMNS, self.height * DOT_ROWS

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """Column and row of a place given as fractions from the lower left corner."""
        return (
            column_of(x, self.width, ascii_only=self._ascii),
            row_of(y, self.height, ascii_only=self._ascii),
        )

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        columns, rows = self.resolution
        return round(x * (columns - 1)), rows - 1 - round(y * (rows - 1))

    def stroke(self, start: tuple[float, float], end: tuple[float, float], role: Role) -> None:
        """Draw a line between two places given as fractions."""
        first, last = self._dot(*start), self._dot(*end)
        flat = first[1] == last[1]
        period, on = _PATTERNS[role]
        for number, (column, row) in enumerate(_between(first, last)):
            if self._ascii:
                self._set(column, row, (_ASCII_FLAT if flat else _ASCII_RISING)[role], role)
            elif (number + max(first)) % period < on:
                self._dots[row // DOT_ROWS][column // DOT_COLUMNS] |= _BITS[column % DOT_COLUMNS][
                    row % DOT_ROWS
                ]
                self._claim(column // DOT_COLUMNS, row // DOT_ROWS, role)

    def guide(self, x: float, y: float) -> None:
        """Drop a faint upright line from a place to the lower edge, where nothing else is."""
        column, row = self.cell(x, y)
        for below in range(row + 1, self.height):
            if not self._roles[below][column]:
                self._set(
                    column, below, "|" if self._ascii else "\N{BRAILLE PATTERN DOTS-13}", GUIDE
                )

    def put(self, column: int, row: int, text: str, role: str) -> None:
        """Write over whatever is there. A wide character takes two cells, a combining one none."""
        for sign in text:
            width = cells(sign)
            if not width:
                self._signs[row][column - 1] = (self._signs[row][column - 1] or "") + sign
                continue
            for offset in range(width):
                self._signs[row][column + offset] = sign if not offset else SECOND_HALF
                self._roles[row][column + offset] = role
            column += width

    def role_at(self, column: int, row: int) -> str:
        """Role of a cell, "" where it is blank."""
        return self._roles[row][column]

    def free(self, box: Box, *, over: frozenset[str] = frozenset()) -> bool:
        """True where a box lies inside and covers nothing but what may be written over."""
        if not box.inside(Box(0, 0, self.width, self.height)):
            return False
        return all(
            not self._roles[row][column] or self._roles[row][column] in over
            for row in range(int(box.top), int(box.bottom))
            for column in range(int(box.left), int(box.right))
        )

    def rows(self) -> Iterator[Line]:
        """The lines of the canvas, neighbours of one role joined."""
        for row in range(self.height):
            runs: list[Run] = []
            for column in range(self.width):
                role = self._roles[row][column] or "blank"
                sign = self._signs[row][column]
                sign = "" if sign is SECOND_HALF else sign or self._braille(column, row)
                if runs and runs[-1].role == role:
                    runs[-1] = Run(runs[-1].text + sign, role)
                else:
                    runs.append(Run(sign, role))
            yield tuple(runs)

    def _braille(self, column: int, row: int) -> str:
        bits = self._dots[row][column]
        return chr(_BRAILLE + bits) if bits else " "

    def _set(self, column: int, row: int, sign: str, role: str) -> None:
        if not self._roles[row][column]:
            self._signs[row][column] = sign
            self._roles[row][column] = role

    def _claim(self, column: int, row: int, role: str) -> None:
        if not self._roles[row][column]:
            self._roles[row][column] = role


def _between(first: tuple[int, int], last: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """All dots of a straight line, one a step along its longer side."""
    across, down = last[0] - first[0], last[1] - first[1]
    steps = max(abs(across), abs(down))
    for step in range(steps + 1):
        share = step / steps if steps else 0.0
        yield round(first[0] + across * share), round(first[1] + down * share)


def sample(role: Role, width: int, *, ascii_only: bool) -> str:
    """A short piece of a line for the legend."""
    canvas = Canvas(width, 1, ascii_only=ascii_only)
    canvas.stroke((0.0, 0.5), (1.0, 0.5), role)
    (line,) = canvas.rows()
    return "".join(run.text for run in line)

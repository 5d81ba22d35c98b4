"""Places for labels that collide with nothing, in cells or in pixels alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle; y grows downwards. Cells begin at their left and upper edges."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """True where both cover some area."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def inside(self, other: Box) -> bool:
        """True where nothing sticks out of the other."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )


class Size(NamedTuple):
    """Extent of a label, and the least distance from what it belongs to."""

    width: float
    height: float
    gap_x: float
    gap_y: float


def at(left: float, top: float, size: Size) -> Box:
    """A label's box with its upper left corner there."""
    return Box(left, top, left + size.width, top + size.height)


def beside(mark: Box, size: Size) -> Iterator[Box]:
    """Places that touch a mark: right, left, then above and below."""
    right, left = mark.right + size.gap_x, mark.left - size.gap_x - size.width
    middle = (mark.left + mark.right - size.width) / 2
    level = (mark.top + mark.bottom - size.height) / 2
    for x in (right, left):
        yield at(x, level, size)
    for y in (mark.top - size.gap_y - size.height, mark.bottom + size.gap_y):
        for x in (right, left, middle):
            yield at(x, y, size)


def along_roof(line: Box, size: Size, *, step: float) -> Iterator[Box]:
    """Places above and below a horizontal line, from its right end on."""
    x = line.right - size.width
    while x >= line.left:
        yield at(x, line.top - size.gap_y - size.height, size)
        yield at(x, line.bottom + size.gap_y, size)
        x -= step


def along_slope(spots: Sequence[Box], size: Size, *, right_first: bool) -> Iterator[Box]:
    """Places at both sides of a rising line, given spots on it, ever farther off it."""
    sides = (True, False) if right_first else (False, True)
    for times in (1, 2, 4, 6):
        for side in sides:
            for spot in spots:
                level = (spot.top + spot.bottom - size.height) / 2
                gap = size.gap_x * times
                x = spot.right + gap if side else spot.left - gap - size.width
                yield at(x, level, size)


def first_free(candidates: Iterable[Box], free: Callable[[Box], bool]) -> Box | None:
    """The first place that is free, None where there is none."""
    return next((box for box in candidates if free(box)), None)

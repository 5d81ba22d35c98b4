"""Panels above each other in a column: who gets how many lines."""

from __future__ import annotations

from typing import NamedTuple

FRAME = 2
"""Lines that a frame takes."""
CHART_LEAST, CHART_MOST = 6, 20


class Place(NamedTuple):
    """A panel's name and its region in cells."""

    panel: str
    x: int
    y: int
    width: int
    height: int
    framed: bool = False


class Item(NamedTuple):
    """A panel in a stack: the lines it needs and those it can use.

    Where room is short the highest `rank` goes first; 0 and 1 are the tables, which share the room
    before anything else grows. An `extra` gets only what others leave.
    """

    panel: str
    least: int
    most: int
    rank: int
    extra: bool = False


def chart(panel: str, rank: int, most: int = CHART_MOST) -> Item:
    """A chart: it takes what others leave, up to a height that reads well."""
    return Item(panel, CHART_LEAST, most, rank, extra=True)


def stack(
    x: int, y: int, width: int, height: int, items: list[Item], *, framed: bool
) -> list[Place]:
    """Put items above each other; drop by rank what does not fit, then share what is left over."""
    chosen = [item for item in items if not item.extra]
    while len(chosen) > 1 and sum(item.least for item in chosen) > height:
        chosen.remove(max(chosen, key=lambda item: item.rank))
    heights = {item.panel: min(item.least, height) for item in chosen}
    tables = [item for item in chosen if item.rank < 2]
    others = [item for item in chosen if item.rank >= 2]
    spare = _grow(tables, heights, height - sum(heights.values()))
    spare = _grow(others, heights, spare)
    extras = sorted((item for item in items if item.extra), key=lambda item: item.rank)
    fitting = []
    for item in extras:
        if item.least <= spare and item.most >= item.least:
            fitting.append(item)
            heights[item.panel] = item.least
            spare -= item.least
    _grow(fitting, heights, spare)
    places = []
    for item in items:
        lines = heights.get(item.panel, 0)
        if lines > 0:
            places.append(Place(item.panel, x, y, width, lines, framed))
            y += lines
    return places


def _grow(items: list[Item], heights: dict[str, int], spare: int) -> int:
    """Give lines in turn to items that can use more; return what nobody could use."""
    growing = True
    while spare > 0 and growing:
        growing = False
        for item in items:
            if spare > 0 and heights[item.panel] < item.most:
                heights[item.panel] += 1
                spare -= 1
                growing = True
    return spare

"""Where each panel stands at a terminal size: a pure function of numbers.

Panels keep the height that their content needs; what is left over goes to the charts up to a
height that reads well, and then stays empty rather than stretch anything.
"""

from __future__ import annotations

from typing import NamedTuple

TINY_WIDTH, TINY_HEIGHT = 40, 8
LIST_WIDTH = 60
FRAMED_WIDTH, FRAMED_HEIGHT = 100, 32
WIDE_WIDTH, WIDE_HEIGHT = 160, 48
FRAME = 2
WATERFALL_LEAST, WATERFALL_MOST = 7, 8
CHART_LEAST, CHART_MOST = 6, 20


class Content(NamedTuple):
    """How many there are of what takes lines.

    `facts` are the lines of the device's panel and `history` the rows of the history's; `power`
    tells whether power or clock can be drawn.
    """

    devices: int
    precisions: int
    findings: int = 0
    facts: int = 6
    power: bool = True
    history: int = 8


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


def is_tiny(width: int, height: int) -> bool:
    """True where there is room for a line or two, and none for a dialog."""
    return width < TINY_WIDTH or height < TINY_HEIGHT


def plan(width: int, height: int, content: Content, tab: str = "live") -> list[Place]:
    """Return the places of all panels that are shown; a tab but the first is one panel."""
    if is_tiny(width, height):
        return [Place("one-line", 0, 0, width, min(height, 2))]
    finding_lines = 4 if width < LIST_WIDTH and height >= 20 else 2
    places, top, bottom = _chrome(width, height, finding_lines)
    room = bottom - top
    if tab != "live":
        return [*places, Place(tab, 0, top, width, room, framed=width >= LIST_WIDTH)]
    if width < LIST_WIDTH:
        return [*places, Place("compact", 0, top, width, room)]
    if width < FRAMED_WIDTH or height < FRAMED_HEIGHT:
        return places + stack(0, top, width, room, _narrow(content), framed=False)
    if width < WIDE_WIDTH or height < WIDE_HEIGHT:
        return places + _medium(top, width, room, content)
    return places + _wide(top, width, room, content)


def _chrome(width: int, height: int, finding: int) -> tuple[list[Place], int, int]:
    """The lines around the body, and where the body begins and ends."""
    places = [Place("identity", 0, 0, width, 1), Place("finding", 0, 1, width, finding)]
    top, bottom = 1 + finding, height
    if height >= 12:
        places.append(Place("tabs", 0, top, width, 1))
        top += 1
    if height >= 10:
        places.append(Place("footer", 0, height - 1, width, 1))
        bottom -= 1
    return places, top, bottom


def _table(panel: str, rows: int, rank: int, around: int) -> Item:
    """A panel with a head and rows, of which at least four are shown."""
    return Item(panel, min(rows, 4) + 1 + around, rows + 1 + around, rank)


def _chart(panel: str, rank: int, most: int = CHART_MOST) -> Item:
    return Item(panel, CHART_LEAST, most, rank, extra=True)


def _narrow(content: Content) -> list[Item]:
    """One column without frames."""
    items = [
        _table("devices", content.devices, 0, 0),
        _table("rates", content.precisions, 1, 0),
        Item("waterfall", 1, 5, 2),
        _chart("utilisation", 3, 9),
    ]
    return [*items, _chart("power-and-clock", 4, 9)] if content.power else items


def _medium(top: int, width: int, room: int, content: Content) -> list[Place]:
    """Devices and rates at full width; under them two columns."""
    upper = [
        _table("devices", content.devices, 0, FRAME),
        _table("rates", content.precisions, 1, FRAME),
    ]
    needed, wanted = sum(item.least for item in upper), sum(item.most for item in upper)
    height = min(wanted, max(needed, room - 2 * CHART_LEAST))
    places = stack(0, top, width, min(height, room), upper, framed=True)
    used = sum(place.height for place in places)
    half = width // 2
    left = [
        Item("waterfall", WATERFALL_LEAST, WATERFALL_MOST, 2),
        Item("facts", 5, max(3, min(content.facts, 14)) + FRAME, 3),
        _chart("findings", 4, 3 * content.findings + FRAME),
        Item("history", 1 + 1 + FRAME, content.history + 1 + FRAME, 5, extra=True),
    ]
    right = [_chart("utilisation", 2)]
    if content.power:
        right.append(_chart("power-and-clock", 3))
    places += stack(0, top + used, half, room - used, left, framed=True)
    places += stack(half, top + used, width - half, room - used, right, framed=True)
    return places


def _wide(top: int, width: int, room: int, content: Content) -> list[Place]:
    """Two columns from top to bottom, each ending in a chart that takes what is left."""
    right_width = min(max(int(width * 0.42), 78), 110)
    left_width = width - right_width
    left = [
        _table("devices", content.devices, 0, FRAME),
        _table("rates", content.precisions, 1, FRAME),
        Item("waterfall", WATERFALL_LEAST, WATERFALL_MOST, 2),
        Item("facts", 6, max(6, min(content.facts, 14)) + FRAME, 3),
        _chart("utilisation", 4),
    ]
    right = [_table("matrix", content.devices, 0, FRAME)] if content.devices > 1 else []
    right += [
        _table("history", max(1, content.history), 1, FRAME),
        Item("findings", 3, max(1, min(3 * content.findings, 18)) + FRAME, 2),
    ]
    if content.power:
        right += [_chart("power", 4), _chart("clock", 5)]
    return stack(0, top, left_width, room, left, framed=True) + stack(
        left_width, top, right_width, room, right, framed=True
    )


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

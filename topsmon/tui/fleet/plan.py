"""Where the panels of the hosts tab stand: a pure function of the room."""

from __future__ import annotations

from topsmon.tui.stack import FRAME, Item, Place, stack

LIST_WIDTH = 60
FRAMED_WIDTH, FRAMED_ROOM = 100, 24
WIDE_WIDTH, WIDE_ROOM = 160, 40
SPREAD_LEAST, NARROW_SPREAD_FROM = 5, 15
METRIC_ROWS = 8
"""Lines of the quantiles with their head."""


def fleet_places(top: int, width: int, room: int) -> list[Place]:
    """Return the places in a body of `room` lines from line `top` on."""
    places = [Place("fleet-summary", 0, top, width, 1)]
    top, room = top + 1, room - 1
    if room < 1:
        return places
    if width < LIST_WIDTH:
        items = [Item("fleet-worst", 3, max(3, room // 2), 1), Item("fleet-map", 3, room, 0)]
        return places + stack(0, top, width, room, items, framed=False)
    if width < FRAMED_WIDTH or room < FRAMED_ROOM:
        return places + _narrow(top, width, room)
    if width < WIDE_WIDTH or room < WIDE_ROOM:
        return places + _medium(top, width, room)
    return places + _wide(top, width, room)


def _narrow(top: int, width: int, room: int) -> list[Place]:
    """One column without frames: the map, the worst, a few quantiles."""
    spread = SPREAD_LEAST if room >= NARROW_SPREAD_FROM else 0
    worst = min(max(4, (room - spread) * 2 // 5), 14) if room >= 8 else 0
    heights = (
        ("fleet-map", room - spread - worst),
        ("fleet-worst", worst),
        ("fleet-spread", spread),
    )
    places = []
    for panel, height in heights:
        if height:
            places.append(Place(panel, 0, top, width, height))
            top += height
    return places


def _medium(top: int, width: int, room: int) -> list[Place]:
    """The map at full width; under it the worst beside the distribution."""
    lower = min(max(METRIC_ROWS + FRAME + 8, room // 2), 22)
    upper = room - lower
    right = 53
    return [
        Place("fleet-map", 0, top, width, upper, framed=True),
        Place("fleet-worst", 0, top + upper, width - right, lower, framed=True),
        Place("fleet-spread", width - right, top + upper, right, lower, framed=True),
    ]


def _wide(top: int, width: int, room: int) -> list[Place]:
    """The map at the left; at the right the worst over the distribution."""
    right = min(max(int(width * 0.45), 78), 110)
    spread = METRIC_ROWS + FRAME + 12
    return [
        Place("fleet-map", 0, top, width - right, room, framed=True),
        Place("fleet-worst", width - right, top, right, room - spread, framed=True),
        Place("fleet-spread", width - right, top + room - spread, right, spread, framed=True),
    ]

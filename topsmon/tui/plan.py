"""Where each panel stands at a terminal size: a pure function of numbers.

Panels keep the height that their content needs; what is left over goes to the charts up to a
height that reads well, and then stays empty rather than stretch anything.
"""

from __future__ import annotations

from typing import NamedTuple

from topsmon.tui.fleet.plan import fleet_places
from topsmon.tui.stack import CHART_LEAST, FRAME, Item, Place, chart, stack
from topsmon.tui.training.plan import TrainingContent, training_places

TINY_WIDTH, TINY_HEIGHT = 40, 8
LIST_WIDTH = 60
FRAMED_WIDTH, FRAMED_HEIGHT = 100, 32
WIDE_WIDTH, WIDE_HEIGHT = 160, 48
WATERFALL_LEAST, WATERFALL_MOST = 7, 8
JOB_LEAST, JOB_MOST = 9, 12
"""Lines of the waterfall with a running job as its last step."""
AMP_LEAST, AMP_MOST = 6, 8
ACTIVITY_LEAST = 6
PRECISIONS_SHOWN = 8
"""So many rates stand on a small terminal before anything else gets a line."""


class Content(NamedTuple):
    """How many there are of what takes lines.

    `facts` are the lines of the device's panel and `history` the rows of the history's; `power`
    tells whether power or clock can be drawn, `job` whether a run trains on the selected device,
    `amp` whether one trains at all; `activity` are the lines of what the selected device does, 0
    where it tells nothing; `training` is what the training tab has to show.
    """

    devices: int
    precisions: int
    findings: int = 0
    facts: int = 6
    power: bool = True
    history: int = 8
    job: bool = False
    amp: bool = False
    activity: int = 0
    training: TrainingContent = TrainingContent()


def is_tiny(width: int, height: int) -> bool:
    """True where there is room for a line or two, and none for a dialog."""
    return width < TINY_WIDTH or height < TINY_HEIGHT


def plan(width: int, height: int, content: Content, tab: str = "live") -> list[Place]:
    """Return the places of all panels that are shown; most tabs but the first are one."""
    if is_tiny(width, height):
        if tab == "hosts":
            return [Place("fleet-summary", 0, 0, width, min(height, 2))]
        return [Place("one-line", 0, 0, width, min(height, 2))]
    finding_lines = 4 if width < LIST_WIDTH and height >= 20 else 2
    places, top, bottom = _chrome(width, height, finding_lines)
    room = bottom - top
    if tab == "training":
        return places + training_places(top, width, room, content.training)
    if tab == "hosts":
        return places + fleet_places(top, width, room)
    if tab != "live":
        return [*places, Place(tab, 0, top, width, room, framed=width >= LIST_WIDTH)]
    return places + _live(top, width, height, room, content)


def _live(top: int, width: int, height: int, room: int, content: Content) -> list[Place]:
    if width < LIST_WIDTH:
        items = [Item("compact", 1, room, 0)] + [Item("amp", 1, 1, 2)] * content.amp
        return stack(0, top, width, room, items, framed=False)
    if width < FRAMED_WIDTH or height < FRAMED_HEIGHT:
        return stack(0, top, width, room, _narrow(content, room), framed=False)
    if width < WIDE_WIDTH or height < WIDE_HEIGHT:
        return _medium(top, width, room, content)
    return _wide(top, width, room, content)


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


def _narrow(content: Content, room: int) -> list[Item]:
    """One column without frames. What the device does gets no line that the tables need."""
    tables = 1 + content.devices + 1 + min(content.precisions, PRECISIONS_SHOWN)
    tells = content.activity > 0 and room > tables + 1
    items = [
        _table("devices", content.devices, 0, 0),
        _table("rates", content.precisions, 1, 0),
        Item("waterfall", 1, 5, 3),
        *[Item("activity", 1, content.activity, 4)] * tells,
        *[Item("amp", 1, 1, 2)] * content.amp,
        chart("utilisation", 3, 9),
    ]
    return [*items, chart("power-and-clock", 4, 9)] if content.power else items


def _waterfall(content: Content) -> Item:
    if content.job:
        return Item("waterfall", JOB_LEAST, JOB_MOST, 2)
    return Item("waterfall", WATERFALL_LEAST, WATERFALL_MOST, 2)


def _activity(content: Content, room: int) -> list[Item]:
    """What the device does, in all its lines unless the chart under it would not fit any more."""
    if not content.activity:
        return []
    wanted = content.activity + FRAME
    short = room - CHART_LEAST
    most = short if ACTIVITY_LEAST <= short < wanted else wanted
    return [Item("activity", ACTIVITY_LEAST, most, 2)]


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
        _waterfall(content),
        Item("facts", 5, max(3, min(content.facts, 14)) + FRAME, 3),
        chart("findings", 4, 3 * content.findings + FRAME),
        Item("history", 1 + 1 + FRAME, content.history + 1 + FRAME, 5, extra=True),
    ]
    amp = AMP_MOST if room - used >= AMP_MOST + CHART_LEAST else AMP_LEAST
    right = [Item("amp", AMP_LEAST, amp, 1)] * content.amp
    right += _activity(content, room - used - amp * content.amp)
    right.append(chart("utilisation", 2))
    if content.power:
        right.append(chart("power-and-clock", 3))
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
        _waterfall(content),
        Item("facts", 6, max(6, min(content.facts, 14)) + FRAME, 3),
        chart("utilisation", 4),
    ]
    right = [_table("matrix", content.devices, 0, FRAME)] if content.devices > 1 else []
    right += [Item("amp", AMP_LEAST, AMP_MOST + 2, 2)] * content.amp
    if content.activity:
        right.append(Item("activity", ACTIVITY_LEAST, content.activity + FRAME, 3))
    right += [
        _table("history", max(1, content.history), 1, FRAME),
        Item("findings", 3, max(1, min(3 * content.findings, 18)) + FRAME, 2),
    ]
    if content.power:
        right += [chart("power", 4), chart("clock", 5)]
    return stack(0, top, left_width, room, left, framed=True) + stack(
        left_width, top, right_width, room, right, framed=True
    )

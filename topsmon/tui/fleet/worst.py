"""The list of what to look at first: troubles with reasons, then the ends of the metric."""

from __future__ import annotations

from typing import NamedTuple

from textual.events import Click

from topsmon.fleet.device_view import DeviceView
from topsmon.tui.cells import Line, Span, fit, left, right
from topsmon.tui.fleet.keys import FleetApp
from topsmon.tui.fleet.watched import Hosts
from topsmon.tui.fleet.words import metric_label, name_width
from topsmon.tui.panel import Panel
from topsmon.tui.view import SEVERITY_ROLES, View
from topsmon.units import NOT_AVAILABLE, plain

WORD, DEVICE, VALUE = 7, 7, 10


class Entry(NamedTuple):
    """One row: state word with its role, whose it is, and why it is here."""

    word: Span
    host: str
    device: DeviceView | None
    text: str


class WorstList(Panel):
    """As many of the worst as fit."""

    headed_from = 4

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self._shown: list[str] = []
        self._hidden = 0

    def title(self, view: View) -> str:
        """Count the troubles."""
        hosts = view.hosts
        if hosts is None:
            return "worst"
        count = len(hosts.troubles)
        said = f"{count} trouble{'s' if count != 1 else ''}" if count else "nothing stands out"
        return f"worst: {said}; {_end(hosts)}"

    def subtitle(self, view: View) -> str:
        """Say how many troubles are out of sight."""
        del view
        return f"{self._hidden} more with troubles" if self._hidden else ""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return head and rows."""
        hosts = view.hosts
        if hosts is None:
            return []
        found = entries(hosts)
        rest = found[max(0, height - 1) :]
        self._hidden = sum(bool(entry.text) for entry in rest)
        found = found[: max(0, height - 1)]
        self._shown = [entry.host for entry in found]
        if not found:
            return [fit((Span("nothing is known yet", "muted"),), width)]
        names = name_width(hosts)
        head = left("", WORD) + left("host", names + 1) + left("device", DEVICE)
        head += right(hosts.metric.head, VALUE) + "  why"
        return [
            fit((Span(head, "muted"),), width),
            *(_row(hosts, entry, names, width) for entry in found),
        ]

    def on_click(self, event: Click) -> None:
        """Select the host of the row under the mouse."""
        place = event.y - 2
        if 0 <= place < len(self._shown):
            app: FleetApp = self.app  # type: ignore[assignment]
            app.watching.select(self._shown[place])
            app.redraw()


def entries(hosts: Hosts) -> list[Entry]:
    """One row a device or host with its troubles, then the worse end of the metric."""
    found: dict[tuple[str, str], Entry] = {}
    for trouble in hosts.troubles:
        key = (trouble.host, trouble.device.key if trouble.device is not None else "")
        known = found.get(key)
        if known is not None:
            found[key] = known._replace(text=f"{known.text}; {trouble.text}")
        else:
            word = Span(plain(trouble.word, 6), SEVERITY_ROLES[trouble.severity])
            found[key] = Entry(word, trouble.host, trouble.device, trouble.text)
    word = Span("low" if hosts.metric.worse == "low" else "high", "muted")
    return list(found.values()) + [
        Entry(word, extreme.host, extreme.device, "")
        for extreme in hosts.aggregate.worst
        if (extreme.host, extreme.device.key) not in found
    ]


def _end(hosts: Hosts) -> str:
    which = "lowest" if hosts.metric.worse == "low" else "highest"
    return f"{which} {metric_label(hosts)}"


def _row(hosts: Hosts, entry: Entry, names: int, width: int) -> Line:
    ending = "@cursor" if entry.host == hosts.selected else ""
    value = NOT_AVAILABLE if entry.device is not None else ""
    if entry.device is not None and entry.device.condition != "lost":
        value = hosts.metric.words(hosts.metric.read(entry.device, hosts.aggregate.precision))
    label = entry.device.label if entry.device is not None else ""
    plainly = "text" if entry.text else "muted"
    spans = [
        Span(left(entry.word.text, WORD), entry.word.role + ending),
        Span(left(plain(entry.host, 200), names) + " ", "text" + ending),
        Span(left(label, DEVICE), plainly + ending),
        Span(right(value, VALUE) + "  ", plainly + ending),
    ]
    room = width - WORD - names - 1 - DEVICE - VALUE - 2
    spans.append(Span(left(plain(entry.text, 300), max(0, room)), plainly + ending))
    return fit(spans, width)

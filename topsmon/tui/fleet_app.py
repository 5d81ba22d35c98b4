"""The screen of many hosts: the tab of all of them, and the other tabs for one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from topsmon.fleet.state import FleetState
from topsmon.fleet.trouble import outage_finding
from topsmon.tui.app import TopsmonApp
from topsmon.tui.cells import left
from topsmon.tui.drawn_app import Clock, real_clock
from topsmon.tui.fleet.heat import HeatMap
from topsmon.tui.fleet.spread import Spread
from topsmon.tui.fleet.summary import FleetSummary
from topsmon.tui.fleet.watched import Watch, finding_of
from topsmon.tui.fleet.worst import WorstList
from topsmon.tui.header import HOSTS_TAB
from topsmon.tui.options import ScreenOptions, SessionLike
from topsmon.tui.panel import Panel
from topsmon.tui.view import View

HOSTS = HOSTS_TAB.name
KEYS = (
    ("6, Esc, Backspace", "all hosts"),
    ("6: up, down, k, j", "select a host; [ and ]: a line up or down, Page Up and Down"),
    ("6: Enter", "the selected host in the tabs 1 to 5"),
    ("6: left, right", "metric: busy, power, temperature, memory, clock, share of ceiling, MFU"),
    ("6: o, /", "order: by name, worst first, by metric; filter hosts by name (Esc ends it)"),
    ("6: t", "one cell a host, or one a device"),
)


def fleet_panels() -> tuple[Panel, ...]:
    """The panels of the hosts' tab, under the names that the plan calls them."""
    return (
        FleetSummary(id="fleet-summary"),
        HeatMap(id="fleet-map"),
        WorstList(id="fleet-worst"),
        Spread(id="fleet-spread"),
    )


class FleetSessionLike(SessionLike, Protocol):
    """A session over many hosts; `state` is that of `host`, None: of none."""

    fleet: FleetState
    host: str | None

    def select(self, host: str | None) -> None:
        """Make `state` that of a host. Returns at once."""


class FleetApp(TopsmonApp):
    """Begins with the hosts; Enter goes to one of them, Escape comes back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(HOSTS_TAB.key, f"tab('{HOSTS}')", HOSTS, show=False),
        Binding("escape,backspace", f"tab('{HOSTS}')", "all hosts", show=False),
    ]

    def __init__(
        self, session: FleetSessionLike, options: ScreenOptions, clock: Clock = real_clock
    ) -> None:
        self.many = session
        self.watching = Watch(session.fleet)
        super().__init__(session, options, clock)
        self._tab = HOSTS
        self.view = self._look()

    def _look(self) -> View:
        view = super()._look()
        on_top = self._tab == HOSTS
        hosts = self.watching.hosts
        if on_top or hosts is None:
            hosts = self.watching.update(self.many.host, view.now)
        elif hosts.shown != self.many.host:
            hosts = replace(hosts, shown=self.many.host)
        if not on_top:
            return replace(view, hosts=hosts)
        worst = hosts.troubles[:1]
        findings = tuple(finding_of(trouble, view.now, view.wall) for trouble in worst)
        outage = self.many.fleet.outage
        if outage is not None:
            findings = (outage_finding(self.many.fleet, outage, view.now, view.wall),)
        return replace(view, hosts=hosts, findings=findings)

    def compose(self) -> ComposeResult:
        """Create the panels of the hosts' tab too."""
        yield from super().compose()
        for panel in fleet_panels():
            panel.display = False
            self._panels[str(panel.id)] = panel
            yield panel

    def action_help(self) -> None:
        """Show the keys of the hosts' tab, then those of the others."""
        from topsmon.tui.dialogs import help_dialog

        self._open(help_dialog([left(key, 20) + text for key, text in KEYS] + [""]))

    def _select(self, host: str) -> None:
        """Look at a host; a recording is of one machine, and ends."""
        if host != self.many.host and self._tape.words:
            self.action_record()
        self.many.select(host)

    def drill_down(self, host: str) -> None:
        """Show a host in the other tabs."""
        self._select(host)
        super().action_tab("live")

    def action_tab(self, name: str) -> None:
        """Show a tab; those of one host are about the one under the cursor."""
        selected = self.view.hosts.selected if self.view.hosts is not None else None
        if name != HOSTS and self._tab == HOSTS and selected is not None:
            self._select(selected)
        super().action_tab(name)

    def numbers(self) -> bytes:
        """The numbers behind the screen, as JSON: of the fleet, or of the host on top."""
        if self._tab != HOSTS:
            return super().numbers()
        from topsmon.fleet import summary

        return summary.to_json(self.many.fleet, self.view.now)

"""All panels of the screen; the plan says which of them are shown, and where."""

from __future__ import annotations

from topsmon.tui.checks_view import CheckList
from topsmon.tui.compact import CompactList, OneLine
from topsmon.tui.device_facts import DeviceFacts, line_count
from topsmon.tui.device_rows import DeviceRows
from topsmon.tui.findings_list import FindingsList
from topsmon.tui.footer import KeyHints
from topsmon.tui.header import Identity, TabLine, WorstFinding
from topsmon.tui.matrix import Matrix
from topsmon.tui.panel import Panel
from topsmon.tui.plan import Content
from topsmon.tui.plots import ClockPlot, PowerAndClock, PowerPlot, Utilisation, has_power
from topsmon.tui.rates import Rates
from topsmon.tui.ratio_history import RatioHistory
from topsmon.tui.ratio_history import rows as history_rows
from topsmon.tui.roofline_view import RooflineView
from topsmon.tui.view import View, shown_devices
from topsmon.tui.waterfall import LossWaterfall


def all_panels() -> list[Panel]:
    """Return one of each, under the name that the plan calls it."""
    return [
        Identity(id="identity"),
        WorstFinding(id="finding"),
        TabLine(id="tabs"),
        DeviceRows(id="devices"),
        Rates(id="rates"),
        LossWaterfall(id="waterfall"),
        Utilisation(id="utilisation"),
        PowerAndClock(id="power-and-clock"),
        PowerPlot(id="power"),
        ClockPlot(id="clock"),
        Matrix(id="matrix"),
        RatioHistory(id="history"),
        DeviceFacts(id="facts"),
        FindingsList(id="findings"),
        RooflineView(id="roofline"),
        CheckList(id="checks"),
        CompactList(id="compact"),
        OneLine(id="one-line"),
        KeyHints(id="footer"),
    ]


def content(view: View) -> Content:
    """Return how much there is to show, which the plan shares the room by."""
    return Content(
        devices=max(1, len(shown_devices(view.state))),
        precisions=len(view.precisions),
        findings=len(view.findings),
        facts=line_count(view),
        power=has_power(view),
        history=len(history_rows(view)),
    )

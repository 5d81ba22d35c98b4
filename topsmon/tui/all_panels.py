"""All panels of the screen; the plan says which of them are shown, and where."""

from __future__ import annotations

from topsmon.diagnosis import mfu
from topsmon.tui import activity
from topsmon.tui.activity import Activity
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
from topsmon.tui.processes.list import ProcessList
from topsmon.tui.rates import Rates
from topsmon.tui.ratio_history import RatioHistory
from topsmon.tui.ratio_history import rows as history_rows
from topsmon.tui.roofline_view import RooflineView
from topsmon.tui.training import verdict
from topsmon.tui.training.amp import AmpPanel, recent
from topsmon.tui.training.happened import RunHappenings, newest
from topsmon.tui.training.list import RunList
from topsmon.tui.training.no_runs import NoRuns
from topsmon.tui.training.numbers import RunNumbers, facts, nonfinite
from topsmon.tui.training.plan import FRAMED_WIDTH, TrainingContent
from topsmon.tui.training.plots import LossPlot, NormPlot, ScalePlot
from topsmon.tui.training.verdict import RunVerdict
from topsmon.tui.training.words import has_scaler
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
        Activity(id="activity"),
        Utilisation(id="utilisation"),
        PowerAndClock(id="power-and-clock"),
        PowerPlot(id="power"),
        ClockPlot(id="clock"),
        Matrix(id="matrix"),
        RatioHistory(id="history"),
        DeviceFacts(id="facts"),
        FindingsList(id="findings"),
        RooflineView(id="roofline"),
        RunList(id="runs"),
        RunVerdict(id="run-verdict"),
        ScalePlot(id="scale"),
        LossPlot(id="loss"),
        NormPlot(id="norm"),
        RunNumbers(id="run-numbers"),
        RunHappenings(id="run-happened"),
        NoRuns(id="no-runs"),
        AmpPanel(id="amp"),
        CheckList(id="checks"),
        ProcessList(id="processes"),
        CompactList(id="compact"),
        OneLine(id="one-line"),
        KeyHints(id="footer"),
    ]


def content(view: View, width: int) -> Content:
    """Return how much there is to show in a terminal of some width: the plan shares room by it."""
    return Content(
        devices=max(1, len(shown_devices(view.state))),
        precisions=len(view.precisions),
        findings=len(view.findings),
        facts=line_count(view),
        power=has_power(view),
        history=len(history_rows(view)),
        job=view.device is not None and mfu.of_device(view.state, view.device) is not None,
        amp=bool(recent(view)),
        activity=activity.line_count(view),
        training=_training(view, width) if view.tab == "training" else TrainingContent(),
    )


def _training(view: View, width: int) -> TrainingContent:
    run = view.training.selected
    if run is None:
        return TrainingContent()
    return TrainingContent(
        rows=len(view.training.rows),
        verdict=verdict.line_count(view, width, framed=width >= FRAMED_WIDTH),
        numbers=len(facts(view, run)) + len(nonfinite(run)),
        happened=len(newest(run.happened)),
        scaler=has_scaler(run),
    )

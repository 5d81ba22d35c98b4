"""Charts of the selected device over time, all on a fixed 0 to 100 % scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topsmon.device_state import DeviceState
from topsmon.tui.cells import Line, Span, fit, line_width, right
from topsmon.tui.charts import ChartCell, dots_per_cell, draw, resample
from topsmon.tui.panel import Panel
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, percent, plain, watts

AXIS = 5
SPAN_SECONDS = 120.0
"""Time that a chart covers, unless samples come too seldom to fill it."""
ROLES = ("series-1", "series-2", "series-3")


class Series(NamedTuple):
    """One line: its name, its latest value in words, its ratios one a sample."""

    name: str
    latest: str
    values: Sequence[float | None]


class Plot(Panel):
    """A chart with its scale at the left, and time and legend below."""

    headed_from = 4

    def series(self, device: DeviceState) -> list[Series]:
        """Return the lines to draw."""
        raise NotImplementedError

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the chart and its legend."""
        device = view.device
        if device is None or height < 3 or width < 30:
            return []
        series = self.series(device)
        per_cell, cells = dots_per_cell(view.glyphs), width - AXIS
        count = cells * per_cell
        step = max(SPAN_SECONDS / count, view.interval)
        # Whole cells only, and only complete ones: the chart moves seldom, and never back.
        last = int((device.times[-1] if device.times else 0.0) / step) // per_cell * per_cell - 1
        times = list(device.times)
        values = [resample(times, list(one.values), step, count, last) for one in series]
        rows = draw(values, cells, height - 1, view.glyphs)
        lines = [
            fit((Span(_scale(row, height - 1), "muted"), *_spans(cells_of_row)), width)
            for row, cells_of_row in enumerate(rows)
        ]
        return [*lines, _legend(view, series, step * count, width)]


def _scale(row: int, height: int) -> str:
    marks = {0: "100%", height - 1: "0%"}
    if height >= 5:
        marks[height - 1 - height // 2] = "50%"
    return right(marks.get(row, ""), AXIS - 1) + " "


def _spans(cells: list[ChartCell]) -> list[Span]:
    spans: list[Span] = []
    role, text = "text", ""
    for cell in cells:
        # A blank takes its neighbour's role: fewer changes of colour are fewer bytes.
        wanted = role if cell.series is None else ROLES[cell.series % len(ROLES)]
        if wanted != role and text.strip():
            spans.append(Span(text, role))
            text = ""
        role, text = wanted, text + cell.sign
    spans.append(Span(text.rstrip(), role))
    return spans


def _legend(view: View, series: list[Series], seconds: float, width: int) -> Line:
    begin, end = f"-{seconds:.0f}s", "now"
    parts: list[Span] = []
    for index, one in enumerate(series):
        if any(value is not None for value in one.values):
            sign = (view.glyphs.line + "o+")[index] if view.glyphs.ascii_only else view.glyphs.line
            parts.append(Span(sign * 2 + " ", ROLES[index % len(ROLES)]))
        parts.append(Span(f"{one.name} {one.latest}" + "   " * (one is not series[-1]), "muted"))
    middle = fit(parts, width - len(begin) - len(end) - 4)
    gap = max(2, width - len(begin) - line_width(middle) - len(end))
    before, after = " " * (gap // 2), " " * (gap - gap // 2)
    return fit((Span(begin + before, "muted"), *middle, Span(after + end, "muted")), width)


def _why_missing(device: DeviceState, field: str) -> str:
    sample = device.sample
    reason = sample.unavailable.get(field) if sample is not None else None
    return f"{NOT_AVAILABLE} ({plain(reason, 60)})" if reason else NOT_AVAILABLE


class Utilisation(Plot):
    """How busy the device and its memory are. For a GPU this is no share of its SMs."""

    def title(self, view: View) -> str:
        """Name the device and what "busy" means."""
        if view.device is None:
            return "utilisation"
        if view.device.identity.kind == "cpu":
            return f"{view.device.label}  time busy"
        return f"{view.device.label}  time with any kernel, with memory traffic"

    def series(self, device: DeviceState) -> list[Series]:
        """Return the share of time with any kernel, and that with memory traffic."""
        sample = device.sample
        busy = percent(sample.busy_ratio, 0) if sample is not None else NOT_AVAILABLE
        if busy == NOT_AVAILABLE:
            busy = _why_missing(device, "busy_ratio")
        if device.identity.kind == "cpu":
            return [Series("busy", busy, device.busy)]
        memory = percent(sample.memory_busy_ratio, 0) if sample is not None else NOT_AVAILABLE
        if memory == NOT_AVAILABLE:
            memory = _why_missing(device, "memory_busy_ratio")
        return [
            Series("busy", busy, device.busy),
            Series("memory traffic", memory, device.memory_busy),
        ]


def power_series(device: DeviceState) -> Series:
    """Power as a share of its limit."""
    sample = device.sample
    limit = sample.power_limit_watts if sample is not None else None
    limit = limit or device.identity.power_limit_default_watts
    latest = _why_missing(device, "power_watts")
    if sample is not None and sample.power_watts is not None:
        latest = f"{watts(sample.power_watts)}/{watts(limit)} W"
    return Series("power", latest, _shares(device.power_watts, limit))


def clock_series(device: DeviceState) -> Series:
    """Clock as a share of its maximum."""
    sample, most = device.sample, device.identity.sm_clock_max_mhz
    latest = _why_missing(device, "sm_clock_mhz")
    if sample is not None and sample.sm_clock_mhz is not None:
        latest = f"{sample.sm_clock_mhz:.0f}/{f'{most:.0f}' if most else NOT_AVAILABLE} MHz"
    return Series("clock", latest, _shares(device.clock_mhz, most))


def has_power(view: View) -> bool:
    """True where power or clock of the selected device can be drawn on a scale."""
    device = view.device
    if device is None:
        return True
    series = power_series(device), clock_series(device)
    return any(value is not None for one in series for value in one.values)


def _shares(values: Sequence[float | None], whole: float | None) -> list[float | None]:
    if not whole:
        return [None] * len(values)
    return [None if value is None else value / whole for value in values]


class PowerAndClock(Plot):
    """Power against its limit and clock against its maximum: what a throttle pulls down."""

    def title(self, view: View) -> str:
        """Name the device and the scale."""
        label = f"{view.device.label}  " if view.device is not None else ""
        return label + "power of its limit, clock of its maximum"

    def series(self, device: DeviceState) -> list[Series]:
        """Return both."""
        return [power_series(device), clock_series(device)]


class PowerPlot(Plot):
    """Power against its limit."""

    def title(self, view: View) -> str:
        """Name the device and the scale."""
        return (f"{view.device.label}  " if view.device is not None else "") + "power of its limit"

    def series(self, device: DeviceState) -> list[Series]:
        """Return the one line."""
        return [power_series(device)]


class ClockPlot(Plot):
    """Clock against its maximum."""

    def title(self, view: View) -> str:
        """Name the device and the scale."""
        label = f"{view.device.label}  " if view.device is not None else ""
        return label + "clock of its maximum"

    def series(self, device: DeviceState) -> list[Series]:
        """Return the one line."""
        return [clock_series(device)]

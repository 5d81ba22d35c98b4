"""Distributions: quantiles of every metric, and the histogram of the chosen one."""

from __future__ import annotations

from topsmon.fleet.aggregate import Aggregate, Histogram
from topsmon.fleet.metrics import METRICS, Metric
from topsmon.fleet.words import counted
from topsmon.tui.cells import Line, Span, fit, left, right
from topsmon.tui.fleet.watched import Hosts
from topsmon.tui.fleet.words import metric_label, short
from topsmon.tui.glyphs import Glyphs
from topsmon.tui.panel import Panel
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE

LABEL, CELL = 17, 9
HISTOGRAM_LEAST = 4
HISTOGRAM_MOST = 10
BAR_CELLS_MOST = 3
AXIS = 7
FULL = "█"
COLUMNS = ("min", "5%", "median", "95%", "max")


class Spread(Panel):
    """One row a metric; below them the histogram of the chosen one."""

    headed_from = 4

    def title(self, view: View) -> str:
        """Say over what."""
        hosts = view.hosts
        if hosts is None:
            return "distribution"
        return f"distribution over {counted(hosts.aggregate.count, 'device')}"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the quantiles, as many as fit, and the histogram."""
        hosts = view.hosts
        if hosts is None:
            return []
        count = max(1, (width - LABEL) // CELL)
        columns = _columns(count)
        keys = list(METRICS)
        if height - 1 < len(keys):
            start = max(0, min(keys.index(hosts.metric.key) - (height - 1) // 2, len(keys)))
            start = min(start, max(0, len(keys) - (height - 1)))
            keys = keys[start : start + max(1, height - 1)]
        head = " " * LABEL + "".join(right(name, CELL) for name in columns)
        lines = [fit((Span(head, "muted"),), width)]
        lines += [_row(hosts, METRICS[key], columns, view.glyphs, width) for key in keys]
        room = height - len(lines) - 1
        if room >= HISTOGRAM_LEAST and hosts.aggregate.histogram is not None:
            lines += [(), *_histogram(hosts, min(room, HISTOGRAM_MOST), width, view.glyphs)]
        return lines


def _columns(count: int) -> tuple[str, ...]:
    if count >= len(COLUMNS):
        return COLUMNS
    return COLUMNS[1:4] if count >= 3 else ("median",)


def _row(
    hosts: Hosts, metric: Metric, columns: tuple[str, ...], glyphs: Glyphs, width: int
) -> Line:
    chosen = metric.key == hosts.metric.key
    found = hosts.aggregates.get(metric.key)
    ending = "@cursor" if chosen else ""
    role = "text" if chosen else "muted"
    mark = glyphs.cursor if chosen else " "
    spans = [Span(mark + left(metric_label(hosts, metric), LABEL - 1), role + ending)]
    for name in columns:
        value = _value(found, name)
        text = NOT_AVAILABLE if value is None else _number(metric, value)
        if found is None:
            text = "..." if glyphs.ascii_only else "…"  # not computed yet
        spans.append(Span(right(text, CELL), role + ending))
    return fit(spans, width)


def _number(metric: Metric, value: float) -> str:
    return metric.words(value) if metric.is_ratio else short(metric, value)


def _value(found: Aggregate | None, column: str) -> float | None:
    if found is None:
        return None
    values = (found.low, found.p5, found.p50, found.p95, found.high)
    return values[COLUMNS.index(column)]


def _histogram(hosts: Hosts, height: int, width: int, glyphs: Glyphs) -> list[Line]:
    """Upright bars, each of some cells, on a scale from 0 to the highest count."""
    found = hosts.aggregate.histogram
    if found is None:
        return []
    bins = found.counts
    cells = max(1, min(BAR_CELLS_MOST, (width - AXIS) // len(bins)))
    most = max(bins)
    rows = height - 1
    lines: list[Line] = []
    for row in range(rows):
        head = str(most) if row == 0 else "0" if row == rows - 1 else ""
        bars = "".join(
            _bar(count / most * rows - (rows - 1 - row), glyphs) * (cells - 1) + " "
            if cells > 1
            else _bar(count / most * rows - (rows - 1 - row), glyphs)
            for count in bins
        )
        lines.append(fit((Span(right(head, AXIS - 1) + " ", "muted"), Span(bars, "spark")), width))
    lines.append(_axis(hosts, found, cells, width))
    return lines


def _bar(filled: float, glyphs: Glyphs) -> str:
    """The part of a bar in one line: `filled` lines of it are at or above this line's foot."""
    if filled <= 0:
        return " "
    if filled >= 1:
        return "#" if glyphs.ascii_only else FULL
    return glyphs.spark[max(1, min(int(filled * 8), 7))]


def _axis(hosts: Hosts, found: Histogram, cells: int, width: int) -> Line:
    metric, length = hosts.metric, len(found.counts) * cells
    low, high = short(metric, found.low), short(metric, found.high)
    middle = short(metric, (found.low + found.high) / 2)
    half = max(length // 2 - len(low), 0)
    text = low + left(right(middle, half + len(middle) // 2), half + len(middle) // 2)
    text += right(high, max(length - len(text), len(high) + 1))
    return fit((Span(" " * AXIS + text, "muted"),), width)

"""Signs and words of the hosts tab."""

from __future__ import annotations

from topsmon.fleet.device_view import DeviceView
from topsmon.fleet.host_view import LinkCondition
from topsmon.fleet.metrics import Metric
from topsmon.fleet.words import counted
from topsmon.tui.cells import Span, clip, left
from topsmon.tui.fleet.watched import HostRow, Hosts
from topsmon.tui.glyphs import Glyphs
from topsmon.tui.view import SEVERITY_ROLES
from topsmon.units import PRECISIONS, percent, plain

CONDITION_WORDS: dict[LinkCondition, tuple[str, str]] = {
    "live": ("ok", "ok"),
    "connecting": ("wait", "muted"),
    "stale": ("STALE", "warn"),
    "gone": ("LOST", "fail"),
    "refused": ("LOST", "fail"),
}
NAME_MOST = 16
ASCII_LEVELS = "0123456789"


def name_of(row: HostRow, width: int) -> str:
    """A host's name in exactly `width` cells."""
    return left(plain(row.view.name, 200), width)


def name_width(hosts: Hosts) -> int:
    """Cells for the names of all hosts."""
    longest = max((len(row.view.name) for row in hosts.rows), default=4)
    return min(max(longest, 4), NAME_MOST)


def word_of(row: HostRow) -> Span:
    """State word of a host: that of its worst trouble, else of its link."""
    if row.trouble is not None:
        return Span(plain(row.trouble.word, 6), SEVERITY_ROLES[row.trouble.severity])
    return Span(*CONDITION_WORDS[row.condition])


def scale(hosts: Hosts) -> tuple[float, float]:
    """The values at the lower and the upper end of the map's signs."""
    metric, found = hosts.metric, hosts.aggregate.histogram
    top = metric.top if metric.top is not None else (found.high if found is not None else 1.0)
    return metric.floor, max(top, metric.floor + 1e-9)


def level(value: float, low: float, high: float, glyphs: Glyphs) -> str:
    """The sign of a value on a fixed scale; outside of it that of the nearer end."""
    levels = ASCII_LEVELS if glyphs.ascii_only else glyphs.spark[1:]
    place = int((value - low) / (high - low) * len(levels))
    return levels[min(max(place, 0), len(levels) - 1)]


def cell(
    hosts: Hosts, row: HostRow, device: DeviceView, ends: tuple[float, float], glyphs: Glyphs
) -> Span:
    """One device in the map: its level, or the initial of what is wrong with it."""
    trouble = hosts.trouble_of(row.view.name, device)
    if row.condition != "live":
        return Span(glyphs.dot, "faint")
    if trouble is not None:
        return Span(plain(trouble.word, 6)[:1] or "!", SEVERITY_ROLES[trouble.severity])
    value = hosts.metric.read(device, hosts.aggregate.precision)
    if value is None:
        return Span(glyphs.dot, "muted")
    return Span(level(value, *ends, glyphs), "spark")


def host_cell(hosts: Hosts, row: HostRow, ends: tuple[float, float], glyphs: Glyphs) -> Span:
    """One host in the map: the level of its worst device, or the initial of what is wrong."""
    if row.trouble is not None:
        return Span(plain(row.trouble.word, 6)[:1] or "!", SEVERITY_ROLES[row.trouble.severity])
    if row.condition != "live":
        return Span(glyphs.dot, "muted")
    precision = hosts.aggregate.precision
    values = [hosts.metric.read(device, precision) for device in row.view.shown]
    known = [value for value in values if value is not None]
    if not known:
        return Span(glyphs.dot, "muted")
    worst = min(known) if hosts.metric.worse == "low" else max(known)
    return Span(level(worst, *ends, glyphs), "spark")


def scale_words(hosts: Hosts, glyphs: Glyphs) -> str:
    """What the map's signs mean: "▁ 0% to ▇ 100%"."""
    low, high = scale(hosts)
    levels = ASCII_LEVELS if glyphs.ascii_only else glyphs.spark[1:]
    ends = short(hosts.metric, low), short(hosts.metric, high)
    return f"{levels[0]} {ends[0]} to {levels[-1]} {ends[1]}, letters: what is wrong"


def short(metric: Metric, value: float | None) -> str:
    """A value in few cells: "97%", "655 W"."""
    return percent(value, 0) if metric.is_ratio else metric.words(value)


def metric_label(hosts: Hosts, metric: Metric | None = None) -> str:
    """The metric's name, that of the ratio with its precision."""
    chosen = metric or hosts.metric
    if chosen.key != "ratio":
        return chosen.label
    return f"{PRECISIONS[hosts.aggregate.precision].label} of ceiling"


def filter_words(hosts: Hosts) -> str:
    """What the filter leaves: "12 of 1250 hosts with 'rack7'"."""
    if not hosts.filter:
        return ""
    text = clip(plain(hosts.filter), 30)
    return f"{len(hosts.rows)} of {counted(hosts.all_hosts, 'host')} with {text!r}"

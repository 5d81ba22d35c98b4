"""The host under the cursor in words: how it stands, its devices, their values."""

from __future__ import annotations

from collections import Counter

from topsmon.tui.cells import Line, Span, fit
from topsmon.tui.fleet.watched import HostRow, Hosts
from topsmon.tui.fleet.words import CONDITION_WORDS, metric_label
from topsmon.tui.view import SEVERITY_ROLES, View
from topsmon.units import NOT_AVAILABLE, plain


def selected_lines(view: View, hosts: Hosts, width: int, count: int) -> list[Line]:
    """Return `count` lines."""
    row = hosts.row
    if row is None:
        return [()] * count
    return [_who(view, row, width), _values(hosts, row, width)][:count]


def _who(view: View, row: HostRow, width: int) -> Line:
    host = row.view
    spans = [Span(view.glyphs.cursor + plain(host.name, 60), "strong"), Span("  ")]
    if row.trouble is not None:
        role = SEVERITY_ROLES[row.trouble.severity]
        label = f" {row.trouble.label}" if row.trouble.label else ""
        spans += [Span(plain(row.trouble.word, 6) + label, role)]
        spans += [Span(f"  {plain(row.trouble.text, 300)}")]
    else:
        word, role = CONDITION_WORDS[row.condition]
        spans.append(Span(word, role))
    boards = Counter(device.board.name for device in host.shown)
    for name, number in boards.items():
        board = plain(name, 60).removeprefix("NVIDIA ").strip()
        spans.append(Span(f"  {number} {view.glyphs.times} {board}", "muted"))
    return fit(spans, width)


def _values(hosts: Hosts, row: HostRow, width: int) -> Line:
    """The metric of each device in its own words."""
    precision = hosts.aggregate.precision
    spans = [Span(f" {metric_label(hosts)} ", "muted")]
    for device in row.view.shown:
        value = hosts.metric.read(device, precision)
        text = NOT_AVAILABLE if value is None else hosts.metric.words(value)
        trouble = hosts.trouble_of(row.view.name, device)
        role = "text" if row.condition == "live" else "muted"
        spans.append(Span(" "))
        spans.append(Span(text, SEVERITY_ROLES[trouble.severity] if trouble else role))
    return fit(spans, width)

"""The line above the hosts tab: how many are there, and what they do together."""

from __future__ import annotations

from topsmon.fleet.aggregate import Totals
from topsmon.fleet.host_view import LinkCondition
from topsmon.fleet.words import rates_words, watts_words
from topsmon.tui.cells import Line, Span, fit, line_width
from topsmon.tui.fleet.watched import Hosts
from topsmon.tui.panel import Panel
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, PRECISIONS, percent

CONDITIONS: tuple[tuple[LinkCondition, str], ...] = (
    ("live", "text"),
    ("connecting", "muted"),
    ("stale", "warn"),
)


class FleetSummary(Panel):
    """Hosts by condition, devices, rates and power; in a second line the worst."""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return one or two lines."""
        hosts = view.hosts
        if hosts is None:
            return []
        lines = [summary_line(hosts, width)]
        if height > 1 and hosts.troubles:
            worst = hosts.troubles[0]
            text = f" {worst.host} {worst.label} {worst.text}"
            lines.append(fit((Span(f" {worst.word}", worst.severity), Span(text)), width))
        return lines


def summary_line(hosts: Hosts, width: int) -> Line:
    """The one line; a part that does not fit is shortened or left out."""
    totals = hosts.totals
    several = "s" if len(hosts.rows) != 1 else ""
    counts = [(totals.hosts[condition], condition, role) for condition, role in CONDITIONS]
    counts.append((totals.hosts["gone"] + totals.hosts["refused"], "gone", "fail"))
    told = [entry for entry in counts if entry[0] or entry[1] == "live"]
    spans = [Span(f" {len(hosts.rows)} host{several}:", "strong")]
    for place, (count, condition, role) in enumerate(told):
        spans += [Span(", " if place else " "), Span(f"{count} {condition}", role)]
    out_of = f" of {totals.devices}" if totals.live_devices != totals.devices else ""
    devices = [Span("   "), Span(f"{totals.live_devices}{out_of} devices", "strong")]
    watts = totals.power_watts
    power = [Span(f"   {watts_words(watts)}")] if watts is not None else []
    for choices in ([devices], _rate_parts(totals), [power]):
        room = width - line_width(spans)
        spans += next((part for part in choices if line_width(part) <= room), [])
    return fit(spans, width)


def _rate_parts(totals: Totals) -> list[list[Span]]:
    """Achieved of ceiling, from the longest to the shortest way to say it."""
    precision = PRECISIONS[totals.precision]
    achieved, ceiling = totals.achieved_ops_per_second, totals.ceiling_ops_per_second
    if achieved is None or not ceiling:
        return [[Span(f"   {precision.label} rate {NOT_AVAILABLE}", "muted")]]
    text = f"   {precision.label} {rates_words(achieved, ceiling, precision.unit)}"
    ratio = percent(achieved / ceiling)
    note = "" if totals.measured == totals.live_devices else f", {totals.measured} measured"
    return [
        [Span(text), Span(f" ({ratio}{note})", "muted")],
        [Span(f"   {precision.label} {ratio} of ceiling")],
        [Span(f"   {precision.label} {ratio}")],
    ]

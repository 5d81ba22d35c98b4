"""What the selected GPU does: the verdict in words, bars on a fixed scale, links and heat."""

from __future__ import annotations

from typing import ClassVar

from topsmon.device_state import DeviceState
from topsmon.diagnosis import bound
from topsmon.diagnosis.bound import Bound
from topsmon.diagnosis.verdict import Kind
from topsmon.tui.cells import Line, Span, clip, fit, left, right, words
from topsmon.tui.glyphs import bar
from topsmon.tui.mig_rows import HEADS, mig_lines
from topsmon.tui.panel import Panel
from topsmon.tui.signals import Fact, Gauge, facts, gauges, not_told
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, PRECISIONS, percent

HEAD = 10
LABEL, VALUE, GAP = 11, 5, 2
CELL_LEAST, COLUMNS_MOST, BAR_MOST = 26, 4, 24
FOLDED = 3
"""Bars that are left where there is no room for all; the others become numbers."""
STEADY = frozenset({"PCIe", "NVLink", "heat"})
"""Facts that a GPU always tells or never, so that nothing jumps as the others come and go."""
OTHERS = 6
"""Lines for the verdict, the bars, and one of the facts that come and go."""
MIG_FACTS = 2
"""Lines under the instances of a GPU in MIG mode: its link and its heat."""
TALL = 7
"""From so many lines on the verdict may take two."""
BURST = "own burst: topsmon itself computed meanwhile"
ROLES: dict[Kind, str] = {"throttled": "warn", "cannot tell": "muted", "idle": "muted"}


def line_count(view: View) -> int:
    """Lines that the panel can use, 0 where it has nothing to say."""
    device = view.device
    if device is None or device.identity.kind != "gpu":
        return 0
    if device.identity.mig:
        count = len(device.slices.slices) if device.slices is not None else 0
        return HEADS + max(1, count) + MIG_FACTS
    return OTHERS + sum(fact.head in STEADY for fact in facts(view, device))


class Activity(Panel):
    """The verdict first; then as many of the signals as there is room for."""

    headed_from: ClassVar[int | None] = None

    def title(self, view: View) -> str:
        """Name the device and the question."""
        return f"{view.device.label}  what it does" if view.device is not None else "what it does"

    def subtitle(self, view: View) -> str:
        """Say what the bars are shares of, or that they tell of topsmon itself."""
        device = view.device
        sample = device.sample if device is not None else None
        if device is None or sample is None:
            return ""
        if device.identity.mig:
            precision = PRECISIONS[view.precision]
            return f"ceiling: rated {precision.label} of the instance, {precision.unit}"
        if sample.counters is None:
            return "busy, mem busy: time with kernels, memory traffic"
        if sample.counters.during_burst:
            return BURST
        return "SM active: SMs with work; others: share of peak"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the verdict, the bars, the other signals."""
        device = view.device
        if device is None or device.identity.kind != "gpu" or height < 1:
            return []
        if not self.framed:
            indented = _lines(view, device, width - 1, height, f"{device.label}  ")
            return [(Span(" "), *line) for line in indented]
        return _lines(view, device, width, height, "")


def _lines(view: View, device: DeviceState, width: int, height: int, label: str) -> list[Line]:
    below = facts(view, device)
    if device.identity.mig:
        instances = mig_lines(view, device, width, height)
        return instances + _facts(below, width, height - len(instances))
    verdict = bound.of_device(view.state, device, view.now)
    lines = _verdict(device, verdict, width, height, label)
    found = gauges(view, device)
    room = height - len(lines)
    columns = min(COLUMNS_MOST, max(1, (width + GAP) // CELL_LEAST))
    rows = -(-len(found) // columns)
    if rows + min(2, len(below)) <= room:
        lines += _grid(view, found, columns, width)
    else:
        lines += _folded(view, found, width)[:room]
    return lines + _facts([*below, *_reasons(device, verdict)], width, height - len(lines))


def _reasons(device: DeviceState, verdict: Bound) -> list[Fact]:
    """What the verdict rests on besides the bars, and which counters are missing."""
    sample = device.sample
    if sample is None or sample.counters is None:
        return []
    why = "; ".join(verdict.evidence[1:])
    found = [Fact("why", why, "muted")] if why else []
    missing = not_told(sample.counters)
    return [*found, missing] if missing is not None else found


def _verdict(
    device: DeviceState, verdict: Bound, width: int, height: int, label: str
) -> list[Line]:
    role = ROLES.get(verdict.kind, "strong")
    sample = device.sample
    counters = sample.counters if sample is not None else None
    if label and counters is not None and counters.during_burst:
        burst = Span(f"  {BURST}", "muted")
        return [fit((Span(label, "muted"), Span(verdict.words, role), burst), width)]
    if height < TALL:
        return [fit((Span(label, "muted"), Span(verdict.words, role)), width)]
    first, *rest = words(label + verdict.words, width) or [""]
    return [fit((Span(text, role),), width) for text in (first, *rest[:1])]


def _grid(view: View, found: list[Gauge], columns: int, width: int) -> list[Line]:
    cell = (width - GAP * (columns - 1)) // columns
    lines = []
    for start in range(0, len(found), columns):
        spans: list[Span] = []
        for place, gauge in enumerate(found[start : start + columns]):
            spans += [Span(" " * GAP)] * bool(place)
            spans += _gauge(view, gauge.label, gauge, LABEL, cell)
        lines.append(fit(spans, width))
    return lines


def _gauge(view: View, label: str, gauge: Gauge, head: int, width: int) -> list[Span]:
    """Label, bar and number in exactly `width` cells."""
    cells = width - head - VALUE
    long = min(cells, BAR_MOST)
    filled, rest = bar(gauge.ratio, long, view.glyphs)
    off = gauge.role if gauge.role in {"warn", "fail", "muted"} else "text"
    return [
        Span(left(label, head), "muted"),
        Span(filled, gauge.role),
        Span(rest, "faint"),
        Span(right(percent(gauge.ratio, 0), VALUE) + " " * (cells - long), off),
    ]


def _folded(view: View, found: list[Gauge], width: int) -> list[Line]:
    """The most telling bars in one line, then the other values as numbers."""
    cell = (width - GAP * (FOLDED - 1)) // FOLDED
    spans: list[Span] = []
    for place, gauge in enumerate(found[:FOLDED]):
        spans += [Span(" " * GAP)] * bool(place)
        spans += _gauge(view, gauge.short, gauge, 7, cell)
    lines = [fit(spans, width)] if spans else []
    rest = [f"{gauge.short} {percent(gauge.ratio, 0)}" for gauge in found[FOLDED:]]
    return [*lines, fit((Span(", ".join(rest), "muted"),), width)] if rest else lines


def _facts(found: list[Fact], width: int, room: int) -> list[Line]:
    """One line a fact; more where they are long and there is room."""
    wrapped = [words(fact.text, width - HEAD) or [NOT_AVAILABLE] for fact in found]
    spare = room - len(found)
    lines: list[Line] = []
    for fact, parts in zip(found, wrapped, strict=True):
        more = min(len(parts) - 1, max(spare, 0))
        spare -= more
        shown = [*parts[:more], " ".join(parts[more:])]
        for place, text in enumerate(shown):
            head = left(fact.head if place == 0 else "", HEAD)
            lines.append((Span(head, "muted"), Span(clip(text, width - HEAD), fact.role)))
    return lines[: max(room, 0)]

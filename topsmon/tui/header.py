"""The lines above the tabs' content: identity, the worst finding with its remedy, the tabs."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.fleet.words import counted
from topsmon.state import State
from topsmon.tui import benchmarks
from topsmon.tui.cells import Line, Span, clip, fit, line_width, two_sided, width_of, words
from topsmon.tui.panel import Panel
from topsmon.tui.replay_bar import position_bar
from topsmon.tui.view import (
    SEVERITY_ROLES,
    View,
    at_measured_clock,
    ratio_mark,
    short_name,
    shown_devices,
)
from topsmon.units import PRECISIONS, gibibytes, percent, plain

if TYPE_CHECKING:
    from topsmon.tui.fleet.watched import Hosts


class Tab(NamedTuple):
    """A tab that exists: its key and its name."""

    key: str
    name: str


TABS = (
    Tab("1", "live"),
    Tab("2", "roofline"),
    Tab("3", "training"),
    Tab("4", "checks"),
    Tab("5", "processes"),
)
HOSTS_TAB = Tab("6", "hosts")
"""Only where there are several hosts."""


HINT_GAP = 2
"""Blanks before the number of other findings."""
NARROW_STATUS = 45
"""Below so many cells the status leaves out what its reason lets one guess."""


class Identity(Panel):
    """Whose numbers these are: host, devices, driver, load of the host, rate, time."""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the one line; what matters least is left out where room is short."""
        del height
        parts = _identity_parts(view)
        clock = Span(time.strftime("%H:%M:%S ", time.localtime(view.wall)), "muted")
        room = width - line_width([clock]) - 2
        for drop in sorted({part.rank for part in parts}, reverse=True):
            if sum(line_width(part.spans) for part in parts) <= room:
                break
            parts = [part for part in parts if part.rank != drop or drop == 0]
        return [two_sided([span for part in parts for span in part.spans], [clock], width)]


class _Part(NamedTuple):
    """A piece of the identity line; the highest ranks are left out first, rank 0 never."""

    rank: int
    spans: tuple[Span, ...]


def _identity_parts(view: View) -> list[_Part]:
    state, host = view.state, view.state.host
    if view.hosts is not None and view.tab == HOSTS_TAB.name:
        return _fleet_parts(view, view.hosts)
    parts = [_Part(0, (Span(" topsmon ", "title"),))]
    if state.simulated is not None:
        word = f" SIMULATED {plain(state.simulated, 30)} "
        parts.append(_Part(0, (Span(word, "badge-warn"), Span(" "))))
    if view.hosts is not None and view.hosts.shown is not None:
        among = f" of {counted(view.hosts.all_hosts, 'host')} "
        name = Span(f" {plain(view.hosts.shown, 40)}", "strong")
        parts.append(_Part(0, (name, Span(among, "muted"))))
    elif host is not None:
        parts.append(_Part(2, (Span(f" {plain(host.hostname, 40)} "),)))
    parts.append(_Part(3, (Span(f" {devices_summary(state, view)} ", "strong"),)))
    if host is not None and host.driver_version:
        parts.append(_Part(5, (Span(f" driver {plain(host.driver_version, 20)} ", "muted"),)))
    if host is not None and host.cuda_version:
        parts.append(_Part(6, (Span(f" CUDA {plain(host.cuda_version, 10)} ", "muted"),)))
    parts.append(_Part(4, (Span(f" {_rate(view.interval)} ", "muted"),)))
    if view.replay is not None:
        parts.append(_Part(0, (Span(" REPLAY ", "badge-warn"), Span(" "))))
    if view.recording:
        parts.append(_Part(0, (Span(f" {view.recording} ", "badge-fail"), Span(" "))))
    if view.paused:
        parts.append(_Part(1, (Span(" PAUSED ", "badge-info"), Span(" "))))
    load = _load(state)
    if load:
        parts.append(_Part(7, (Span(f" {load} ", "muted"),)))
    return parts


def _fleet_parts(view: View, hosts: Hosts) -> list[_Part]:
    """The same for all hosts together."""
    parts = [_Part(0, (Span(" topsmon ", "title"),))]
    if hosts.simulated is not None:
        word = f" SIMULATED {clip(plain(hosts.simulated, 200), 30)} "
        parts.append(_Part(0, (Span(word, "badge-warn"), Span(" "))))
    parts.append(_Part(0, (Span(f" {counted(hosts.all_hosts, 'host')} ", "strong"),)))
    boards = sorted(hosts.boards.items(), key=lambda board: -board[1])
    named = [
        f"{count} {view.glyphs.times} {plain(name, 60).removeprefix('NVIDIA ').strip()}"
        for name, count in boards[:3]
    ]
    named += [f"{len(boards) - 3} other boards"] if len(boards) > 3 else []
    if named:
        parts.append(_Part(2, (Span(f" {' + '.join(named)} "),)))
    parts.append(_Part(3, (Span(f" {_rate(view.interval)} ", "muted"),)))
    if view.paused:
        parts.append(_Part(1, (Span(" PAUSED ", "badge-info"), Span(" "))))
    return parts


def devices_summary(state: State, view: View) -> str:
    """Name the devices: "8 × H100 80GB HBM3", or the processor where there is no GPU."""
    gpus = list(state.gpus())
    if gpus:
        names = Counter(short_name(device) for device in gpus)
        return " + ".join(
            f"{count} {view.glyphs.times} {name}" if count > 1 else name
            for name, count in names.items()
        )
    cpus = state.ordered()
    return short_name(cpus[0]) if cpus else "looking for devices"


def _rate(interval: float) -> str:
    return f"{1 / interval:.0f} Hz" if interval <= 1 else f"every {interval:g} s"


def _load(state: State) -> str:
    sample, host = state.host_sample, state.host
    if sample is None:
        return ""
    text = f"CPU {percent(sample.cpu_busy_ratio, 0)}"
    if sample.memory_used_bytes is not None:
        total = host.memory_total_bytes if host is not None else None
        text += f"  mem {gibibytes(sample.memory_used_bytes, 0)}/{gibibytes(total, 0)} GiB"
    return text


class WorstFinding(Panel):
    """The worst finding in words: what, how much, why; under it what to do about it."""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return one or two lines."""
        if not view.findings:
            return [_nothing_off(view, width)]
        worst, more = view.findings[0], len(view.findings) - 1
        if height > 2:
            return tall_finding_lines(view, worst, width, height)
        return finding_lines(view, worst, more, width)[:height]


def finding_lines(view: View, finding: events.Finding, more: int, width: int) -> list[Line]:
    """Two lines about a finding, arranged so that the cause and the command stay whole."""
    badge, title, cause, remedy = _finding_parts(view, finding)
    others = f"+{more} more, Enter " if more else ""
    indent = width_of(badge.text) + 1
    dash = Span(f" {view.glyphs.dash} ", "muted")
    first = (badge, Span(" "), title, dash, cause) if cause.text else (badge, Span(" "), title)
    second: tuple[Span, ...] = (Span(" " * indent), *remedy)
    if line_width(first) > width and cause.text and remedy:
        # The cause moves down; where there is a command, that is remedy enough.
        moved = (Span(" "), cause, Span(" "), *(_command(view, finding) or remedy))
        if line_width(moved) <= width:
            return [_beside((badge, Span(" "), title), others, width), moved]
    command = _command(view, finding)
    if others and command and indent + line_width(command) + HINT_GAP + width_of(others) > width:
        # The command stays whole, the cause gives way.
        return [_beside(first, others, width), fit(second, width)]
    return [fit(first, width), _beside(second, others, width)]


def _beside(spans: tuple[Span, ...], hint: str, width: int) -> Line:
    """A line cut so that the hint at its right end is always seen."""
    room = width - HINT_GAP - width_of(hint) if hint else width
    return two_sided(fit(spans, room), [Span(hint, "muted")], width)


def tall_finding_lines(view: View, finding: events.Finding, width: int, height: int) -> list[Line]:
    """A finding on a narrow terminal: as many lines as it takes, the command last."""
    badge, title, cause, remedy = _finding_parts(view, finding)
    first, *rest = words(title.text, width - width_of(badge.text) - 1) or [""]
    lines: list[Line] = [(badge, Span(" "), Span(first, title.role))]
    lines += [(Span(f" {text}", title.role),) for text in rest]
    lines += [(Span(f" {text}"),) for text in words(cause.text, width - 1)]
    lines = lines[: height - 1]
    return [*lines, fit((Span(" "), *remedy), width)] if remedy else lines


def _finding_parts(
    view: View, finding: events.Finding
) -> tuple[Span, Span, Span, tuple[Span, ...]]:
    role = SEVERITY_ROLES[finding.severity]
    badge = Span(f" {plain(finding.word, 8)} ", f"badge-{role}")
    title = Span(plain(finding.title, 300), role)
    cause = Span(plain(finding.cause, 300), "text")
    remedy = _command(view, finding)
    if finding.remedy:
        advice = plain(finding.remedy, 400)
        remedy = (*remedy, Span(f"  {advice}", "muted")) if remedy else _arrow(view, advice, "text")
    return badge, title, cause, remedy


def _command(view: View, finding: events.Finding) -> tuple[Span, ...]:
    return _arrow(view, plain(finding.command, 300), "key") if finding.command else ()


def _arrow(view: View, text: str, role: str) -> tuple[Span, ...]:
    return (Span(f"{view.glyphs.arrow} ", "muted"), Span(text, role))


def _nothing_off(view: View, width: int) -> Line:
    if view.hosts is not None and view.tab == HOSTS_TAB.name:
        return _nothing_off_in(view.hosts, width)
    devices = shown_devices(view.state)
    if devices and all(device.condition == "asleep" for device in devices):
        who = "the GPU sleeps and is" if len(devices) == 1 else "all GPUs sleep and are"
        return fit((Span(" asleep ", "badge-info"), Span(f" {who} left alone")), width)
    if not any(device.sample is not None for device in devices):
        waiting = (Span(" wait ", "badge-info"), Span(" the first samples are on their way"))
        return fit(waiting, width)
    count = f"{len(devices)} devices, " if len(devices) > 1 else ""
    ratios = [
        ratio
        for device in devices
        if (ratio := device.ratio(view.precision)) is not None
        and ratio_mark(device, view.precision) == " "
    ]
    text = f" {count}nothing is off"
    if ratios:
        low, high = percent(min(ratios)), percent(max(ratios))
        between = low if low == high else f"{low} to {high}"
        text += f"; {PRECISIONS[view.precision].label} at {between} of the {_ceiling(devices)}"
    return fit((Span(" ok ", "badge-ok"), Span(text)), width)


def _nothing_off_in(hosts: Hosts, width: int) -> Line:
    live = hosts.totals.hosts["live"]
    if not live:
        waiting = (Span(" wait ", "badge-info"), Span(" the first host is yet to be heard of"))
        return fit(waiting, width)
    count = f"{live} live host{'s' if live != 1 else ''}, {hosts.totals.live_devices} devices"
    return fit((Span(" ok ", "badge-ok"), Span(f" {count}: nothing stands out")), width)


def _ceiling(devices: list[DeviceState]) -> str:
    return "ceiling" if any(at_measured_clock(device) for device in devices) else "rated ceiling"


class TabLine(Panel):
    """The tabs at the left; at the right what the benchmarks of the selected device do."""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the one line."""
        del height
        tabs = _tabs(view)
        if line_width(tabs) + width_of(benchmark_status(view)) + 3 > width:
            tabs = _tabs(view, close=True)
        if line_width(tabs) > width:
            tabs = _tabs(view, close=True, names=False)
        room = width - line_width(tabs) - 2
        if view.replay is not None:
            return [two_sided(tabs, position_bar(view, room), width)]
        text = _fleet_status(view) if view.tab == HOSTS_TAB.name else benchmark_status(view)
        if room < NARROW_STATUS:
            text = text.removeprefix(benchmarks.NONE)
        if view.tab == HOSTS_TAB.name:
            text = next((one for one in _fleet_hints(text) if width_of(one) <= room - 1), "")
        status = fit((Span(clip(text, room - 1) + " ", "muted"),), room)
        return [two_sided(tabs, status, width)]


def _tabs(view: View, *, close: bool = False, names: bool = True) -> list[Span]:
    """All tabs, two blanks apart or one; without `names` the one on top alone has its name."""
    spans: list[Span] = []
    for tab in (*TABS, HOSTS_TAB) if view.hosts is not None else TABS:
        on_top = tab.name == view.tab
        before = "" if close and spans and spans[-1].role == "tab" else " "
        text = f"{tab.key} {tab.name}" if names or on_top else tab.key
        after = " " if on_top or not close else ""
        spans.append(Span(before + text + after, "tab" if on_top else "muted"))
    return spans


def _fleet_hints(text: str) -> list[str]:
    """The status from whole to short, cut between its parts: "by name: o sorts, / filters"."""
    return [text, text.partition(",")[0], text.partition(":")[0]]


def _fleet_status(view: View) -> str:
    if view.paused:
        return "paused: Space goes on"
    return f"{view.hosts.sort}: o sorts, / filters" if view.hosts is not None else ""


def benchmark_status(view: View) -> str:
    """What the benchmarks of the selected device do, and which key changes it."""
    device = view.device
    if view.paused:
        return "paused: Space goes on"
    if device is None:
        return ""
    return benchmarks.status(
        device, prevented=view.prevented, asked=device.key in view.benchmarking
    )

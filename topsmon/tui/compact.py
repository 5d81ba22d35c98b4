"""The screen on a small terminal: a one-column list, or a single line."""

from __future__ import annotations

from topsmon.device_state import DeviceState
from topsmon.tui.cells import Line, Span, fit, left, line_width, right
from topsmon.tui.device_rows import first_row
from topsmon.tui.panel import Panel
from topsmon.tui.rate_rows import RateRow, rows
from topsmon.tui.view import SEVERITY_ROLES, View, shown_devices, state_word
from topsmon.units import NOT_AVAILABLE, PRECISIONS, percent, plain

QUIT = (Span(" q ", "key"), Span("quits", "muted"))


class OneLine(Panel):
    """All there is on a tiny terminal: the worst finding, or that there is none; how to leave."""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the one line, and where there is a second one how to leave."""
        lines = [fit(self._line(view), width)]
        return [*lines, fit(QUIT, width)] if height > 1 else lines

    def _line(self, view: View) -> Line:
        for finding in view.findings[:1]:
            badge = Span(f" {plain(finding.word, 8)} ", f"badge-{SEVERITY_ROLES[finding.severity]}")
            return (badge, Span(" " + plain(finding.title, 300), "text"))
        devices = shown_devices(view.state)
        if not devices:
            return (Span("topsmon: no device yet", "muted"),)
        words = [f"{_label(device)} {_ratio(view, device)}" for device in devices]
        return (Span(" ok ", "badge-ok"), Span(" " + "  ".join(words)))


class CompactList(Panel):
    """Devices and rates in one column, under 60 cells."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self.first = 0

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return one line a device, then the rates of the selected one while there is room."""
        devices = shown_devices(view.state)
        self.first = first_row(self.first, devices, view.selected, height)
        shown = devices[self.first : self.first + height]
        lines = [_device(view, device, width, len(devices) > 1) for device in shown]
        device = view.device
        room = height - len(lines) - 2
        if device is None or room <= 0:
            return lines
        lines += [(), fit((Span(f" {device.label} achieved / ceiling", "muted"),), width)]
        return lines + [_rate(entry, width) for entry in rows(view, device, room)]


def _label(device: DeviceState) -> str:
    return "CPU" if device.identity.kind == "cpu" else str(device.identity.index)


def _ratio(view: View, device: DeviceState) -> str:
    ratio = device.ratio(view.precision)
    return percent(ratio) if ratio is not None else NOT_AVAILABLE


def _device(view: View, device: DeviceState, width: int, several: bool) -> Line:
    word, role = state_word(view, device)
    sample = device.sample
    busy = percent(sample.busy_ratio, 0) if sample is not None else NOT_AVAILABLE
    cursor = view.glyphs.cursor if several and device.key == view.selected else " "
    ending = "@cursor" if several and device.key == view.selected else ""
    spans = [
        Span(cursor + right(_label(device), 3) + " ", "text" + ending),
        Span(left(word, 7), role + ending),
        Span(right(busy, 5), "text" + ending),
    ]
    label = PRECISIONS[view.precision].label
    spans.append(Span(f"  {label} {right(_ratio(view, device), 6)}", "text" + ending))
    if sample is not None and sample.temperature_celsius is not None and width >= 44:
        spans.append(Span(f" {sample.temperature_celsius:>4.0f} °C", "text" + ending))
    if sample is not None and sample.power_watts is not None and width >= 52:
        spans.append(Span(f" {sample.power_watts:>5.0f} W", "text" + ending))
    spans.append(Span(" " * (width - line_width(spans)), "text" + ending))
    return fit(spans, width)


def _rate(entry: RateRow, width: int) -> Line:
    spans = [Span(" " + left(entry.label, 7), "text" if entry.rate else "muted")]
    if not entry.runs or not entry.rate:
        spans.append(Span(entry.explanation, "muted"))
        return fit(spans, width)
    role = entry.status_role if entry.status_role in {"warn", "fail"} else "text"
    spans.append(Span(right(entry.rate, 6) + f" {left(entry.unit, 6)} ", "text"))
    spans.append(Span(right(entry.ratio_text or NOT_AVAILABLE, 7), role))
    spans.append(Span("  " + entry.status, entry.status_role))
    return fit(spans, width)

"""Ratios of all devices by precision, for wide screens."""

from __future__ import annotations

from topsmon.tui.cells import Line, Span, fit, right
from topsmon.tui.panel import Panel
from topsmon.tui.view import View, ratio_mark, shown_devices, state_word
from topsmon.units import PRECISIONS, percent

CELL = 8


class Matrix(Panel):
    """One row a device, one column a precision: achieved / rated ceiling."""

    def title(self, view: View) -> str:
        """Name the quantity."""
        del view
        return "achieved / rated ceiling by device and precision, %"

    def subtitle(self, view: View) -> str:
        """Explain the sign for what cannot run."""
        return f"{view.glyphs.dash} does not run or has no ceiling   {view.glyphs.dot} not measured"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the head and the rows."""
        keys = [key for key in PRECISIONS if key in view.precisions][: max(0, (width - 5) // CELL)]
        head = [Span("     ", "muted")]
        for key in keys:
            role = "strong" if key == view.precision else "muted"
            head.append(Span(right(PRECISIONS[key].label + " ", CELL), role))
        lines = [fit(head, width)]
        for device in shown_devices(view.state)[: max(0, height - 1)]:
            label = "CPU" if device.identity.kind == "cpu" else str(device.identity.index)
            selected = device.key == view.selected
            mark = view.glyphs.cursor if selected else " "
            _, role = state_word(view, device)
            spans = [Span(mark + right(label, 3) + " ", role if role != "ok" else "text")]
            for key in keys:
                ratio, state = device.ratio(key), device.rates[key]
                if ratio is None:
                    absent = state.unsupported is not None or device.ceiling(key) is None
                    text = view.glyphs.dash if absent else view.glyphs.dot
                    spans.append(Span(right(text + " ", CELL), "muted"))
                    continue
                sign = ratio_mark(device, key)
                number = percent(ratio).removesuffix("%")
                spans.append(Span(right(number + sign, CELL), _role(role, sign)))
            lines.append(fit(spans, width))
        return lines


def _role(device_role: str, sign: str) -> str:
    if sign == "!":
        return "warn"
    if sign == "~":
        return "muted"
    return device_role if device_role in {"warn", "fail"} else "text"

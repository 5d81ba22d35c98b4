"""How the ratio of the chosen precision went on each device, on a fixed scale."""

from __future__ import annotations

from topsmon.tui.cells import Line, Span, fit, left, right
from topsmon.tui.glyphs import spark
from topsmon.tui.panel import Panel
from topsmon.tui.view import View, shown_devices, state_word
from topsmon.units import NOT_AVAILABLE, PRECISIONS, percent

LABEL, NUMBER = 8, 9


class RatioHistory(Panel):
    """One row a device (or a precision, where there is one device): its ratios in order."""

    def title(self, view: View) -> str:
        """Name the quantity and the scale."""
        several = len(shown_devices(view.state)) > 1
        label = PRECISIONS[view.precision].label + " " if several else ""
        return f"{label}ratio, one mark a measurement, 0 to 100%"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the head and the rows."""
        cells = max(0, width - LABEL - 2 * NUMBER)
        head = " " * LABEL + left("oldest to newest", cells)
        head += right("lowest", NUMBER) + right("highest", NUMBER)
        lines: list[Line] = [fit((Span(head, "muted"),), width)]
        for label, role, history in rows(view)[: max(0, height - 1)]:
            low = percent(min(history)) if history else NOT_AVAILABLE
            high = percent(max(history)) if history else NOT_AVAILABLE
            drawn = left(spark(history, min(cells, len(history)), view.glyphs), cells)
            spans = (
                Span(" " + left(label, LABEL - 1), role or "text"),
                Span(drawn, role or "spark"),
                Span(right(low, NUMBER) + right(high, NUMBER), "text" if history else "muted"),
            )
            lines.append(fit(spans, width))
        return lines


def rows(view: View) -> list[tuple[str, str, list[float]]]:
    """Label, role of what is off ("" for nothing) and history of each row."""
    devices = shown_devices(view.state)
    if len(devices) == 1:
        rates = devices[0].rates
        chosen = [key for key in PRECISIONS if key in view.precisions and rates[key].history]
        return [(PRECISIONS[key].label, "", list(rates[key].history)) for key in chosen]
    rows = []
    for device in devices:
        _, role = state_word(view, device)
        off = role if role in {"warn", "fail"} else ""
        rows.append((device.label, off, list(device.rates[view.precision].history)))
    return rows

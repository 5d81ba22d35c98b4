"""Achieved against ceiling, one row a precision, of the selected device."""

from __future__ import annotations

from typing import NamedTuple

from topsmon.tui.cells import Line, Span, clip, fit, left, right, width_of
from topsmon.tui.glyphs import Glyphs, bar, spark
from topsmon.tui.panel import Panel
from topsmon.tui.rate_rows import RateRow, hidden, rows
from topsmon.tui.view import View, ratio_mark, short_name
from topsmon.units import NOT_AVAILABLE

RATE, UNIT, RATIO = 8, 7, 9
BAR_MIN, BAR_MAX = 8, 44
FULL_WIDTH, SHAPE_WIDTH = 100, 130
"""Widths from which the screen has more columns."""


class Widths(NamedTuple):
    """Cells of each column, its leading blanks included; 0 for one that is left out."""

    label: int
    bar: int
    ceiling: int
    held: int
    speed_up: int
    history: int
    shape: int
    status: int


def arrange(width: int) -> Widths:
    """Share out the width: the bar takes what the columns leave, up to a length that reads well."""
    full = width >= FULL_WIDTH
    label, ceiling = (10, 9) if full else (8, 8)
    room = width - 1 - label - RATE - UNIT - ceiling - RATIO
    held = 9 if full else 0
    shape = 19 if width >= SHAPE_WIDTH else 0
    history = 14 if full else 0
    status = (28 if shape else 18) if room >= 18 + BAR_MIN else 0
    speed_up = 7 if room - status >= 7 + BAR_MIN else 0
    rest = max(0, room - held - shape - history - status - speed_up)
    bar_width = min(rest, BAR_MAX)
    if history:
        history += min(rest - bar_width, 24)
    return Widths(label, bar_width, ceiling, held, speed_up, history, shape, status)


class Rates(Panel):
    """The rates of the selected device."""

    def title(self, view: View) -> str:
        """Name the device, since nothing else says whose rates these are."""
        device = view.device
        if device is None:
            return "achieved / ceiling"
        name = short_name(device)
        return f"{device.label}  {name}: achieved / ceiling, dense"

    def subtitle(self, view: View) -> str:
        """Explain the mark in the bars, where there is one."""
        device = view.device
        if device is None:
            return ""
        marked = any(
            precision.best is not None and device.held_ceiling(key) is not None
            for key, precision in device.rates.items()
        )
        return f"{view.glyphs.tick} ceiling at the clock held while measuring" if marked else ""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the head and the rows."""
        device = view.device
        if device is None or height < 2:
            return []
        widths = arrange(width)
        found = rows(view, device, height - 1)
        left_out = hidden(view, device, found)
        head = "precision" if self.framed else device.label
        lines = [_head(head, widths, width, left_out, view.glyphs)]
        lines += [_line(view, row, widths, width) for row in found]
        return lines


def _head(label: str, widths: Widths, width: int, left_out: int, glyphs: Glyphs) -> Line:
    text = " " + left(label, widths.label)
    words = "achieved / ceiling" if widths.bar >= 19 else "of ceiling"
    text += left(words, widths.bar) + right("rate", RATE) + " " * UNIT
    text += right("ceiling", widths.ceiling) + right("ratio ", RATIO)
    if widths.held:
        text += right("at clock", widths.held)
    if widths.speed_up:
        text += right(f"{glyphs.times}FP32", widths.speed_up)
    if widths.history:
        text += "  " + left("trend 0-100%", widths.history - 2)
    if widths.shape:
        text += "  " + left(f"M{glyphs.times}N{glyphs.times}K", widths.shape - 2)
    if widths.status:
        words = f"{left_out} more" if left_out else "measured"
        text += "  " + left(words, widths.status - 2)
    return fit((Span(text, "muted"),), width)


def _line(view: View, row: RateRow, widths: Widths, width: int) -> Line:
    chosen = row.key == view.precision
    mark = view.glyphs.cursor if chosen else " "
    has_rate = row.rate != ""
    label_role = "strong" if chosen else "text" if has_rate else "muted"
    spans = [Span(mark + left(row.label, widths.label), label_role)]
    if not row.runs:
        spans.append(Span(clip(row.explanation, width - widths.label - 1), "muted"))
        return fit(spans, width)
    over = not has_rate and len(row.explanation) > widths.bar
    if over:
        # The words say that there is no rate: they may stand where it would.
        spans.append(Span(left(row.explanation, widths.bar + RATE), "muted"))
    else:
        spans += _bar(view, row, widths.bar)
    number = "text" if has_rate else "muted"
    rate = right(row.rate or NOT_AVAILABLE, RATE)
    if has_rate:
        spans.append(Span(f"{rate} {left(row.unit, UNIT - 1)}", number))
        spans.append(Span(right(row.ceiling or NOT_AVAILABLE, widths.ceiling), "muted"))
    else:
        spans.append(Span("" if over else rate, number))
        ceiling = f"{row.ceiling} {row.unit}" if row.ceiling else NOT_AVAILABLE
        spans.append(Span(right(ceiling, UNIT + widths.ceiling), "muted"))
    device = view.device
    sign = ratio_mark(device, row.key) if device is not None and row.ratio_text else " "
    bad = row.status_role in {"warn", "fail"}
    ratio_role = row.status_role if bad else "strong" if chosen and has_rate else number
    spans.append(Span(right((row.ratio_text or NOT_AVAILABLE) + sign, RATIO), ratio_role))
    if widths.held:
        spans.append(Span(right(row.held_text or NOT_AVAILABLE, widths.held), "muted"))
    if widths.speed_up:
        spans.append(Span(right(row.speed_up, widths.speed_up), "muted"))
    if widths.history:
        cells = widths.history - 2
        spans.append(Span("  " + spark(row.history, cells, view.glyphs), "spark"))
    if widths.shape:
        spans.append(Span("  " + left(row.shape, widths.shape - 2), "muted"))
    if widths.status:
        room = widths.status - 2
        status = row.status if width_of(row.status) <= room else row.status_short
        spans.append(Span("  " + clip(status, room), row.status_role))
    return fit(spans, width)


def _bar(view: View, row: RateRow, width: int) -> list[Span]:
    if row.explanation or row.ratio is None:
        fits = row.explanation if len(row.explanation) < width else row.explanation.split(":")[0]
        return [Span(left(fits, width), "muted")]
    filled, rest = bar(row.ratio, width, view.glyphs, row.held)
    role = row.status_role if row.status_role in {"warn", "fail"} else "good"
    return [Span(filled, role), Span(rest, "faint")]

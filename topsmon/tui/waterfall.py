"""Where the TFLOPS go: from the rated ceiling down to what is achieved, step by step."""

from __future__ import annotations

from dataclasses import replace

from topsmon.device_state import DeviceState
from topsmon.diagnosis import mfu
from topsmon.diagnosis.waterfall import Step, steps
from topsmon.tui.cells import Line, Span, clip, fit, left, line_width, right
from topsmon.tui.panel import Panel
from topsmon.tui.rate_rows import shape_text, unit_and_scale
from topsmon.tui.view import View, at_measured_clock, ceiling_words
from topsmon.units import NOT_AVAILABLE, PRECISIONS, percent, plain, significant

LABEL, VALUE, LOST = 14, 7, 8
CAUSE = 19
BAR_MIN, BAR_MAX = 8, 60
MEANINGFUL = 0.0005
"""A smaller loss would be shown as -0.0%."""


class LossWaterfall(Panel):
    """Steps of the selected device and precision, in one line or as a block of bars."""

    headed_from = 4

    def title(self, view: View) -> str:
        """Ask the question that the panel answers, about what is selected."""
        precision = PRECISIONS[view.precision]
        of = ""
        if view.device is not None:
            of = f"  {view.device.label} {precision.label}, % of {ceiling_words(view.device)}"
        return f"where do the {precision.unit} go?{of}"

    def subtitle(self, view: View) -> str:
        """Explain the first step where it is no rated one."""
        measured = view.device is not None and at_measured_clock(view.device)
        return "top clock: ceiling at the highest clock measured" if measured else ""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the steps; their causes get lines of their own where there is room."""
        device = view.device
        if device is None or view.precision not in device.rates:
            return []
        found = _steps(view, device)
        unit, scale = unit_and_scale(view.precision, found[0].ops_per_second)
        if height < len(found):
            return [_one_line(view, device, found, unit, scale, width)]
        indent = () if self.framed else (Span(" "),)
        width -= len(indent)
        below = sum(1 for step in found if _words(step))
        tall = height >= len(found) + below
        lines: list[Line] = []
        previous = 1.0
        for step in found:
            share = _share(step, found[0])
            lines.append(_step(view, step, share, previous, scale, width, inline=not tall))
            if tall and _words(step):
                lines.append(fit((Span(" " * LABEL, "muted"), _cause(step)), width))
            previous = share if share is not None else previous
        if len(lines) < height:
            lines += _outcome(view, device, found, width)
        return [(*indent, *line) for line in lines]


def _outcome(view: View, device: DeviceState, found: tuple[Step, ...], width: int) -> list[Line]:
    """What is left in the end: the job's share where one runs, else that of the best GEMM."""
    ratio = device.ratio(view.precision)
    if ratio is None:
        return []
    job = _share(found[-1], found[0]) if found[-1].key == "job" else None
    if job is not None:
        text = f"{percent(job)} of {ceiling_words(device)}, best GEMM {percent(ratio)}"
        return [fit((Span(left("MFU", LABEL)), Span(text)), width)]
    shape = shape_text(view, device.rates[view.precision].best)
    text = f"{percent(ratio)} of {ceiling_words(device)}" + (f", best at {shape}" if shape else "")
    return [fit((Span(left("achieved", LABEL)), Span(text)), width)]


def _steps(view: View, device: DeviceState) -> tuple[Step, ...]:
    """The steps; on a CPU without a rated clock the first one is named after what it is."""
    job = mfu.of_device(view.state, device)
    found = steps(device, view.precision, view.findings, job)
    if not at_measured_clock(device):
        return found
    first, *rest = found
    below = [replace(step, cause=step.cause.replace("below rated", "below top")) for step in rest]
    return (replace(first, label="at top clock"), *below)


def _share(step: Step, rated: Step) -> float | None:
    """What is left after a step as a share of the rated ceiling."""
    if step.ops_per_second is None or not rated.ops_per_second:
        return None
    return step.ops_per_second / rated.ops_per_second


def _words(step: Step) -> str:
    return step.unavailable or step.cause


def _cause(step: Step) -> Span:
    severity = step.finding.severity if step.finding is not None else "info"
    role = severity if severity != "info" and step.cause else "muted"
    return Span(plain(_words(step), 200), role)


def _lost(step: Step) -> str:
    if step.lost is None or abs(step.lost) < MEANINGFUL:
        return ""
    return f"{-step.lost * 100:+.1f}%"


def _value(step: Step, scale: float) -> str:
    if step.ops_per_second is None:
        return NOT_AVAILABLE
    return significant(step.ops_per_second / scale)


def _step(
    view: View,
    step: Step,
    share: float | None,
    previous: float,
    scale: float,
    width: int,
    *,
    inline: bool,
) -> Line:
    """One bar: what is left, and thinner what this step took."""
    cause = CAUSE if inline and width >= LABEL + VALUE + LOST + CAUSE + BAR_MIN else 0
    cells = min(max(0, width - LABEL - VALUE - 1 - LOST - cause), BAR_MAX)
    glyphs = view.glyphs
    spans = [
        Span(left(step.label, LABEL), "text" if share is not None else "muted"),
        Span(right(_value(step, scale), VALUE) + " ", "text" if share is not None else "muted"),
    ]
    if share is None:
        return fit((*spans, _cause(step)), width) if inline else fit(spans, width)
    kept = round(min(max(share, 0.0), 1.0) * cells)
    gone = max(0, round(min(previous, 1.0) * cells) - kept)
    spans += [
        Span(glyphs.bar * kept, "good"),
        Span(glyphs.track * gone, "warn"),
        Span(" " * (cells - kept - gone)),
        Span(right(_lost(step), LOST), "text"),
    ]
    if cause:
        found = _cause(step)
        spans.append(Span("  " + clip(found.text, cause - 2), found.role))
    return fit(spans, width)


def _one_line(
    view: View,
    device: DeviceState,
    found: tuple[Step, ...],
    unit: str,
    scale: float,
    width: int,
) -> Line:
    """The steps in a row: "989 TFLOPS rated > 625 at held clock -36.9% > 412 best GEMM -21.5%"."""
    name = "at top clock" if at_measured_clock(device) else "rated"

    def spans(*, losses: bool) -> list[Span]:
        found_spans = [Span(f" {device.label} {PRECISIONS[view.precision].label}  ", "strong")]
        for step in found:
            words = {"rated": f"{unit} {name}", "job": "job"}.get(step.key, step.label)
            lost = f" {_lost(step)}" if losses and _lost(step) else ""
            found_spans.append(Span("" if step.key == "rated" else " > ", "muted"))
            found_spans.append(Span(_value(step, scale), "text"))
            found_spans.append(Span(f" {words}{lost}", "muted"))
        return found_spans

    complete = spans(losses=True)
    return fit(complete if line_width(complete) <= width else spans(losses=False), width)

"""Charts of a whole run, step by step from its first: loss scale, loss, gradient norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from topsmon.diagnosis.training.words import scale_text
from topsmon.events import HistoryBucket
from topsmon.run_state import RunState
from topsmon.tui.cells import Line, Span, fit, line_width, right
from topsmon.tui.charts import ChartCell, dots_per_cell, draw
from topsmon.tui.glyphs import Glyphs
from topsmon.tui.panel import Panel
from topsmon.tui.training import history
from topsmon.tui.training.history import Axis, Steps
from topsmon.tui.training.words import count, number
from topsmon.tui.view import View

LABEL = 7
"""Cells of the labels at the left, the blank after them included."""
MANY = 0.05
"""From this share of a column's steps on its mark is the strong one."""
NARROWEST, LOWEST = 30, 4


class Curve(NamedTuple):
    """One line of a chart: name, latest value, role, one ratio a column."""

    name: str
    latest: str
    role: str
    ratios: list[float | None]


class Drawing(NamedTuple):
    """All of a chart but its size. `marks` is a share 0..1 a cell, None where nothing is marked."""

    axis: Axis
    curves: list[Curve]
    mark_name: str
    marks: list[float | None]


class RunPlot(Panel):
    """A chart of the selected run; drawn anew only when its buckets have changed."""

    headed_from = 5
    logarithmic: ClassVar[bool | None] = None

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self._drawn: tuple[object, list[Line]] = (None, [])

    def drawing(self, run: RunState, steps: Steps, cells: int, per_cell: int) -> Drawing | None:
        """Return what to draw; None where nothing of it is known."""
        raise NotImplementedError

    def missing(self, run: RunState) -> str:
        """Say why there is nothing to draw."""
        raise NotImplementedError

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return chart, marks and legend."""
        run = view.training.selected
        if run is None or height < LOWEST or width < NARROWEST:
            return []
        last = run.buckets.get(max(run.buckets, default=0))
        wanted = (
            run.key,
            run.stride,
            len(run.buckets),
            last,
            width,
            height,
            view.glyphs.ascii_only,
        )
        if self._drawn[0] != wanted:
            self._drawn = (wanted, self._draw(run, width, height, view.glyphs))
        return list(self._drawn[1])

    def _draw(self, run: RunState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        steps, cells, per_cell = history.steps_of(run), width - LABEL, dots_per_cell(glyphs)
        drawing = self.drawing(run, steps, cells, per_cell) if run.buckets else None
        if drawing is None:
            return [fit((Span(self.missing(run), "muted"),), width)]
        rows = height - 1 - bool(drawing.mark_name)
        roles = [curve.role for curve in drawing.curves]
        chart = draw([curve.ratios for curve in drawing.curves], cells, rows, glyphs)
        labels = _labels(drawing.axis, rows)
        lines = [
            fit((Span(right(label, LABEL - 1) + " ", "muted"), *_spans(row, roles)), width)
            for label, row in zip(labels, chart, strict=True)
        ]
        if drawing.mark_name:
            lines.append(_mark_line(drawing, glyphs, width))
        newest = run.sample.step if run.sample is not None else steps.last
        return [*lines, _legend(drawing, steps, newest, glyphs, width)]

    def subtitle(self, view: View) -> str:
        """Explain the marks."""
        run = view.training.selected
        name = self.mark_name(run) if run is not None else ""
        glyphs = view.glyphs
        return (
            f"{name}: {glyphs.dot} in some steps, {glyphs.times} in over 5% of them" if name else ""
        )

    def mark_name(self, run: RunState) -> str:
        """What the marks under the chart stand for; "" where there are none."""
        del run
        return ""


class ScalePlot(RunPlot):
    """The loss scale over the whole run, in octaves, and where steps were skipped."""

    def title(self, view: View) -> str:
        """Name quantity and axis."""
        del view
        return "loss scale over the run, log2"

    def missing(self, run: RunState) -> str:
        """Without a scaler there is no scale."""
        del run
        return "no loss scale is known of this run"

    def drawing(self, run: RunState, steps: Steps, cells: int, per_cell: int) -> Drawing | None:
        """Return the highest and the lowest scale of each column, and the skipped steps."""
        found = history.columns(run, steps, cells * per_cell)
        axis = history.scale_axis(run)
        high = [axis.ratio(history.highest(column, _scale_highest)) for column in found]
        low = [axis.ratio(history.lowest(column, _scale_lowest)) for column in found]
        if all(ratio is None for ratio in high):
            return None
        latest = scale_text(run.sample.scale) if run.sample is not None else ""
        marks = [_share(column, _skipped) for column in history.columns(run, steps, cells)]
        curves = [Curve("scale", latest, "series-1", high), Curve("", "", "series-1", low)]
        return Drawing(axis, curves, self.mark_name(run), marks)

    def mark_name(self, run: RunState) -> str:
        """Skipped steps."""
        del run
        return "skips"


class LossPlot(RunPlot):
    """The mean loss over the whole run, and where it was not finite."""

    def title(self, view: View) -> str:
        """Name quantity and axis."""
        run = view.training.selected
        log = run is not None and _loss_axis(run).base
        return "loss over the run, mean" + (", log10" if log else "")

    def missing(self, run: RunState) -> str:
        """A loss is read where it is given to the scaler or to backward."""
        if self.mark_name(run):
            return "no finite loss so far: NaN or infinite in every step"
        return "no loss is known of this run"

    def drawing(self, run: RunState, steps: Steps, cells: int, per_cell: int) -> Drawing | None:
        """Return the means and the shares of losses that are not finite."""
        axis = _loss_axis(run)
        found = history.columns(run, steps, cells * per_cell)
        ratios = [axis.ratio(history.mean(column, _loss)) for column in found]
        if all(ratio is None for ratio in ratios):
            return None
        name = self.mark_name(run)
        marks = [_share(column, _nonfinite) for column in history.columns(run, steps, cells)]
        latest = ""
        if run.sample is not None:
            latest = number(
                run.sample.loss, "not finite" if run.sample.loss_finite is False else ""
            )
        curve = Curve("loss", latest, "series-2", ratios)
        return Drawing(axis, [curve], name, marks if name else [])

    def mark_name(self, run: RunState) -> str:
        """Losses that are not finite, if there was one."""
        return "NaN" if any(one.nonfinite_losses for one in run.buckets.values()) else ""


class NormPlot(RunPlot):
    """The highest gradient norm over the whole run, and the norm that clipping allows."""

    def title(self, view: View) -> str:
        """Name quantity and axis."""
        del view
        return "gradient norm over the run, highest, log10"

    def missing(self, run: RunState) -> str:
        """A norm is known where the run clips, or where the recorder has sampled one."""
        del run
        return "no gradient norm is known of this run"

    def drawing(self, run: RunState, steps: Steps, cells: int, per_cell: int) -> Drawing | None:
        """Return the norms and the limit."""
        limit = run.sample.clip_max_norm if run.sample is not None else None
        limit = limit if limit is not None and 0 < limit < math.inf else None
        norms = [bucket.gradient_norm_highest for bucket in run.buckets.values()]
        axis = history.value_axis([*norms, limit], logarithmic=True)
        found = history.columns(run, steps, cells * per_cell)
        ratios = [axis.ratio(history.highest(column, _norm)) for column in found]
        if all(ratio is None for ratio in ratios):
            return None
        sample = run.sample
        latest = number(sample.gradient_norm) if sample is not None else ""
        if sample is not None and sample.gradient_norm_finite is False:
            latest = "not finite"
        curves = [Curve("norm", latest, "series-3", ratios)]
        if limit is not None:
            line = [axis.ratio(limit) if column else None for column in found]
            curves.append(Curve("clipped at", f"{limit:.4g}", "muted", line))
        return Drawing(axis, curves, "", [])


def _scale_highest(bucket: HistoryBucket) -> float | None:
    return bucket.scale_highest


def _scale_lowest(bucket: HistoryBucket) -> float | None:
    return bucket.scale_lowest


def _loss(bucket: HistoryBucket) -> float | None:
    return bucket.loss_mean


def _norm(bucket: HistoryBucket) -> float | None:
    return bucket.gradient_norm_highest


def _skipped(bucket: HistoryBucket) -> float:
    return bucket.skipped / max(1, bucket.steps)


def _nonfinite(bucket: HistoryBucket) -> float:
    return bucket.nonfinite_losses / max(1, bucket.steps)


def _loss_axis(run: RunState) -> Axis:
    return history.value_axis([bucket.loss_mean for bucket in run.buckets.values()])


def _share(column: list[HistoryBucket], pick: history.Pick) -> float | None:
    """Share of a column's steps; None for none, so that a blank means none."""
    return history.mean(column, pick) or None


def _labels(axis: Axis, rows: int) -> list[str]:
    """The label of each row, from the top; where two share a row the first stays."""
    labels = [""] * rows
    for tick in axis.ticks(rows):
        row = rows - 1 - min(rows - 1, max(0, int(tick.ratio * rows)))
        labels[row] = labels[row] or tick.label
    return labels


def _spans(cells: Sequence[ChartCell], roles: Sequence[str]) -> list[Span]:
    """A row of a chart; a blank takes its neighbour's role, since fewer colours are fewer bytes."""
    spans: list[Span] = []
    role, text = "text", ""
    for cell in cells:
        wanted = role if cell.series is None else roles[cell.series]
        if wanted != role and text.strip():
            spans.append(Span(text, role))
            text = ""
        role, text = wanted, text + cell.sign
    return [*spans, Span(text.rstrip(), role)]


def mark_sign(share: float | None, glyphs: Glyphs) -> str:
    """Blank for none, a dot for a few, a cross from one in twenty on."""
    if share is None:
        return " "
    return glyphs.times if share >= MANY else glyphs.dot


def _mark_line(drawing: Drawing, glyphs: Glyphs, width: int) -> Line:
    spans = [Span(right(drawing.mark_name, LABEL - 1) + " ", "muted")]
    for share in drawing.marks:
        role = "fail" if share is not None and share >= MANY else "warn"
        spans.append(Span(mark_sign(share, glyphs), role if share is not None else spans[-1].role))
    return fit(spans, width)


def _legend(drawing: Drawing, steps: Steps, newest: int, glyphs: Glyphs, width: int) -> Line:
    begin, end = "step 1", f"newest {count(newest)}" if newest < steps.last else count(newest)
    parts: list[Span] = []
    for place, curve in enumerate(drawing.curves):
        if not curve.name:
            continue
        sign = (glyphs.line + "o+")[place] if glyphs.ascii_only else glyphs.line
        gap = "   " if parts else ""
        parts += [
            Span(gap, "muted"),
            Span(sign * 2 + " ", curve.role),
            Span(f"{curve.name} {curve.latest}".rstrip(), "muted"),
        ]
    room = width - LABEL - len(begin) - len(end) - 4
    middle = fit(parts, max(0, room))
    gap_cells = max(2, room + 4 - line_width(middle))
    before, after = " " * (gap_cells // 2), " " * (gap_cells - gap_cells // 2)
    start = Span(" " * LABEL + begin + before, "muted")
    return fit((start, *middle, Span(after + end, "muted")), width)

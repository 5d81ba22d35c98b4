"""Mixed-precision health of a run that trains now, for the live tab."""

from __future__ import annotations

from topsmon.diagnosis.training.words import scale_text
from topsmon.run_state import RunState
from topsmon.tui.cells import Line, Span, clip, fit, left, line_width, two_sided, width_of, words
from topsmon.tui.glyphs import spark
from topsmon.tui.panel import Panel
from topsmon.tui.training import history
from topsmon.tui.training.launches import Launch
from topsmon.tui.training.list import holds
from topsmon.tui.training.numbers import HEAD, Fact, concerned, fact_line, mfu_fact
from topsmon.tui.training.plots import MANY
from topsmon.tui.training.words import (
    command_name,
    count,
    has_scaler,
    last_words,
    number,
    rank_name,
    seconds_text,
    skipped_ratio,
    state_word,
)
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, percent, plain

SPARK_LEAST, SPARK_MOST = 8, 60


class AmpPanel(Panel):
    """One recent run in a line or a few; the other recent ones are counted."""

    def title(self, view: View) -> str:
        """Say how many more there are, and where all of it stands."""
        more = len(recent(view)) - 1
        others = f", {more} more" if more > 0 else ""
        return f"training run{others}: key 3"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the run as a block, or as one line."""
        run = shown_run(view)
        if run is None:
            return []
        if height < 3:
            return [_one_line(view, run, width)]
        lines = [_head(view, run, width), *_body(view, run, width, height - 2)]
        verdict = plain(view.training.of(run).verdict, 400) or last_words(run)
        parts = words(verdict, width - HEAD)
        room = max(1, height - len(lines))
        if len(parts) > room:
            parts = [*parts[: room - 1], clip(" ".join(parts[room - 1 :]), width - HEAD)]
        for place, part in enumerate(parts):
            lines.append((Span(left("" if place else "verdict", HEAD), "muted"), Span(part)))
        return lines


def recent(view: View) -> list[Launch]:
    """Launches that live or have ended a few minutes ago."""
    return [launch for launch in view.training.launches if launch.recent(view.now)]


def shown_run(view: View) -> RunState | None:
    """The selected run where it is recent, else that of the first recent launch."""
    found = recent(view)
    if not found:
        return None
    if any(holds(launch, view.training.run) for launch in found):
        return view.training.selected
    return found[0].first


def _name(run: RunState, room: int) -> str:
    rank = f"  {rank_name(run.identity)}" if run.identity.rank is not None else ""
    return command_name(run.identity, max(8, room - width_of(rank))) + rank


def _head(view: View, run: RunState, width: int) -> Line:
    word, role = state_word(run, view.training.of(run).findings)
    step = f"step {count(run.sample.step)}" if run.sample is not None else "no step yet"
    room = width - HEAD - width_of(step) - 3
    name = (Span(left(word, HEAD), role), Span(_name(run, room), "strong"))
    return two_sided(name, (Span(step),), width)


def _body(view: View, run: RunState, width: int, room: int) -> list[Line]:
    """Scale, skips, MFU and the time of a step in `room` lines; in two the last ones share one."""
    sample = run.sample
    if sample is None:
        return []
    mfu, skipped = mfu_fact(view, run), _skips(view, run)
    time, norm = seconds_text(sample.window.step_seconds), number(sample.gradient_norm)
    speed = [part for part in (f"{time} a step" * bool(time), f"norm {norm}" * bool(norm)) if part]
    lines: list[Line] = [_scale_line(view, run, width)] if has_scaler(run) else []
    if skipped is None:
        lines.append(fact_line(Fact("speed", speed[0] if speed else NOT_AVAILABLE), width))
    elif room - len(lines) < 2:
        return [*lines, fact_line(skipped._replace(notes=(f"MFU {mfu.value}",)), width)]
    else:
        notes = ("   ".join(speed), *speed)
        lines.append(fact_line(skipped._replace(notes=notes), width))
    return [*lines, fact_line(mfu, width)]


def _skips(view: View, run: RunState) -> Fact | None:
    ratio = skipped_ratio(run)
    if ratio is None or run.sample is None or not has_scaler(run):
        return None
    role = concerned(view, run, "skip-rate", "consecutive-skips", "backward-overflow")
    window = run.sample.window
    return Fact("skipped", f"{window.skipped} of last {window.steps}", (), role)


def _scale_line(view: View, run: RunState, width: int) -> Line:
    """The scale, and how it went: a spark over the whole run on the chart's own axis."""
    scale = scale_text(run.sample.scale if run.sample is not None else None) or NOT_AVAILABLE
    value = left(scale, 8)
    cells = min(width - HEAD - width_of(value) - 1, SPARK_MOST)
    spans = [
        Span(left("scale", HEAD), "muted"),
        Span(value + " ", concerned(view, run, "scale-")),
    ]
    if cells >= SPARK_LEAST:
        spans += _spark(view, run, cells)
    return fit(spans, width)


def _spark(view: View, run: RunState, cells: int) -> list[Span]:
    steps, axis = history.steps_of(run), history.scale_axis(run)
    spans = []
    for column in history.columns(run, steps, cells):
        ratio = axis.ratio(history.lowest(column, lambda bucket: bucket.scale_lowest))
        skipped = sum(bucket.skipped for bucket in column)
        many = skipped >= MANY * max(1, sum(bucket.steps for bucket in column))
        spans.append(Span(spark([ratio], 1, view.glyphs), "warn" if skipped and many else "spark"))
    return spans


def _one_line(view: View, run: RunState, width: int) -> Line:
    """The run in one line: state, name, step, scale, skips, MFU, then the verdict."""
    word, role = state_word(run, view.training.of(run).findings)
    spans = [Span(f" {word} ", role if role != "ok" else "muted")]
    spans.append(Span(clip(run.label, width // 3), "strong"))
    sample = run.sample
    if sample is not None:
        spans.append(Span(f"  step {count(sample.step)}"))
        if sample.scale is not None:
            spans.append(
                Span(f"  scale {scale_text(sample.scale)}", concerned(view, run, "scale-"))
            )
            spans.append(Span(f"  skipped {percent(skipped_ratio(run))}"))
        mfu = mfu_fact(view, run)
        if mfu.value != NOT_AVAILABLE:
            spans.append(Span(f"  MFU {mfu.value}"))
    verdict = plain(view.training.of(run).verdict, 400) or last_words(run)
    if line_width(spans) + 12 <= width:
        spans.append(Span(f"  {verdict}", "muted"))
    return fit(spans, width)

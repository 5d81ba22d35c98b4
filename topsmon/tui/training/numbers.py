"""All numbers of the selected run."""

from __future__ import annotations

from typing import NamedTuple

from topsmon import events
from topsmon.diagnosis import mfu
from topsmon.diagnosis.training.words import scale_text
from topsmon.report.training import on_cuda
from topsmon.run_state import RunState
from topsmon.tui.cells import Line, Span, clip, fit, left, line_width, width_of
from topsmon.tui.panel import Panel
from topsmon.tui.training.words import (
    age_of_step,
    count,
    has_scaler,
    number,
    seconds_text,
    speed_text,
)
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, binary_bytes, duration, percent, plain, rate, si

HEAD, VALUE = 10, 15
"""Cells of a head and of a number, the blank after each included."""
QUIET_SECONDS = 10.0
"""A step younger than this is now."""
TWO_COLUMNS_FROM = 76
GAP = 1
NONFINITE = {
    "nonfinite-weights": "bad weight",
    "nonfinite-output": "bad layer",
    "nonfinite-gradients": "bad grads",
}
"""Heads of what was not finite, the gravest first."""
TOGETHER_STEPS = 50
"""What is not finite within so many steps is one story."""
SHORT_SOURCES = {
    mfu.SIX_N_D: "6ND",
    mfu.WITH_FROZEN: "6ND + 2 x frozen",
    mfu.WITH_FLOWING: "6ND + 2 to 4 x frozen",
}


class Fact(NamedTuple):
    """A head, the number, and what explains it: the longest of the `notes` that fits is shown.

    `role` marks a number that is off.
    """

    head: str
    value: str
    notes: tuple[str, ...] = ()
    role: str = "text"


class RunNumbers(Panel):
    """The numbers in one column, or in two where lines are short."""

    def title(self, view: View) -> str:
        """Name the model and where it trains."""
        run = view.training.selected
        return (run is not None and model_text(run.identity)) or "in numbers"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the facts, the most telling first."""
        run = view.training.selected
        if run is None:
            return []
        known = facts(view, run)
        indent = () if self.framed else (Span(" "),)
        room = width - len(indent)
        bad = nonfinite(run)
        if len(known) + len(bad) <= height or room < TWO_COLUMNS_FROM:
            known = [*known[: max(1, height - len(bad))], *bad]
            return [fit((*indent, *fact_line(fact, room)), width) for fact in known[:height]]
        each = (room - GAP) // 2
        rows = min(height - bool(bad), (len(known) + 1) // 2)
        lines = []
        for place in range(rows):
            spans = [*indent, *_padded(fact_line(known[place], each), each + GAP)]
            if rows + place < len(known):
                spans += fact_line(known[rows + place], each)
            lines.append(fit(spans, width))
        return lines + [fit((*indent, *fact_line(fact, room)), width) for fact in bad[:1]]


def nonfinite(run: RunState) -> list[Fact]:
    """Where something that is not finite was last seen: the first bad module, the parameters."""
    first = run.bad_weights()
    found = [first] if first is not None else []
    kinds = [kind for kind in NONFINITE if kind != "nonfinite-weights"]
    found += [event for kind in kinds if (event := run.latest(kind)) is not None]
    newest = max((event.step for event in found), default=0)
    return [
        Fact(NONFINITE[event.kind], f"step {count(event.step)}  {_where(event)}")
        for event in found
        if newest - event.step <= TOGETHER_STEPS
    ][:2]


def _where(event: events.RunEvent) -> str:
    """The module or the parameters, and how many of them."""
    names, message = ", ".join(plain(name, 200) for name in event.names), plain(event.message, 200)
    bad, all_of_them = event.values.get("bad"), event.values.get("parameters")
    if bad is not None and all_of_them is not None:
        return f"{count(bad)} of {count(all_of_them)}: {names}"
    return f"{names} ({message})" if names and message else names or message


def fact_line(fact: Fact, width: int) -> Line:
    """Head, number, and a note where one fits whole."""
    room = width - HEAD
    spans = [Span(left(fact.head, HEAD), "muted"), Span(clip(fact.value, room), fact.role)]
    used = max(VALUE, width_of(spans[1].text) + 2)
    note = next((note for note in fact.notes if width_of(note) <= room - used), "")
    if not note and fact.notes and fact.value == NOT_AVAILABLE:
        note = clip(fact.notes[0], room - used)  # a reason says something even when it is cut
    if note:
        gap = " " * (used - width_of(spans[1].text))
        spans.append(Span(f"{gap}{note}", "muted"))
    return tuple(spans)


def _padded(line: Line, width: int) -> Line:
    return (*line, Span(" " * (width - line_width(line))))


def model_text(identity: events.Run) -> str:
    """Model, size and place: "GPT  123.7M parameters  cuda:0"."""
    parts = [plain(identity.model, 40)] if identity.model else []
    if identity.parameters is not None:
        parts.append(f"{si(identity.parameters, digits=4).replace(' ', '')} parameters")
    return "  ".join(
        [*parts, *([plain(identity.torch_device, 20)] if identity.torch_device else [])]
    )


def facts(view: View, run: RunState) -> list[Fact]:
    """Everything known in numbers; what cannot be known of this run is left out."""
    sample = run.sample
    if sample is None:
        return [Fact("step", "none yet", ("the first one is on its way",))]
    window = sample.window
    slow = window.high_step_seconds
    found = [Fact("step", count(sample.step), _step_notes(view, run)), _loss(view, run, sample)]
    found += _scaling(view, run, sample) if has_scaler(run) else []
    found += _gradients(view, run, sample)
    found += [
        mfu_fact(view, run),
        Fact(
            "step time",
            seconds_text(window.step_seconds) or NOT_AVAILABLE,
            (f"median, p95 {seconds_text(slow)}", f"p95 {seconds_text(slow)}") if slow else (),
        ),
        _speed(view, run, window),
        Fact(
            "data wait",
            percent(window.data_wait_ratio),
            ("of the time, for the loader", "of the time"),
            concerned(view, run, "input-stall"),
        ),
        _memory(run, sample),
        _energy(run),
        _learning_rate(sample),
        Fact("autocast", sample.autocast or "off", _types(run)),
    ]
    return found


def concerned(view: View, run: RunState, *codes: str) -> str:
    """Role of a number: that of a finding which is about it."""
    for finding in view.training.of(run).findings:
        if finding.code.startswith(codes) and finding.severity != "info":
            return finding.severity
    return "text"


def _step_notes(view: View, run: RunState) -> tuple[str, ...]:
    if run.ended:
        return ("the last one",)
    age = age_of_step(run, view.wall)
    return () if age is None or age < QUIET_SECONDS else (f"{duration(age)} ago",)


def _loss(view: View, run: RunState, sample: events.RunSample) -> Fact:
    first, times = sample.totals.first_nonfinite_loss_step, sample.totals.nonfinite_losses
    notes: tuple[str, ...] = ()
    if first:
        since = f"since step {count(first)}" if sample.loss_finite is False else ""
        notes = (
            f"{count(times)} not finite, first {count(first)}",
            since,
            f"{count(times)} not finite",
        )
    if sample.loss_finite is False:
        return Fact("loss", "not finite", notes, concerned(view, run, "loss-nan"))
    calls = sample.window.backward_calls_per_step
    if not notes and calls is not None and calls > 1.0:
        notes = (f"sum of {calls:.3g} backward calls", f"{calls:.3g} backward calls")
    return Fact("loss", number(sample.loss, NOT_AVAILABLE), notes)


def _scaling(view: View, run: RunState, sample: events.RunSample) -> list[Fact]:
    window, totals, scaler = sample.window, sample.totals, run.identity.scaler
    streak = "none now" if not sample.skip_streak else f"{count(sample.skip_streak)} skipped"
    found = [
        Fact(
            "scale",
            scale_text(sample.scale),
            _scale_range(run, totals),
            concerned(view, run, "scale-"),
        ),
        Fact(
            f"last {window.steps}",
            f"{window.skipped} skipped",
            (percent(window.skipped / window.steps),) if window.steps else (),
            concerned(view, run, "skip-rate", "backward-overflow"),
        ),
        Fact(
            "overall",
            f"{count(totals.skipped)} skipped",
            (
                f"{percent(totals.skipped / totals.steps, 2)} of {count(totals.steps)} steps",
                percent(totals.skipped / totals.steps, 2),
            )
            if totals.steps
            else (),
        ),
        Fact(
            "in a row",
            streak,
            (f"{count(totals.longest_skip_streak)} at most",),
            concerned(view, run, "consecutive-skips"),
        ),
    ]
    interval = scaler.growth_interval if scaler is not None else None
    if sample.growth_tracker is not None and interval:
        steps = f"{count(sample.growth_tracker)} of {count(interval)}"
        found.append(Fact("growth", steps, ("good steps, then it grows", "good steps")))
    return found


def _scale_range(run: RunState, totals: events.RunTotals) -> tuple[str, ...]:
    low, high = totals.scale_lowest, run.scale_highest
    if low is None or high is None or low == high:
        return ()
    return (f"{scale_text(low)} to {scale_text(high)} so far", f"top {scale_text(high)}")


def _gradients(view: View, run: RunState, sample: events.RunSample) -> list[Fact]:
    role = concerned(view, run, "gradient-spike", "clip-before-unscale")
    value = number(sample.gradient_norm, NOT_AVAILABLE)
    if sample.gradient_norm_finite is False:
        value = "not finite"
    median = sample.window.gradient_norm_median
    notes = (f"median {number(median)}",) if median is not None else ()
    found = [Fact("norm", value, notes, role)]
    if sample.window.clipped_ratio is not None:
        limit = f"{sample.clip_max_norm:.4g}" if sample.clip_max_norm is not None else ""
        above = (f"of the calls, above {limit}", f"above {limit}") if limit else ("of the calls",)
        found.append(Fact("clipped", percent(sample.window.clipped_ratio, 0), above))
    return found


def _speed(view: View, run: RunState, window: events.RunWindow) -> Fact:
    if run.condition == "silent":
        return Fact("speed", NOT_AVAILABLE, (_no_step(view, run),), "muted")
    return Fact("speed", speed_text(window) or NOT_AVAILABLE, _per_step(window))


def _no_step(view: View, run: RunState) -> str:
    age = age_of_step(run, view.wall)
    return f"no step for {duration(age)}" if age is not None else mfu.NO_STEP


def _per_step(window: events.RunWindow) -> tuple[str, ...]:
    amounts = ((window.tokens_per_step, "tokens"), (window.samples_per_step, "samples"))
    return tuple(f"{count(value)} {unit} a step" for value, unit in amounts if value is not None)


def mfu_fact(view: View, run: RunState) -> Fact:
    """The share of the ceiling that the run's model uses, with its source; why not, without."""
    found = mfu.of_run(view.state, run)
    if found.absence == mfu.NO_STEP:
        return Fact("MFU", NOT_AVAILABLE, (_no_step(view, run),), "muted")
    if found.flops_per_second is None:
        return Fact("MFU", NOT_AVAILABLE, (plain(found.absence, 200),), "muted")
    achieved = rate(found.flops_per_second, found.precision or "fp32")
    if found.ratio is None:
        absence = plain(found.ceiling_absence, 200)
        return Fact("MFU", NOT_AVAILABLE, (f"{achieved}; {absence}", achieved), "muted")
    source = plain(found.source, 140)
    for long, short in SHORT_SOURCES.items():
        source = source.replace(long, short)
    if found.doubtful:
        return Fact(
            "MFU", percent(found.ratio), ("in doubt: above the ceiling", "in doubt"), "warn"
        )
    if found.lower_bound:
        notes = (f"{achieved}, {source}, lower bound", f"{source}, at least", source)
        return Fact("MFU", "≥" + percent(found.ratio), notes)
    return Fact("MFU", percent(found.ratio), (f"{source}, {achieved}", source))


def _learning_rate(sample: events.RunSample) -> Fact:
    rate_now = sample.learning_rate
    return Fact("lr", NOT_AVAILABLE if rate_now is None else f"{rate_now:.4g}", ("learning rate",))


def _energy(run: RunState) -> Fact:
    if run.joules_per_step is None:
        return Fact("energy", NOT_AVAILABLE, ("no GPU counter of its own",), "muted")
    token = run.joules_per_token
    notes = (f"{si(token, 'J', 3)}/token",) if token is not None else ()
    return Fact("energy", f"{si(run.joules_per_step, 'J', 3)}/step", notes)


def _memory(run: RunState, sample: events.RunSample) -> Fact:
    peak = sample.memory_peak_bytes
    notes = (f"peak {binary_bytes(peak)}",) if peak is not None else ()
    if on_cuda(run.identity):
        notes = (*notes, *(f"{note}, torch's own: cache, context on top" for note in notes))
    return Fact("memory", binary_bytes(sample.memory_bytes), notes)


def _types(run: RunState) -> tuple[str, ...]:
    types = run.identity.parameter_types
    names = [plain(name, 20).removeprefix("torch.") for name in types]
    return (f"{', '.join(names)} parameters",) if names else ()

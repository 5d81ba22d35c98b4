"""A training run in words: one line, one block, and what a JSON document says of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from topsmon import events
from topsmon.diagnosis import mfu, of_run
from topsmon.diagnosis.training import ranks_text, together
from topsmon.diagnosis.training.ending import shortened
from topsmon.diagnosis.training.other_ranks import causes_first, place, rank_word
from topsmon.diagnosis.training.words import counted, number_text, scale_text, seconds_text
from topsmon.report import profile_lines
from topsmon.report.columns import pad, wrap
from topsmon.run_state import RunState
from topsmon.state import State
from topsmon.units import (
    NOT_AVAILABLE,
    PRECISIONS,
    binary_bytes,
    duration,
    percent,
    plain,
    si,
    significant,
)

WIDTH = 80
HEAD = 11
HALF_WEIGHTS = {"bfloat16": "BF16 weights", "float16": "FP16 weights"}
RANKS_SHOWN = 16
"""Lines of single ranks; more are counted."""
TORCH_ALLOCATED = "allocated by torch: its cache and the CUDA context come on top"
STEPS_FOR_A_MEAN = 1000
"""Before so many steps the recorder's mean cost a step is mostly that of its beginning."""
OF_THE_RUN = frozenset({"run-failed", "run-killed", "run-gone"})
"""How a run ended is said beside its name; its verdict is about its training."""
NOTES = ("scaler-bf16", "scaler-disabled", "backward-overflow", "scheduler-ahead")
"""Codes of notes that the verdict on a healthy run ends with."""

Findings = Sequence[events.Finding]


def on_cuda(identity: events.Run) -> bool:
    """True where a run's memory is torch's own account of a GPU, not the process's."""
    return (identity.torch_device or "").startswith("cuda")


def verdict(run: RunState, findings: Findings) -> str:
    """One line about a run: its worst trouble, else what shows that it is healthy.

    `findings` are those of `diagnosis.of_run`, worst first.
    """
    trouble = [one for one in findings if one.severity != "info"]
    training = [one for one in trouble if one.code not in OF_THE_RUN] or trouble
    if training:
        more = f" (+{len(training) - 1} more)" if len(training) > 1 else ""
        return plain(f"{training[0].word}: {training[0].title}{more}", 300)
    sample = run.sample
    state = next((one for one in findings if one.code in {*OF_THE_RUN, "run-silent"}), None)
    if sample is None and state is not None:
        return plain(state.title, 300)
    if sample is None:
        return "ended before its first step" if run.ended else "no step seen yet"
    words = _healthy(run, sample, findings)
    return f"{plain(state.title, 200)}; until then {words}" if state is not None else words


def _healthy(run: RunState, sample: events.RunSample, findings: Findings) -> str:
    scaler, totals = run.identity.scaler, sample.totals
    scaled = scaler is not None and scaler.enabled
    past = next((one for one in findings if " was " in one.title or " were " in one.title), None)
    past = past or next((one for one in findings if one.code in NOTES), None)
    if not scaled:
        kind = "BF16" if sample.autocast == "bf16" else _weights_kind(run.identity)
        loss = f"loss {number_text(sample.loss)}" if sample.loss is not None else "loss not seen"
        words = f"healthy ({kind}, no loss scaler): {loss}, {counted(sample.step, 'step')}"
    else:
        words = f"mixed precision healthy: scale {scale_text(sample.scale)}, {_skips(totals)}"
        if any(one.code == "calibrating" for one in findings) and sample.skip_streak:
            words = f"calibrating: scale {scale_text(sample.scale)}, {_skips(totals)}"
    return f"{words}; {plain(past.title, 160)}" if past is not None else words


def _weights_kind(identity: events.Run) -> str:
    """Without autocast the weights' own type decides, as in DeepSpeed's and Megatron's BF16."""
    kind = mfu.prevailing_type(identity.parameter_types)
    return HALF_WEIGHTS.get(kind or "", "no mixed precision")


def _skips(totals: events.RunTotals) -> str:
    if not totals.skipped:
        return f"no step of {totals.steps:,} skipped" if totals.steps > 1 else "no step skipped"
    calibration = 0 if totals.nonfinite_losses else totals.calibration_skips
    later = totals.skipped - calibration
    reasons = []
    if calibration:
        reasons.append("calibration" if not later else f"{calibration:,} calibration")
    if later and calibration:
        reasons.append(f"{later:,} later")
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"{totals.skipped:,} of {counted(totals.steps, 'step')} skipped{why}"


def summary(runs: Sequence[RunState], state: State, now: float, *, ascii_only: bool = False) -> str:
    """Runs as blocks of at most 80 columns, the ranks of a launch as one; ends with a newline."""
    groups: dict[str, list[RunState]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    blocks = ["\n".join(_block(ranks, state, now)) for ranks in groups.values()]
    text = "\n\n".join(blocks) + "\n" if blocks else "no run\n"
    return text.encode("ascii", "replace").decode("ascii") if ascii_only else text


def _block(ranks: list[RunState], state: State, now: float) -> list[str]:
    judged = [(run, of_run(state, run.key, now)) for run in causes_first(state, ranks)]
    worst, findings = min(judged, key=lambda pair: _badness(pair[1]))
    lines = wrap(_heading(ranks), WIDTH, rest=2)
    of = f"{ranks_text([worst])}: " if len(ranks) > 1 else ""
    lines += wrap(of + verdict(worst, findings), WIDTH, first="  ", rest=4)
    if len(ranks) > 1:
        lines.append(f"  numbers of {ranks_text([worst])}")
    for head, text in _facts(worst, state):
        lines += wrap(plain(text, 400), WIDTH, first=f"  {pad(head, HEAD)}", rest=HEAD + 2)
    if len(ranks) > 1:
        lines += [_rank_line(run) for run in ranks[:RANKS_SHOWN]]
        if len(ranks) > RANKS_SHOWN:
            lines.append(f"  and {len(ranks) - RANKS_SHOWN} more ranks")
    for finding, who in _alike(judged):
        lines += _finding(finding, who if len(ranks) > 1 else "")
    return lines


def _badness(findings: Findings) -> int:
    order = ("fail", "warn", "info")
    return min((order.index(one.severity) for one in findings), default=len(order))


def _heading(ranks: list[RunState]) -> str:
    first = ranks[0]
    who = f"PID {first.identity.pid}" if len(ranks) == 1 else ranks_text(ranks)
    devices = list(dict.fromkeys(run.identity.torch_device or "" for run in ranks))
    where = devices[0] if len(devices) == 1 else f"{len(devices)} devices"
    conditions = _conditions(ranks)
    return plain("  ".join(part for part in (first.name, who, where, conditions) if part), 400)


def _conditions(ranks: Sequence[RunState]) -> str:
    """How the ranks are; where they differ, which are how, without their last words."""
    told = list(dict.fromkeys(_condition(run) for run in ranks))
    if len(told) == 1:
        return told[0]
    alike: dict[str, list[RunState]] = {}
    for run in ranks:
        alike.setdefault(_state(run), []).append(run)
    if len(alike) == 1:
        return next(iter(alike))
    return "; ".join(f"{ranks_text(runs)} {state}" for state, runs in alike.items())


def _condition(run: RunState) -> str:
    detail = shortened(run.status.detail) if run.status is not None else ""
    return f"{_state(run)}, {detail}" if detail else _state(run)


def _state(run: RunState) -> str:
    if run.interrupted:
        return "interrupted"
    status = run.status
    unsure = status is not None and status.exit_code is None and status.detail
    return "ended" if run.condition == "finished" and unsure else run.condition


def _alike(
    judged: Sequence[tuple[RunState, Findings]],
) -> Iterator[tuple[events.Finding, str]]:
    """Findings with the ranks that have them, each code once."""
    by_code: dict[tuple[str, str], list[tuple[RunState, events.Finding]]] = {}
    for run, findings in judged:
        for finding in findings:
            by_code.setdefault((finding.severity, finding.code), []).append((run, finding))
    for (_, _), pairs in sorted(by_code.items(), key=lambda one: _badness([one[1][0][1]])):
        ranks, finding = together(pairs)
        yield finding, ranks_text(ranks)


def _finding(finding: events.Finding, who: str) -> list[str]:
    first = f"  {pad(plain(finding.word, 6), 7)}"
    title = f"{who}: {finding.title}" if who else finding.title
    lines = wrap(plain(title, 400), WIDTH, first=first, rest=9)
    texts = [finding.cause, *finding.evidence]
    if finding.remedy:
        texts.append(f"-> {finding.remedy}")
    for text in texts:
        if text:
            lines += wrap(plain(text, 400), WIDTH, first=" " * 9, rest=9)
    if finding.command:
        lines.append(f"         > {plain(finding.command)}")
    return lines


def _rank_line(run: RunState) -> str:
    sample = run.sample
    who = rank_word(run)
    if sample is None:
        return f"  {pad(who, HEAD)}no step  {_state(run)}"
    parts = [counted(sample.step, "step"), seconds_text(sample.window.step_seconds)]
    if sample.scale is not None:
        parts.append(f"scale {scale_text(sample.scale)}")
        parts.append(f"{sample.totals.skipped:,} skipped")
    if sample.loss is not None:
        parts.append(f"loss {number_text(sample.loss)}")
    return f"  {pad(who, HEAD)}{', '.join(parts)}, {_state(run)}"[:WIDTH]


def _facts(run: RunState, state: State) -> Iterator[tuple[str, str]]:
    sample = run.sample
    if sample is None:
        yield "steps", "none"
        return
    window, totals = sample.window, sample.totals
    yield "steps", _steps(sample)
    yield "loss", _loss(sample)
    if sample.scale is not None or totals.scale_lowest is not None:
        low, high = scale_text(totals.scale_lowest), scale_text(run.scale_highest)
        longest = f"longest streak {totals.longest_skip_streak:,}"
        grown = counted(totals.growths, "growth")
        scale = f"{scale_text(sample.scale)} ({low} to {high})"
        yield "loss scale", f"{scale}, {_skips(totals)}, {longest}, {grown}"
    norm = _gradients(sample)
    if norm:
        yield "gradients", norm
    speed = _speed(window)
    if speed:
        yield "speed", f"N/A: {mfu.NO_STEP}" if run.condition == "silent" else speed
    yield "MFU", mfu.words(mfu.of_run(state, run))
    if run.joules_per_step is not None:
        token = run.joules_per_token
        per_token = f", {number_text(token)} J a token" if token is not None else ""
        yield "energy", f"{number_text(run.joules_per_step)} J a step{per_token} (energy counter)"
    if sample.memory_bytes is not None or sample.memory_peak_bytes is not None:
        peak = binary_bytes(sample.memory_peak_bytes)
        words = f"; {TORCH_ALLOCATED}" if on_cuda(run.identity) else ""
        yield "memory", f"{binary_bytes(sample.memory_bytes)}, peak {peak}{words}"
    yield from profile_lines.facts(run)
    if totals.recorder_seconds > 0 and totals.steps:
        yield "recorder", _recorder(totals)
    if run.identity.limits:
        yield "not seen", "; ".join(run.identity.limits)


def _steps(sample: events.RunSample) -> str:
    window = sample.window
    parts = [f"{sample.step:,}"]
    if window.step_seconds is not None:
        parts.append(f"{seconds_text(window.step_seconds)} each")
        if window.high_step_seconds is not None:
            parts[-1] += f" (95% within {seconds_text(window.high_step_seconds)})"
    if window.data_wait_ratio is not None:
        parts.append(f"waits for data {percent(window.data_wait_ratio)}")
    if window.backward_calls_per_step is not None and window.backward_calls_per_step > 1:
        parts.append(f"{window.backward_calls_per_step:.3g} backward calls a step")
    return ", ".join(parts)


def _loss(sample: events.RunSample) -> str:
    totals = sample.totals
    loss = number_text(sample.loss) if sample.loss is not None else NOT_AVAILABLE
    calls = sample.window.backward_calls_per_step
    if sample.loss is not None and calls is not None and calls > 1.0:
        loss += f" (sum of {calls:.3g} backward calls)"
    if sample.loss_finite is False:
        loss = "not finite"
    if not totals.nonfinite_losses:
        return loss if sample.loss is None else f"{loss}, always finite"
    first = totals.first_nonfinite_loss_step
    since = f", first at step {first:,}" if first is not None else ""
    return f"{loss}; not finite in {counted(totals.nonfinite_losses, 'step')}{since}"


def _gradients(sample: events.RunSample) -> str:
    window, parts = sample.window, []
    if sample.gradient_norm is not None:
        parts.append(f"norm {number_text(sample.gradient_norm)}")
    elif sample.gradient_norm_finite is False:
        parts.append("norm not finite")
    if window.gradient_norm_median is not None:
        parts.append(f"median {number_text(window.gradient_norm_median)}")
    if window.clipped_ratio is not None:
        steps = counted(window.clip_calls, "step")
        parts.append(f"clipped in {percent(window.clipped_ratio, 0)} of {steps} with clip calls")
    return ", ".join(parts)


def _speed(window: events.RunWindow) -> str:
    rates = (("tokens", window.tokens_per_second), ("samples", window.samples_per_second))
    return ", ".join(
        f"{value:,.0f} {unit}/s" if value >= 100 else f"{significant(value)} {unit}/s"
        for unit, value in rates
        if value is not None and math.isfinite(value)
    )


def _recorder(totals: events.RunTotals) -> str:
    text = f"took {si(totals.recorder_seconds, 's', 3)} in all by its own measure"
    if totals.steps >= STEPS_FOR_A_MEAN:
        text += f", {totals.recorder_seconds / totals.steps * 1e6:.0f} us a step"
    if totals.dropped:
        text += f", {counted(totals.dropped, 'reading')} dropped rather than waited for"
    if totals.errors:
        text += f", {counted(totals.errors, 'error')} of its own"
    return text


def lines(state: State, now: float) -> list[str]:
    """One line a run for the snapshot: name, condition, step, verdict; alike ranks are one."""
    alike: dict[tuple[str, ...], list[RunState]] = {}
    runs = state.ordered_runs()
    places = {run.group: place for place, run in reversed(list(enumerate(runs)))}
    for run in sorted(runs, key=lambda run: (places[run.group], place(state, run))):
        step = counted(run.sample.step, "step") if run.sample is not None else "no step"
        words = verdict(run, of_run(state, run.key, now))
        alike.setdefault((run.group, _state(run), step, words), []).append(run)
    found = []
    for (_, condition, step, words), runs in alike.items():
        ended = runs[0].ended_for(now)
        age = f" {duration(ended)} ago" if ended is not None else ""
        who = runs[0].label if len(runs) == 1 else f"{runs[0].name} {ranks_text(runs)}"
        text = f"{who}  {condition}{age}  {step}  {words}"
        found += wrap(plain(text, 400), WIDTH, rest=4)
    return found


def to_builtins(state: State, run: RunState, now: float) -> dict[str, Any]:
    """One run for a JSON document: units in the names, null for what is not known."""
    findings, utilisation = of_run(state, run.key, now), mfu.of_run(state, run)
    device = state.device_of(run)
    precision = utilisation.precision
    return {
        "run": run.key,
        "name": run.name,
        "label": run.label,
        "condition": run.condition,
        "condition_detail": run.status.detail if run.status is not None else "",
        "condition_since_unix_seconds": run.status.since if run.status is not None else None,
        "exit_code": run.status.exit_code if run.status is not None else None,
        "device": device.key if device is not None else None,
        "verdict": verdict(run, findings),
        "worst_severity": findings[0].severity if findings else None,
        "identity": _fields(run.identity),
        "sample": _fields(run.sample),
        "mfu": {
            "flops_per_second": utilisation.flops_per_second,
            "ratio": utilisation.ratio,
            "ceiling_ops_per_second": utilisation.ceiling_ops_per_second,
            "precision": precision,
            "precision_label": PRECISIONS[precision].label if precision is not None else None,
            "source": utilisation.source,
            "lower_bound": utilisation.lower_bound,
            "doubtful": utilisation.doubtful,
            "runs": list(utilisation.runs),
            "unavailable": utilisation.reason,
        },
        "joules_per_step": run.joules_per_step,
        "joules_per_token": run.joules_per_token,
        "findings": [_fields(finding) for finding in findings],
        "happened": [_fields(event) for event in run.happened],
    }


def _fields(event: events.Event | None) -> dict[str, Any] | None:
    """An event's own fields, without those that every event has and the run's key."""
    if event is None:
        return None
    fields: dict[str, Any] = msgspec.to_builtins(event)
    kept = {"time_unix_seconds": event.time} if isinstance(event, events.RunEvent) else {}
    for name in ("type", "time", "monotonic", "source", "run", "device"):
        fields.pop(name, None)
    return {**kept, **fields}

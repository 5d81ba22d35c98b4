"""Count a step once everything that can be known of it is known, in the order of the steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import layout
from .records import CALIBRATION_STEPS, Step, values_of

if TYPE_CHECKING:
    from .recorder import Recorder

DEAD_SCALE = 2.0**-128
"""Below it 1/scale is infinite in float32: one clean batch ruins the weights (pytorch#99640)."""


def settle(recorder: Recorder, step: Step) -> None:
    """Count a step, tell what happened in it, write its record."""
    totals, watched = recorder.totals, step.watched
    totals.clipped += step.clipped
    if step.samples - step.samples == 0.0:  # finite
        totals.samples = step.samples + max(0.0, totals.samples)  # NaN before
    if step.tokens - step.tokens == 0.0:
        totals.tokens = step.tokens + max(0.0, totals.tokens)
    finite = None
    if step.loss_count and not step.flags & layout.PENDING:
        finite = step.loss - step.loss == 0.0
        if not finite:
            _count_bad_loss(recorder, step)
    if step.skipped:
        _count_skip(recorder, step, finite)
    else:
        totals.streak = 0
    if watched is not None:
        step.flags |= layout.HAS_SCALER
        if step.scale != watched.settled_scale or step.scale != totals.scale_lowest:
            _count_scale(recorder, step)
    step.values = values_of(step, recorder)
    if recorder.ring is not None:
        recorder.ring.write(step.values)
    if finite is False or step.skipped or totals.loss_streak or step.scale < DEAD_SCALE:
        recorder.examiner.step_settled(step, finite)
    if finite:
        totals.loss_streak = 0
    for call in step.after or ():
        call(step)


def _count_bad_loss(recorder: Recorder, step: Step) -> None:
    totals = recorder.totals
    totals.loss_streak += 1
    step.flags |= layout.NONFINITE_LOSS
    totals.nonfinite_losses += 1
    totals.first_nonfinite_loss_step = totals.first_nonfinite_loss_step or step.number
    if totals.loss_streak == 1:
        recorder.event("nonfinite-loss", f"loss {step.loss}", step=step.number)


def _count_skip(recorder: Recorder, step: Step, loss_finite: bool | None) -> None:
    """A skip with a finite loss is one of the backward pass."""
    totals, watched = recorder.totals, step.watched
    step.flags |= layout.SKIPPED | layout.FOUND_INF
    totals.streak += 1
    totals.skipped += 1
    totals.last_skip_step = step.number
    totals.longest_skip_streak = max(totals.longest_skip_streak, totals.streak)
    totals.backward_overflows += bool(loss_finite)
    if step.number <= (watched.calibration if watched else CALIBRATION_STEPS):
        totals.calibration_skips += 1
    if totals.streak == 1:
        recorder.event("skip", values=_with_scale(step), step=step.number)


def _count_scale(recorder: Recorder, step: Step) -> None:
    totals, watched, scale = recorder.totals, step.watched, step.scale
    if not scale >= totals.scale_lowest:
        totals.scale_lowest = scale
    if not scale <= totals.scale_highest:
        totals.scale_highest = scale
    before, watched.settled_scale = watched.settled_scale, scale
    if scale > before and not step.skipped:
        step.flags |= layout.GREW
        totals.growths += 1
        totals.last_growth_step = step.number
        recorder.event("growth", values=_with_scale(step), step=step.number)
    elif scale < before:
        step.flags |= layout.BACKED_OFF
        totals.backoffs += 1
        recorder.event("back-off", values=_with_scale(step), step=step.number)


def _with_scale(step: Step) -> dict[str, float]:
    return {} if math.isnan(step.scale) else {"scale": step.scale}

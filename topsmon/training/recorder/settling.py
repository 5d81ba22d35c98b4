"""Count a step once everything that can be known of it is known, in the order of the steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import layout
from .records import CALIBRATION_STEPS, Step

if TYPE_CHECKING:
    from .recorder import Recorder


def settle(recorder: Recorder, step: Step) -> None:
    """Count a step, tell what happened in it, write its record."""
    totals, watched = recorder.totals, step.watched
    totals.clipped += step.clipped
    totals.count_batch(step.samples, step.tokens)
    finite = _count_loss(recorder, step)
    if step.skipped:
        step.flags |= layout.SKIPPED | layout.FOUND_INF
        totals.count_skip(step, watched.calibration if watched else CALIBRATION_STEPS, finite)
        if totals.streak == 1:
            recorder.event("skip", values=_with_scale(step), step=step.number)
    else:
        totals.streak = 0
    if watched is not None:
        step.flags |= layout.HAS_SCALER
        _count_scale(recorder, step)
    recorder.write(step)
    recorder.examiner.step_settled(step, finite)
    for call in step.after or ():
        call(step)


def _count_loss(recorder: Recorder, step: Step) -> bool | None:
    """True if the loss is finite, False if not, None if it is not known."""
    if not step.loss_count or step.flags & layout.PENDING:
        return None
    totals = recorder.totals
    if math.isfinite(step.loss):
        totals.loss_streak = 0
        return True
    totals.loss_streak += 1
    step.flags |= layout.NONFINITE_LOSS
    totals.nonfinite_losses += 1
    totals.first_nonfinite_loss_step = totals.first_nonfinite_loss_step or step.number
    if totals.loss_streak == 1:
        recorder.event("nonfinite-loss", f"loss {step.loss}", step=step.number)
    return False


def _count_scale(recorder: Recorder, step: Step) -> None:
    totals, watched, scale = recorder.totals, step.watched, step.scale
    totals.count_scale(scale)
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

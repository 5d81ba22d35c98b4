"""Rules about a loss that is not finite and about weights that have become so.

Clipping is never advised here: NaN clipped is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from topsmon import events
from topsmon.diagnosis.training.before import exploded, fp16_weights
from topsmon.diagnosis.training.other_ranks import others
from topsmon.diagnosis.training.watched import Watched, found
from topsmon.diagnosis.training.words import counted, names_text
from topsmon.units import plain

FEW = 2
"""So many bad losses are a bad batch where a scaler skips them, more are a trouble of the model."""

REMEDY = (
    "Look there first: eps in log, division and square root, mask constants within the range of "
    "the data type, an all-masked softmax, the input batch; run that block in FP32 (autocast "
    "disabled)."
)


def loss_not_finite(watched: Watched) -> Iterator[events.Finding]:
    """A loss that is NaN or inf: the forward pass or the loss function has made it."""
    sample = watched.sample
    if sample is None:
        return
    totals, recent = sample.totals, sample.window.nonfinite_losses
    count = max(totals.nonfinite_losses, recent, sample.loss_finite is False)
    if not count:
        return
    protected = watched.scaler is not None
    last_bad = sample.loss_finite is False
    over = not last_bad and not recent
    severity: events.Severity = "fail"
    if protected and (count if watched.ended else max(recent, last_bad)) <= FEW:
        severity = "warn"
    if protected and not last_bad and _while_calibrating(sample):
        severity, over = "info", True
    if not protected and not last_bad and not watched.ended:
        severity = "warn"
    is_now = not over and (last_bad or recent > FEW)
    yield found(
        watched,
        code="loss-nan-forward" if protected else "loss-nan-no-scaler",
        severity=watched.severity(severity, over=over),
        word="NAN",
        title=_title(sample, count, is_now=is_now),
        cause=_cause(watched, protected=protected),
        evidence=tuple(_evidence(watched, sample, count)),
        remedy=_remedy(watched, protected=protected),
        basis="torch/amp/grad_scaler.py" if protected else "no loss scaler: nothing skips a step",
    )


INPUT_REMEDY = "Check the data: skip or repair batches with NaN or inf before the model sees them."
DIVERGED = "Lower the learning rate or lengthen the warm-up: the loss grew before it was lost."
MASTER_WEIGHTS = (
    "Keep the trained weights in FP32 (no model.half()) and let autocast compute in FP16 with a "
    "GradScaler, or use BF16: in FP16 an optimizer's eps of 1e-8 is 0 and updates overflow."
)
UNPROTECTED = "Restore a checkpoint from before if weights are NaN; skip such batches yourself."


def _remedy(watched: Watched, *, protected: bool) -> str:
    look = culprit(watched)
    if input_is_bad(look):
        remedy = INPUT_REMEDY
    else:
        known = [] if protected or not fp16_weights(watched) else [MASTER_WEIGHTS]
        if exploded(watched) is not None:
            known.append(DIVERGED)
        if not known or not weights_are_ruined(look):
            known.append(REMEDY)
        remedy = " ".join(known)
    return remedy if protected else f"{UNPROTECTED} {remedy}"


def _while_calibrating(sample: events.RunSample) -> bool:
    """True when a few bad losses at the very start were all skipped, and it went well since."""
    totals = sample.totals
    return (
        totals.nonfinite_losses <= min(FEW, totals.calibration_skips)
        and sample.skip_streak == 0
        and totals.steps > totals.nonfinite_losses
    )


def _title(sample: events.RunSample, count: int, *, is_now: bool) -> str:
    first = sample.totals.first_nonfinite_loss_step
    since = f", first at step {first:,}" if first is not None else ""
    if is_now:
        return f"loss is not finite in {counted(count, 'step')}{since}"
    return f"loss was not finite in {counted(count, 'step')}{since}"


def culprit(watched: Watched) -> events.RunEvent | None:
    """The newest look at where a loss went bad; weights already ruined only say that it did."""
    looks = watched.happened("nonfinite-output")
    telling = [look for look in looks if look.values.get("weights_finite") != 0]
    return next(reversed(telling or looks), None)


def input_is_bad(look: events.RunEvent | None) -> bool:
    """True when the very batch held NaN or inf: the model is not to blame."""
    return look is not None and look.values.get("input_finite") == 0


def weights_are_ruined(look: events.RunEvent | None) -> bool:
    """True when a look came too late: the module's own weights had been ruined before."""
    return look is not None and look.values.get("weights_finite") == 0


def _too_late(watched: Watched, look: events.RunEvent) -> str:
    first = watched.sample.totals.first_nonfinite_loss_step if watched.sample is not None else None
    words = f"the weights were already ruined when looked at (step {look.step:,})"
    if exploded(watched) is not None:
        return f"{words}; the loss exploded before: training diverged"
    began = f" at step {first:,}" if first is not None else ""
    return f"{words}; where it began{began} is not known"


def _cause(watched: Watched, *, protected: bool) -> str:
    look = culprit(watched)
    if look is not None and weights_are_ruined(look):
        return _too_late(watched, look)
    harm = "" if protected else "; nothing skips such a step, so it goes into the weights"
    if input_is_bad(look):
        return f"the input batch is not finite{harm}"
    if look is None or not look.names:
        return f"the forward pass made it{harm}"
    kind = f" ({plain(look.message, 40)})" if look.message else ""
    return f"first bad output: {names_text(look.names, 1)}{kind}{harm}"


def _evidence(watched: Watched, sample: events.RunSample, count: int) -> Iterator[str]:
    totals, window = sample.totals, sample.window
    yield f"{count:,} of {totals.steps:,} losses, {window.nonfinite_losses:,} in the last window"
    look = culprit(watched)
    if look is None:
        yield "which module made it is not known: none was watched in a later bad step"
    elif look.names and weights_are_ruined(look):
        yield f"module {names_text(look.names, 1)} had such weights at step {look.step:,}"
    elif look.names:
        yield f"module {names_text(look.names, 1)} at step {look.step:,}, in forward order"
    elif look.values:
        yield f"seen at step {look.step:,}: {plain(look.message, 300)}"
    else:
        yield f"module not seen: {plain(look.message, 120)}"
    growth = exploded(watched)
    if growth is not None and not input_is_bad(look):
        yield growth
    if watched.scaler is None and fp16_weights(watched):
        yield "trained parameters are FP16, without a master copy in FP32"
    if watched.scaler is not None:
        yield f"{totals.skipped:,} steps skipped by the loss scaler"


def weights_nan(watched: Watched) -> Iterator[events.Finding]:
    """Weights that are not finite never come back by themselves: fatal."""
    event, sample = watched.run.bad_weights(), watched.sample
    if event is None:
        return
    restored = (
        sample is not None
        and not watched.in_window(event.step)
        and sample.loss_finite is True
        and not sample.window.nonfinite_losses
    )
    yield found(
        watched,
        rests_on=event,
        code="weights-nan",
        severity=watched.severity("fail", over=restored),
        word="FAIL",
        title=f"weights {'were' if restored else 'are'} NaN or inf, seen at step {event.step:,}",
        cause="a step with bad gradients went into them; training on is lost time",
        evidence=(f"parameters {names_text(event.names)}",) if event.names else (),
        remedy=(
            f"Stop the run and restore a checkpoint from before step {_last_good_of_all(watched):,}"
            f" whose weights are finite. {_against_bad_steps(watched)}"
        ),
        basis="NaN + x is NaN: no gradient brings a weight back",
    )


def _against_bad_steps(watched: Watched) -> str:
    """What keeps the weights from being ruined again."""
    if watched.scaler is None and fp16_weights(watched):
        return MASTER_WEIGHTS
    if exploded(watched) is not None:
        return DIVERGED
    if watched.scaler is None:
        return "Skip the batch that did it, or use a GradScaler, which skips such steps."
    return "Find why the loss was not finite; a dead loss scale lets a bad step through."


def _last_good_of_all(watched: Watched) -> int:
    """The least of the launch's ranks: the all-reduce carries a bad gradient to all of them."""
    runs = [watched.run, *others(watched.state, watched.run)]
    bad = [(run, event) for run in runs if (event := run.bad_weights()) is not None]
    return min(_last_good(replace(watched, run=run), event) for run, event in bad)


def _last_good(watched: Watched, event: events.RunEvent) -> int:
    """The step before which the weights may have been good: nothing skips a step without scaler."""
    first = watched.sample.totals.first_nonfinite_loss_step if watched.sample is not None else None
    if watched.scaler is not None or first is None or watched.run.recovered(first, event.step):
        return event.step
    return min(first, event.step)

"""Rules about the loss scale itself: dead, low, huge.

A scale halves with every skipped step: from 65536 it is 1 after 16 skips, below 1 from the 17th on,
and 0 at the 166th, since 2^-150 rounds to 0 in FP32.
"""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.diagnosis.training.watched import Watched, found, known
from topsmon.diagnosis.training.words import counted, scale_text

DEAD = 2.0**-128
"""From here down 1/scale is inf in FP32, whose largest value is just below 2^128."""
DYING = 2.0**-100
LOW = 1.0
LOW_OF_SMALL = 2.0**-16
"""For a first scale below 1, which someone chose: as far below it as 1 is below 65536."""
FALLING_STREAK = 3
"""A scale at the least that its scaler allows is a trouble once steps are skipped there."""

HUGE = 2.0**64
HIGH, HIGH_OF_FIRST = 2.0**24, 256.0
"""High is what exceeds both: a first scale of 2^24 that someone chose is not."""
HEALTHY_GROWTHS = 3
"""A scale that has found its level overflows about once in a growth interval."""
LEAST_QUIET_STEPS = 200

RESTORE = (
    "Stop the run, restore a checkpoint from before the collapse and start it with a new "
    "GradScaler; do not wait, it cannot recover. As a guard abort when the scale is below 1."
)
CLEAN_BATCH = (
    "the next clean batch ruins the weights: 1/scale is inf, the check for inf tests the "
    "gradients before that factor, so the optimizer steps with NaN"
)


def scale_dead(watched: Watched) -> Iterator[events.Finding]:
    """A scale whose reciprocal is inf: fatal."""
    sample = watched.sample
    if sample is None or watched.scaler is None:
        return
    scale, lowest = known(sample.scale), known(sample.totals.scale_lowest)
    dead = scale is not None and scale <= DEAD
    was = lowest is not None and lowest <= DEAD
    if not dead and not was and (scale is None or scale >= DYING):
        return
    if not dead and not was:
        yield found(
            watched,
            code="scale-dead",
            severity="warn",
            word="SCALE",
            title=f"loss scale {scale_text(scale)} is about to die",
            cause=f"at 2^-128 1/scale becomes inf, then {CLEAN_BATCH}",
            evidence=_evidence(watched, sample),
            remedy=RESTORE,
            basis=BASIS,
        )
        return
    yield found(
        watched,
        code="scale-dead",
        severity=watched.severity("fail", over=not dead),
        word="FAIL",
        title=(
            f"loss scale is dead: {scale_text(scale)}"
            if dead
            else f"loss scale was dead: {scale_text(lowest)}"
        ),
        cause=CLEAN_BATCH,
        evidence=_evidence(watched, sample),
        remedy=RESTORE,
        basis=BASIS,
    )


BASIS = "torch/amp/grad_scaler.py, unscale_; pytorch#99640, #96755"


def scale_low(watched: Watched) -> Iterator[events.Finding]:
    """A scale below 1: the gradients would have to be made smaller, no scaler is for that."""
    sample, scaler = watched.sample, watched.scaler
    if sample is None or scaler is None:
        return
    scale, lowest = known(sample.scale), known(sample.totals.scale_lowest)
    limit = _low_limit(scaler)
    least = known(scaler.min_scale)
    stuck = (
        scale is not None
        and least is not None
        and scale <= least
        and sample.skip_streak >= FALLING_STREAK
    )
    low = scale is not None and scale < limit
    if low and scale is not None and scale <= DEAD:
        return  # said by scale_dead
    if not low and not stuck and (lowest is None or lowest >= limit or lowest <= DEAD):
        return
    over = not low and not stuck
    if stuck and not low:
        title = f"loss scale {scale_text(scale)} is the least its scaler allows"
    else:
        title = f"loss scale {'was' if over else 'is'} {scale_text(lowest if over else scale)}"
        title += f", below {scale_text(limit)}"
    yield found(
        watched,
        code="scale-low",
        severity=watched.severity("fail", over=over),
        word="SCALE",
        title=title,
        cause="gradients overflow FP16 even without being scaled up, or the loss is not finite",
        evidence=_evidence(watched, sample),
        remedy=(
            "Use BF16 autocast, which needs no scaler, and check the loss function; restart from a "
            "checkpoint before the scale reaches 2^-128."
        ),
        basis="pytorch#99640",
    )


def _low_limit(scaler: events.Scaler) -> float:
    first = known(scaler.init_scale)
    if first is None or first <= 0 or first >= LOW:
        return LOW
    return first * LOW_OF_SMALL


def scale_huge(watched: Watched) -> Iterator[events.Finding]:
    """A scale that grows unchecked: nothing overflows, as if there were no gradients."""
    sample, scaler = watched.sample, watched.scaler
    scale = known(sample.scale) if sample is not None else None
    if sample is None or scaler is None or scale is None:
        return
    first = known(scaler.init_scale) or 0.0
    high = scale > max(HIGH, HIGH_OF_FIRST * first) and not _found_its_level(sample, scaler)
    if scale < HUGE and not high:
        return
    yield found(
        watched,
        code="scale-huge",
        severity="warn",
        word="SCALE",
        title=f"loss scale is {scale_text(scale)}, absurdly high",
        cause="no gradient overflows: they are tiny or zero, or nothing is computed in FP16",
        evidence=_evidence(watched, sample),
        remedy=(
            "Look at the gradient norm and the loss: parts of the model not reached by backward, a "
            "constant loss, a mean over very many elements. In BF16 or FP32 drop the scaler."
        ),
        basis=(
            "pytorch#98828: growth had no bound before torch 2.1, it now stops at 2^127; high is "
            "above 2^24 and above 256 x init_scale without a back-off in three growth intervals"
        ),
    )


def _found_its_level(sample: events.RunSample, scaler: events.Scaler) -> bool:
    """True when the scale still meets overflows: then it is high because the losses are tiny."""
    last = sample.totals.last_skip_step
    quiet = max(HEALTHY_GROWTHS * (scaler.growth_interval or 0), LEAST_QUIET_STEPS)
    return last is not None and sample.step - last <= quiet


def _evidence(watched: Watched, sample: events.RunSample) -> tuple[str, ...]:
    totals = sample.totals
    lines = [
        (
            f"{counted(totals.skipped, 'step')} of {totals.steps:,} skipped, "
            f"the last {sample.skip_streak:,} in a row"
        )
    ]
    if totals.scale_lowest is not None or totals.scale_highest is not None:
        low, high = scale_text(totals.scale_lowest), scale_text(watched.run.scale_highest)
        lines.append(f"scale between {low} and {high} so far")
    return tuple(lines)

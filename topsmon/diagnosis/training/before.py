"""What a run shows of the time before its loss was lost."""

from __future__ import annotations

import statistics

from topsmon.diagnosis.training.watched import Watched, known
from topsmon.diagnosis.training.words import number_text

LOOK_BACK = 20
"""Buckets of the history before the first bad loss."""
EXPLODED = 100.0
"""Two orders of magnitude above the median of those buckets."""


def exploded(watched: Watched) -> str | None:
    """How the loss grew before it was not finite, None where it did not or is not known."""
    sample = watched.sample
    first = sample.totals.first_nonfinite_loss_step if sample is not None else None
    if first is None:
        return None
    buckets = sorted(watched.run.buckets.values(), key=lambda bucket: bucket.first_step)
    losses = [
        (min(bucket.first_step + bucket.steps, first) - 1, loss)
        for bucket in buckets
        if bucket.first_step < first and (loss := known(bucket.loss_mean)) is not None
    ][-LOOK_BACK:]
    if len(losses) < 2:
        return None
    usual, (step, last) = statistics.median(loss for _, loss in losses[:-1]), losses[-1]
    if usual <= 0 or last < EXPLODED * usual:
        return None
    return f"loss rose from about {number_text(usual)} to {number_text(last)} at step {step:,}"


def fp16_weights(watched: Watched) -> bool:
    """True when most of the trained parameters are FP16 themselves."""
    types = watched.identity.parameter_types
    total = sum(count for count in types.values() if count > 0)
    half = sum(count for name, count in types.items() if name.rpartition(".")[2] == "float16")
    return total > 0 and half * 2 > total

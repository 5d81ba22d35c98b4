"""A step while it is gathered, the run's counters, and both as the values of a record."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import layout

if TYPE_CHECKING:
    from .recorder import Recorder

NAN = float("nan")
CALIBRATION_STEPS = 25
LOSS, NORM, FLAGS = (layout.RECORD_NAMES.index(name) for name in ("loss", "gradient_norm", "flags"))


class Step:
    """One step tried. NaN and -1 are "not known"; times in seconds, memory in bytes.

    The loss is the sum over backward passes, whose gradient the step takes: loops that accumulate
    gradients divide each by their number. `closure`: an optimizer has called its closure.
    `device_losses`, `device_clips` (norm, max_norm, divisor), `device_rate`, `found` and
    `scale_tensors` hold tensors whose values only their device knows so far; `away` is True if
    there are any, `waiting` while they are being read. `values` is set once the step has been
    counted and written; `after` are called then.
    """

    # Defaults of the class, not set in each object: there is a new one each step.
    number = 0
    time = seconds = NAN
    loss = NAN
    loss_sum = 0.0
    loss_count = 0
    backwards = 0
    closure = False
    norm = max_norm = NAN
    clipped = 0
    rate = NAN
    samples = tokens = wait = NAN
    memory = peak = NAN
    flags = 0
    bypassed = False
    skipped = False
    watched: Any = None
    scale = NAN
    tracker = -1
    away = waiting = False
    device_losses: list[Any] | None = None
    device_clips: list[tuple[Any, float, float]] | None = None
    device_rate: Any = None
    found: list[Any] | None = None
    scale_tensors: tuple[Any, Any] | None = None
    values: list[Any] | None = None
    after: list[Callable[[Step], None]] | None = None

    def clipped_at(self, norm: float, max_norm: float, divisor: float) -> None:
        """Note the norm that a clip call found, and its true value: the `divisor`th part of it.

        Of several calls the highest counts; a norm that is NaN is told as infinite.
        """
        if not norm + 1e-6 <= max_norm:  # clip_grad_norm_ multiplies by max_norm / (norm + 1e-6)
            self.flags |= layout.CLIPPED
            self.clipped += 1
        true = norm / divisor if divisor else NAN
        true = true if norm == norm else math.inf  # noqa: PLR0124 - NaN
        if not self.norm >= true:
            self.norm, self.max_norm = true, max_norm


class Totals:
    """Counters from the first step on, in the words of `layout.RECORD_FIELDS`."""

    def __init__(self) -> None:
        self.streak = self.loss_streak = 0
        self.skipped = self.growths = self.backoffs = 0
        self.calibration_skips = self.longest_skip_streak = 0
        self.last_skip_step = self.last_growth_step = 0
        self.nonfinite_losses = self.first_nonfinite_loss_step = 0
        self.backward_overflows = 0
        self.clip_calls = self.clipped = self.scaled_clips = 0
        self.bypasses = self.scheduler_steps = 0
        self.scale_lowest = self.scale_highest = NAN
        self.tokens = self.samples = NAN


def calibration_steps(init_scale: float) -> int:
    """Return how many steps a scaler may need to find its scale: log2 of the first one, and 5."""
    if not 0.0 < init_scale < math.inf:
        return CALIBRATION_STEPS
    return max(CALIBRATION_STEPS, int(math.log2(init_scale)) + 5)


def values_of(step: Step, recorder: Recorder) -> list[Any]:
    """Return a record in the order of `layout.RECORD_NAMES`."""
    totals = recorder.totals
    return [
        step.number,
        step.time,
        step.seconds,
        step.loss,
        step.scale,
        step.norm,
        step.max_norm,
        step.rate,
        step.samples,
        step.tokens,
        step.wait,
        step.memory,
        step.peak,
        step.tracker,
        step.flags,
        totals.streak,
        step.backwards,
        totals.skipped,
        totals.growths,
        totals.backoffs,
        totals.calibration_skips,
        totals.longest_skip_streak,
        totals.last_skip_step,
        totals.last_growth_step,
        totals.nonfinite_losses,
        totals.first_nonfinite_loss_step,
        totals.backward_overflows,
        totals.clip_calls,
        totals.clipped,
        totals.scaled_clips,
        totals.bypasses,
        totals.scheduler_steps,
        recorder.slots.dropped,
        totals.scale_lowest,
        totals.scale_highest,
        totals.tokens,
        totals.samples,
        recorder.seconds,
        recorder.errors,
    ]

"""Rules about skipped steps: how many are too many, and which are normal."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.diagnosis.training.other_ranks import rank_word, with_bad_loss
from topsmon.diagnosis.training.watched import Watched, found
from topsmon.diagnosis.training.words import counted, scale_text
from topsmon.units import percent

STREAK_WARN, STREAK_FAIL = 10, 20
RATE_WARN, RATE_FAIL = 0.05, 0.20
"""A healthy run skips about once in a growth interval: 0.05 % with the default of 2000."""
FEWEST_SKIPS = 5
"""Fewer are no rate."""
PROBES_WARN, PROBES_FAIL = 2.0, 4.0
"""A short growth interval skips often by its nature: these multiples of 1 / growth_interval."""

BASIS = "torch/amp/grad_scaler.py: a skip multiplies the scale by backoff_factor"
NONFINITE_LOSS = (
    "The loss itself is not finite: find where it becomes so; no setting of the scaler and no "
    "clipping helps."
)


def calibrating(watched: Watched) -> Iterator[events.Finding]:
    """Skips at the start of a run, then success: the scaler has found its scale. Normal."""
    sample = watched.sample
    if sample is None or watched.scaler is None:
        return
    totals = sample.totals
    if not totals.skipped or totals.skipped != totals.calibration_skips or totals.nonfinite_losses:
        return
    success = sample.skip_streak == 0 and totals.steps > totals.skipped
    if not (success or (watched.calibrates and not watched.ended)):
        return
    if success and not watched.ended and sample.step > sample.window.steps:
        return  # long over
    state = f"found at {scale_text(sample.scale)}" if success else "still searched"
    yield found(
        watched,
        code="calibrating",
        severity="info",
        word="note",
        title=f"{counted(totals.skipped, 'step')} skipped at the start, loss scale {state}",
        cause="normal: the scaler begins high and halves its scale until nothing overflows",
        basis="torch/amp/grad_scaler.py, init_scale",
    )


def growth_probe(watched: Watched) -> Iterator[events.Finding]:
    """Single skips right after the scale grew: the scaler tries and takes back. Normal."""
    sample = watched.sample
    if sample is None or watched.scaler is None:
        return
    window = sample.window
    if not window.skips_after_growth or window.skips_after_growth != window.skipped:
        return
    if sample.skip_streak > 1 or _too_often(watched, sample) is not None:
        return
    yield found(
        watched,
        code="growth-probe",
        severity="info",
        word="note",
        title=f"{counted(window.skipped, 'step')} skipped right after the scale grew",
        cause="normal: about one skip in a growth interval keeps the scale as high as it can be",
        basis="torch/amp/grad_scaler.py, growth_interval",
    )


def consecutive_skips(watched: Watched) -> Iterator[events.Finding]:
    """Many skips in a row: no step is learnt from, the scale halves each time."""
    sample = watched.sample
    if sample is None or watched.scaler is None or watched.calibrates:
        return
    totals = sample.totals
    now, longest = sample.skip_streak, totals.longest_skip_streak
    over = now < STREAK_WARN
    streak = longest if over or watched.ended else now
    maybe_calibration = streak <= totals.calibration_skips and not totals.nonfinite_losses
    if streak < STREAK_WARN or (over and maybe_calibration):
        return
    worst: events.Severity = "fail" if streak >= STREAK_FAIL else "warn"
    yield found(
        watched,
        code="consecutive-skips",
        severity=watched.severity(worst, over=over),
        word="SKIP",
        title=f"{streak:,} steps in a row {'were' if over else 'are'} skipped{_because(watched)}",
        cause=_cause(watched, sample),
        evidence=_evidence(watched, sample),
        remedy=_remedy(watched, sample),
        basis=BASIS,
    )


def skip_rate(watched: Watched) -> Iterator[events.Finding]:
    """Too many skips among the last steps, though not in a row."""
    sample = watched.sample
    if sample is None or watched.scaler is None or watched.calibrates:
        return
    severity = _too_often(watched, sample)
    over = severity is None
    if over:
        severity = _too_often_ever(watched, sample)
    if severity is None or sample.skip_streak >= STREAK_WARN:
        return
    skipped, steps = _ever(watched, sample) if over else _recent(watched, sample)
    yield found(
        watched,
        code="skip-rate",
        severity=watched.severity(severity, over=over),
        word="SKIP",
        title=(
            f"{skipped:,} of {'all' if over else 'the last'} {steps:,} steps "
            f"{'were ' if over else ''}skipped ({percent(skipped / steps)}){_because(watched)}"
        ),
        cause=_cause(watched, sample),
        evidence=_evidence(watched, sample),
        remedy=_remedy(watched, sample),
        basis="expected is about 1 / growth_interval; chosen limits: 5 % and 20 %",
    )


def _recent(watched: Watched, sample: events.RunSample) -> tuple[int, int]:
    """Skips and steps of the window, those of the calibration left out."""
    window = sample.window
    begins = sample.step - window.steps
    if begins >= watched.calibration_steps:
        return window.skipped, window.steps
    skipped = window.skipped - sample.totals.calibration_skips
    steps = min(window.steps, sample.step - int(watched.calibration_steps))
    return max(0, skipped), max(0, steps)


def _ever(watched: Watched, sample: events.RunSample) -> tuple[int, int]:
    totals = sample.totals
    steps = totals.steps - int(watched.calibration_steps)
    return max(0, totals.skipped - totals.calibration_skips), max(0, steps)


def _too_often(watched: Watched, sample: events.RunSample) -> events.Severity | None:
    return _judge(watched, *_recent(watched, sample))


def _too_often_ever(watched: Watched, sample: events.RunSample) -> events.Severity | None:
    return _judge(watched, *_ever(watched, sample))


def _judge(watched: Watched, skipped: int, steps: int) -> events.Severity | None:
    interval = watched.scaler.growth_interval if watched.scaler is not None else None
    probes = 1 / interval if interval and interval > 0 else 0.0
    if skipped < FEWEST_SKIPS or steps < skipped:
        return None
    share = skipped / steps
    if share >= max(RATE_FAIL, PROBES_FAIL * probes):
        return "fail"
    return "warn" if share >= max(RATE_WARN, PROBES_WARN * probes) else None


def _because(watched: Watched) -> str:
    other = with_bad_loss(watched.state, watched.run)
    return f" because of {rank_word(other)}" if other is not None else ""


def _cause(watched: Watched, sample: events.RunSample) -> str:
    other = with_bad_loss(watched.state, watched.run)
    if other is not None:
        return (
            f"{rank_word(other)}: its loss is not finite in the same steps, and all ranks share "
            "their gradients"
        )
    if sample.window.nonfinite_losses or sample.loss_finite is False:
        return "the loss is not finite"
    if sample.loss_finite:
        return "gradients are not finite although the loss is"
    return "gradients are not finite"


def _remedy(watched: Watched, sample: events.RunSample) -> str:
    other = with_bad_loss(watched.state, watched.run)
    if other is not None:
        return f"Nothing to mend here: see {rank_word(other)}."
    if sample.window.nonfinite_losses or sample.loss_finite is False:
        return NONFINITE_LOSS
    return (
        "Lower the learning rate, clip after scaler.unscale_(optimizer), raise growth_interval or "
        "lower growth_factor; inspect the parameter that is named first."
    )


def _evidence(watched: Watched, sample: events.RunSample) -> tuple[str, ...]:
    window, totals = sample.window, sample.totals
    lines = [
        (
            f"{window.skipped:,} of the last {window.steps:,} steps skipped, "
            f"{window.nonfinite_losses:,} with a loss that is not finite"
        ),
        (
            f"{totals.skipped:,} of {totals.steps:,} since the start, "
            f"{totals.calibration_skips:,} of them while the scale was searched"
        ),
        f"loss scale {scale_text(sample.scale)}",
    ]
    scaler = watched.scaler
    if scaler is not None and scaler.growth_interval:
        lines.append(f"growth_interval {scaler.growth_interval:,}")
    return tuple(lines)

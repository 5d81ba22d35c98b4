"""Rules about gradients: overflow in the backward pass, spikes, clipping, underflow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from topsmon import events
from topsmon.diagnosis.training.other_ranks import with_bad_loss
from topsmon.diagnosis.training.skips import FEWEST_SKIPS, RATE_WARN
from topsmon.diagnosis.training.watched import Watched, found, known
from topsmon.diagnosis.training.words import (
    counted,
    layer_of,
    names_text,
    number_text,
    scale_text,
)
from topsmon.units import percent, plain

OVERFLOW_STREAK = 3
FEW_NAMES = 4
SAME_PARAMETERS, SAME_SKIPS = 3, 3
SPIKE_DEVIATIONS, SPIKE_TIMES, SPIKE_STEPS = 10.0, 3.0, 50
"""A spike is above the median by so many median absolute deviations *and* times; before so many
steps the median is none, and large norms in the first of them are the warm-up's."""
CLIPPED_ALWAYS, CLIP_CALLS = 0.95, 50
ZEROS_MANY, ZEROS_ALL, ZEROS_FALL = 0.5, 0.999, 0.5
"""ReLU, sparse embeddings and frozen layers make zeros too, but no larger scale removes those."""


def backward_overflow(watched: Watched) -> Iterator[events.Finding]:
    """A finite loss and gradients that are not: which parameters, and where it likely began."""
    sample = watched.sample
    if sample is None or watched.scaler is None or not sample.totals.backward_overflows:
        return
    event = watched.run.latest("nonfinite-gradients")
    if event is not None and not watched.in_window(event.step):
        event = None
    if with_bad_loss(watched.state, watched.run) is not None:
        return  # they came from another rank
    alarm = _overflows_too_often(watched, sample)
    if event is None and not alarm:
        return
    skipped, bad = sample.totals.backward_overflows, _bad_words(event)
    yield found(
        watched,
        code="backward-overflow",
        severity="warn" if alarm else "info",
        word="SKIP",
        title=f"non-finite gradients in the backward pass{bad}",
        cause=_origin(event) or "the loss is finite, the gradients are not",
        evidence=tuple(_overflow_evidence(event, skipped, sample)),
        remedy=(
            "Lower the learning rate, clip after scaler.unscale_(optimizer), lower init_scale or "
            "growth_factor; run the named layer in FP32."
            if alarm
            else ""
        ),
        basis="one bad gradient poisons the gradients of all layers before it",
    )


def _overflows_too_often(watched: Watched, sample: events.RunSample) -> bool:
    window, totals = sample.window, sample.totals
    if watched.calibrates:
        return False
    if sample.loss_finite and sample.skip_streak >= OVERFLOW_STREAK:
        return True
    steps, overflows = window.steps, window.skipped - window.nonfinite_losses
    if watched.ended:
        steps, overflows = totals.steps, totals.backward_overflows
    if sample.step - steps < watched.calibration_steps:
        overflows -= totals.calibration_skips
    probes = window.skips_after_growth
    if watched.ended:  # each growth has been tried out, and may have cost one step
        probes = max(probes, min(totals.growths, overflows))
    overflows -= probes
    return steps > 0 and overflows >= FEWEST_SKIPS and overflows / steps >= RATE_WARN


def _bad_words(event: events.RunEvent | None) -> str:
    if event is None:
        return ""
    bad, all_of = event.values.get("bad"), event.values.get("parameters")
    if known(bad) is None or known(all_of) is None:
        return f": {names_text(event.names, 2)}" if event.names else ""
    few = 0 < len(event.names) <= FEW_NAMES and bad is not None and bad <= FEW_NAMES
    named = f" ({names_text(event.names)})" if few else ""
    return f": {bad:.0f} of {all_of:.0f} parameters{named}"


def _origin(event: events.RunEvent | None) -> str:
    """The last bad layer in forward order: backward comes to it first. "" where names are cut."""
    if event is None or not event.names:
        return ""
    bad = known(event.values.get("bad"))
    if bad is not None and bad > len(event.names):
        return ""
    layer = plain(layer_of(event.names[-1]), 60)
    return f"likely origin: {layer}, the last bad layer in forward order, or the loss after it"


def _overflow_evidence(
    event: events.RunEvent | None, skipped: int, sample: events.RunSample
) -> Iterator[str]:
    yield f"{counted(skipped, 'step')} skipped with a finite loss, loss scale " + scale_text(
        sample.scale
    )
    if event is not None and event.names:
        yield f"step {event.step:,}: {names_text(event.names, 6)}"
    if event is None:
        yield "no parameter was named"


def one_parameter_bad(watched: Watched) -> Iterator[events.Finding]:
    """The same few parameters in several skips: one layer is to blame, not the scale."""
    sample = watched.sample
    if sample is None or watched.scaler is None or watched.calibrates:
        return
    window = sample.window
    if with_bad_loss(watched.state, watched.run) is not None:
        return
    searching = window.skips_after_growth
    if sample.step - window.steps < watched.calibration_steps:
        searching += sample.totals.calibration_skips
    if window.skipped and searching >= window.skipped:
        return  # the weakest parameter is always the first to overflow when the scale grows
    named: Counter[tuple[str, ...]] = Counter()
    for event in {event.step: event for event in watched.happened("nonfinite-gradients")}.values():
        few = 0 < len(event.names) <= SAME_PARAMETERS
        complete = event.values.get("bad", len(event.names)) <= len(event.names)
        if few and complete and watched.in_window(event.step):
            named[tuple(sorted(event.names))] += 1
    names, times = named.most_common(1)[0] if named else ((), 0)
    if times < SAME_SKIPS:
        return
    yield found(
        watched,
        code="one-parameter-bad",
        severity="warn",
        word="SKIP",
        title=f"{names_text(names)} had non-finite gradients in {times} skipped steps",
        cause="it is always the same: this layer, not the loss scale, is to blame",
        evidence=(f"{window.skipped:,} of the last {window.steps:,} steps skipped",),
        remedy=f"Run {plain(layer_of(names[-1]), 60)} in FP32 (autocast disabled around it).",
        basis=f"same {SAME_PARAMETERS} or fewer parameters in {SAME_SKIPS} or more skips",
    )


def clip_always(watched: Watched) -> Iterator[events.Finding]:
    """Clipping that bites at almost every step sets the step's length instead of the optimizer."""
    sample = watched.sample
    if sample is None or sample.totals.scaled_clips:
        return
    window, ratio = sample.window, known(sample.window.clipped_ratio)
    if sample.loss_finite is False or sample.gradient_norm_finite is False:
        return  # NaN is clipped to NaN
    if ratio is None or ratio < CLIPPED_ALWAYS or window.clip_calls < CLIP_CALLS:
        return
    limit, median = known(sample.clip_max_norm), known(window.gradient_norm_median)
    if sample.totals.clip_calls > sample.totals.steps:
        return  # each call may have its own limit, and a step counts where one of them bites
    if limit is not None and median is not None and median <= limit:
        return  # the limit of the newest step is not that which bit
    evidence = [f"{percent(ratio, 0)} of {window.clip_calls:,} clip calls changed the gradients"]
    # Several optimizers may be clipped in turn, each with a limit of its own.
    if limit is not None and median is not None and len(watched.identity.optimizers) <= 1:
        evidence.append(f"median norm {number_text(median)}, max_norm {number_text(limit)}")
    yield found(
        watched,
        code="clip-always",
        severity="info",
        word="note",
        title=f"gradients are clipped in {percent(ratio, 0)} of the steps",
        cause="max_norm sets the length of almost every step; some recipes intend that",
        evidence=tuple(evidence),
        remedy="If it is not intended: raise max_norm or lower the learning rate.",
        basis=f"chosen limit: {CLIPPED_ALWAYS:.0%} of the window",
    )


def gradient_spike(watched: Watched) -> Iterator[events.Finding]:
    """A gradient norm far above its median."""
    sample = watched.sample
    if sample is None or sample.totals.scaled_clips:
        return
    window = sample.window
    median = known(window.gradient_norm_median)
    deviation = known(window.gradient_norm_deviation)
    newest, highest = known(sample.gradient_norm), known(window.gradient_norm_highest)
    loss_bad = sample.loss_finite is False or window.nonfinite_losses
    if median is None or deviation is None or window.steps < SPIKE_STEPS or loss_bad:
        return
    limit = max(median + SPIKE_DEVIATIONS * deviation, SPIKE_TIMES * median)
    now = newest is not None and newest > limit
    warm_up = sample.step - window.steps < SPIKE_STEPS
    norm = newest if now or warm_up else highest
    if norm is None or norm <= limit or limit <= 0:
        return
    most = known(sample.clip_max_norm)
    clipped = most is not None and norm > most
    yield found(
        watched,
        code="gradient-spike",
        severity="info" if clipped or not now else "warn",
        word="GRAD",
        title=f"gradient norm {'is' if now else 'was'} {number_text(norm)}, "
        f"{norm / median:.0f} times its median"
        if median > 0
        else f"gradient norm {'is' if now else 'was'} {number_text(norm)}",
        cause="clipping took it back" if clipped else "one batch pulls far more than the others",
        evidence=(
            (
                f"median {number_text(median)}, median deviation {number_text(deviation)} over "
                f"{counted(window.steps, 'step')}"
            ),
        ),
        remedy=_spike_remedy(most, clipped=clipped),
        basis=f"above median + {SPIKE_DEVIATIONS:.0f} median absolute deviations",
    )


def _spike_remedy(most: float | None, *, clipped: bool) -> str:
    if clipped:
        return ""
    if most is None:
        return (
            "Clip: torch.nn.utils.clip_grad_norm_ after scaler.unscale_(optimizer); lengthen the "
            "warm-up, look at that batch."
        )
    return "Lower max_norm or the learning rate, lengthen the warm-up, look at that batch."


def underflow(watched: Watched) -> Iterator[events.Finding]:
    """FP16 gradients that are zero because they are too small: no NaN, the weights do not move."""
    zeros = _zero_samples(watched)
    if not zeros:
        return
    scale, ratio = max(zeros, key=lambda pair: pair[1])
    later = [low for above, low in zeros if scale is not None and (above or 0) > scale]
    best = min(later, default=None)
    falls = best is not None and best <= ZEROS_FALL * ratio
    unscaled = watched.scaler is None
    if ratio <= ZEROS_MANY or not (falls or unscaled or ratio >= ZEROS_ALL):
        return
    current = known(watched.sample.scale) if watched.sample is not None else None
    over = falls and current is not None and scale is not None and current > scale
    where = "without a loss scaler" if scale is None else f"at loss scale {scale_text(scale)}"
    evidence = [f"{percent(ratio, 0)} of sampled FP16 gradients are zero {where}"]
    if best is not None:
        evidence.append(f"{percent(best, 0)} at a higher scale")
    yield found(
        watched,
        code="underflow",
        severity=watched.severity("warn", over=over),
        word="GRAD",
        title=f"{percent(ratio, 0)} of FP16 gradients {'were' if over else 'are'} zero {where}",
        cause=(
            "they underflow: they are below 2^-24, the smallest FP16 number"
            if falls
            else "they may underflow (below 2^-24); ReLU, sparse and frozen layers make zeros too"
        ),
        evidence=tuple(evidence),
        remedy=(
            "Use torch.amp.GradScaler, or BF16 autocast."
            if unscaled
            else "Use a larger init_scale (the default is 65536), or BF16 autocast."
        ),
        basis="FP16's smallest subnormal number is 2^-24",
    )


def _zero_samples(watched: Watched) -> list[tuple[float | None, float]]:
    """Samples of (scale, share of zeros): from events, and from the totals of a long run."""
    zeros = []
    for event in watched.happened("gradient-zeros"):
        share = known(event.values.get("ratio"))
        if share is not None:
            zeros.append((known(event.values.get("scale")), share))
    totals = watched.sample.totals if watched.sample is not None else None
    share = known(totals.gradient_zero_ratio) if totals is not None else None
    if totals is not None and share is not None:
        scale = known(totals.gradient_zero_scale)
        zeros.append((scale, share))
        later = known(totals.gradient_zero_ratio_later)
        highest = known(totals.scale_highest)
        if later is not None and scale is not None and highest is not None and highest > scale:
            zeros.append((highest, later))
    return zeros

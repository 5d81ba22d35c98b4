"""Rules about mixed precision put together wrongly: order of calls, missing or useless scalers."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.diagnosis.training.watched import Watched, found, known
from topsmon.diagnosis.training.words import counted, number_text, scale_text, times_text

MANY_SKIPS = 10
"""From so many skips on, a scheduler may be off by the one step that is under way."""
PLAIN_SCALERS = frozenset({"GradScaler"})
"""Class names of scalers that refuse FP16 gradients; ShardedGradScaler allows them."""
SCALE_FREE = ("adam", "rmsprop", "rprop", "adagrad", "adadelta", "adafactor", "lion", "lamb")
"""Parts of class names, in lower case, of optimizers that divide by the gradient's own size or take
its sign: a gradient times a constant gives the same step but for eps."""


def clip_before_unscale(watched: Watched) -> Iterator[events.Finding]:
    """Clipping of gradients that still carry the scale: exact, seen at the call."""
    event, sample = watched.run.latest("scaled-clip"), watched.sample
    count = sample.totals.scaled_clips if sample is not None else 0
    if not count and event is None:
        return
    scale = known(event.values.get("scale")) if event is not None else None
    if scale is not None and scale <= 1:
        return  # nothing was scaled up
    norm = known(event.values.get("norm")) if event is not None else None
    limit = known(event.values.get("max_norm")) if event is not None else None
    yield found(
        watched,
        rests_on=event,
        code="clip-before-unscale",
        severity="fail",
        word="GRAD",
        title="gradients are clipped before they are unscaled",
        cause=_slowdown(watched.identity, norm, limit, scale),
        evidence=tuple(_clip_evidence(count, norm, limit, scale)),
        remedy="Call scaler.unscale_(optimizer) before clip_grad_norm_.",
        basis="PyTorch AMP examples, gradient clipping; lightning#9330, pytorch/examples#1196",
    )


def _slowdown(
    identity: events.Run, norm: float | None, limit: float | None, scale: float | None
) -> str:
    """The gradient should be min(norm / scale, max_norm) long and is max_norm / scale."""
    times = "far"
    if norm is not None and limit is not None and scale is not None and 0 < limit < norm:
        times = times_text(min(scale, norm / limit))
    adaptive = _scale_free(identity)
    if adaptive:
        return f"gradients are {times} too small; {_hardly_change(adaptive)}"
    if any(map(_is_scale_free, identity.optimizers)):
        return f"gradients are {times} too small"
    if times == "far":
        return "training stalls silently: no NaN, steps far too small"
    return f"training stalls silently: steps are {times} too small"


def _is_scale_free(optimizer: str) -> bool:
    return any(part in optimizer.lower() for part in SCALE_FREE)


def _scale_free(identity: events.Run) -> str:
    """Class names of a run's optimizers where none takes steps as long as its gradients are."""
    names = list(dict.fromkeys(identity.optimizers))
    return " and ".join(names[:2]) if all(map(_is_scale_free, names)) else ""


def _hardly_change(optimizers: str) -> str:
    return f"steps of {optimizers} hardly change, but clipping, eps and the norms shown do"


def _clip_evidence(
    count: int, norm: float | None, limit: float | None, scale: float | None
) -> Iterator[str]:
    if count:
        yield f"{counted(count, 'clip call')} found scaled gradients"
    if norm is not None and scale:
        yield (
            f"norm {number_text(norm)} at loss scale {scale_text(scale)}: "
            f"the true norm is {number_text(norm / scale)}"
        )
    if limit is not None and scale:
        yield f"max_norm {number_text(limit)} leaves a norm of {number_text(limit / scale)}"


def bypass(watched: Watched) -> Iterator[events.Finding]:
    """An optimizer stepped directly although its gradients are scaled."""
    event, sample = watched.run.latest("bypass"), watched.sample
    count = sample.totals.bypasses if sample is not None else 0
    if not count and event is None:
        return
    scale = sample.scale if sample is not None else None
    if scale is None and event is not None:
        scale = event.values.get("scale")
    factor = known(scale)
    times = times_text(factor) if factor is not None else "far"
    adaptive = _scale_free(watched.identity)
    mixed = not adaptive and any(map(_is_scale_free, watched.identity.optimizers))
    harm = f"{'gradients' if adaptive or mixed else 'steps'} are {times} too large"
    if adaptive:
        harm += f"; {_hardly_change(adaptive)}"
    yield found(
        watched,
        rests_on=event,
        code="bypass",
        severity="fail",
        word="AMP",
        title="optimizer.step() is called with scaled gradients",
        cause=f"{harm}, and nothing skips a bad one",
        evidence=(counted(max(count, 1), "step") + " outside scaler.step()",),
        remedy="Call scaler.step(optimizer), then scaler.update(), instead of optimizer.step().",
        basis="torch/amp/grad_scaler.py; Applio#860",
    )


def fp16_no_scaler(watched: Watched) -> Iterator[events.Finding]:
    """FP16 autocast without a loss scaler: small gradients become zero."""
    sample = watched.sample
    if sample is None or sample.autocast != "fp16" or watched.scaler is not None:
        return
    disabled = watched.identity.scaler is not None
    yield found(
        watched,
        code="fp16-no-scaler",
        severity="warn",
        word="AMP",
        title="FP16 autocast without a loss scaler",
        cause=(
            "the GradScaler is disabled: gradients below 2^-24 become zero"
            if disabled
            else "gradients below 2^-24 become zero, and nothing skips a step that overflows"
        ),
        evidence=(f"{counted(sample.step, 'optimizer step')} so, no scaler was seen",),
        remedy=(
            "Build the GradScaler with enabled=True on this device, or use BF16 autocast."
            if disabled
            else "Add torch.amp.GradScaler, or use BF16 autocast."
        ),
        basis="PyTorch AMP documentation: autocast and GradScaler go together for FP16",
    )


def scaler_disabled(watched: Watched) -> Iterator[events.Finding]:
    """A scaler that was built and does nothing where FP16 is in use; BF16 and FP32 need none."""
    scaler = watched.identity.scaler
    fp16 = watched.sample is not None and watched.sample.autocast == "fp16"
    if scaler is None or scaler.enabled or not (fp16 or _share(watched.identity, "float16")):
        return
    yield found(
        watched,
        code="scaler-disabled",
        severity="info",
        word="note",
        title="the loss scaler is disabled",
        cause="enabled=False, or no CUDA device when it was built: FP16 then trains unscaled",
        remedy='If not intended: torch.amp.GradScaler("cpu") or ("cuda"), enabled=True.',
        basis="torch/amp/grad_scaler.py, enabled",
    )


def scaler_bf16(watched: Watched) -> Iterator[events.Finding]:
    """A loss scaler with BF16, which has the range of FP32 and needs none."""
    if watched.scaler is None:
        return
    autocast = watched.sample.autocast if watched.sample is not None else None
    share = _share(watched.identity, "bfloat16")
    if autocast != "bf16" and (share <= 0.5 or autocast == "fp16"):
        return
    parameters = share > 0.5
    yield found(
        watched,
        code="scaler-bf16",
        severity="info",
        word="note",
        title="BF16 needs no loss scaler",
        cause="BF16 has the exponent range of FP32: gradients neither overflow nor underflow",
        evidence=("parameters are BF16" if parameters else "autocast computes in BF16",),
        remedy="Drop the GradScaler."
        + (" On CUDA it raises NotImplementedError for BF16 gradients." if parameters else ""),
        basis="pytorch#127176",
    )


def fp16_parameters(watched: Watched) -> Iterator[events.Finding]:
    """FP16 weights with a scaler that refuses FP16 gradients: said before it raises."""
    scaler, sample = watched.scaler, watched.sample
    if scaler is None or scaler.kind.rpartition(".")[2] not in PLAIN_SCALERS:
        return
    share = _share(watched.identity, "float16")
    went_well = sample is not None and sample.totals.steps > sample.totals.skipped
    if not share or went_well:
        return
    yield found(
        watched,
        code="fp16-parameters",
        severity="fail",
        word="AMP",
        title="trained parameters are FP16",
        cause='scaler.unscale_ raises "Attempting to unscale FP16 gradients"',
        evidence=(f"{share:.0%} of the trained parameters",),
        remedy=FP32_MASTER_WEIGHTS,
        basis="torch/amp/grad_scaler.py, _unscale_grads_; pytorch#74739",
    )


FP32_MASTER_WEIGHTS = (
    "Keep the trained weights in FP32 (no model.half()) and let autocast compute in FP16; frozen "
    "weights may stay FP16."
)


def _share(identity: events.Run, data_type: str) -> float:
    """Share of the trained parameters of one type, torch's name with or without "torch."."""
    counts = {
        name.rpartition(".")[2]: count
        for name, count in identity.parameter_types.items()
        if count > 0
    }
    total = sum(counts.values())
    return counts.get(data_type, 0) / total if total else 0.0


def scheduler_ahead(watched: Watched) -> Iterator[events.Finding]:
    """A scheduler that steps on skipped steps too: its warm-up ends early."""
    sample = watched.sample
    if sample is None or watched.scaler is None:
        return
    totals = sample.totals
    ahead = totals.scheduler_steps - (totals.steps - totals.skipped)
    near = 1 if totals.skipped >= MANY_SKIPS else 0
    if ahead <= 0 or abs(ahead - totals.skipped) > near:
        return
    yield found(
        watched,
        code="scheduler-ahead",
        severity="info",
        word="note",
        title=f"the scheduler is {counted(ahead, 'step')} ahead of the optimizer",
        cause="it steps also where the loss scaler skipped the optimizer's step",
        evidence=(
            (
                f"{totals.scheduler_steps:,} scheduler steps, "
                f"{totals.steps - totals.skipped:,} optimizer steps"
            ),
        ),
        remedy=(
            "Step it only on real steps: compare scaler.get_scale() before and after "
            "scaler.update(); a lower scale was a skip."
        ),
        basis="pytorch#55585, pytorch#67590",
    )

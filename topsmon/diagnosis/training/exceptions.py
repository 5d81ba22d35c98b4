"""Rules about errors that a scaler or the run raised, each with its exact fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topsmon import events
from topsmon.diagnosis.training.misuse import FP32_MASTER_WEIGHTS
from topsmon.diagnosis.training.watched import Watched, found
from topsmon.units import plain


class Known(NamedTuple):
    """An error whose fix is known: a part of its message, in lower case, and what to say."""

    part: str
    code: str
    title: str
    cause: str
    remedy: str
    basis: str


SOURCE = "torch/amp/grad_scaler.py"

KNOWN = (
    Known(
        "unscale_() has already been called",
        "unscale-twice",
        "unscale_() was called twice before update()",
        "usually gradient accumulation that unscales in every micro-batch",
        "Call scaler.unscale_(optimizer) once per optimizer, right before scaler.step(optimizer) "
        "in the micro-batch that steps, and scaler.update() after it.",
        f"{SOURCE}, unscale_; transformers#23905, #24449",
    ),
    Known(
        "unscale_() is being called after step()",
        "unscale-twice",
        "unscale_() was called after step()",
        "scaler.update() is missing between the step and the next unscale_()",
        "Order: scaler.unscale_(optimizer), clip, scaler.step(optimizer), scaler.update().",
        f"{SOURCE}, unscale_",
    ),
    Known(
        "step() has already been called since the last update()",
        "step-twice",
        "scaler.step() was called twice before update()",
        "scaler.update() is missing, or one optimizer is stepped twice in an iteration",
        "Call scaler.update() once at the end of each iteration, after the steps of all "
        "optimizers.",
        f"{SOURCE}, step",
    ),
    Known(
        "no inf checks were recorded for this optimizer",
        "no-gradients",
        "scaler.step() found no gradient in this optimizer",
        "none of its parameters got a gradient in this iteration",
        "Give the optimizer the parameters of the model that the loss comes from; look for "
        "detach(), no_grad(), requires_grad=False, or zero_grad() after backward(); skip the step "
        "where an optimizer has no part in the loss.",
        f"{SOURCE}, step; lightning#7975, nerfstudio#1919",
    ),
    Known(
        "no inf checks were recorded prior to update",
        "no-gradients",
        "scaler.update() came without a scaler.step()",
        "optimizer.step() was called directly, or no optimizer stepped in this iteration",
        "Call scaler.step(optimizer) before scaler.update(); call update() only in iterations "
        "that step.",
        f"{SOURCE}, update",
    ),
    Known(
        "attempting to unscale fp16 gradients",
        "fp16-gradients",
        "the scaler met FP16 gradients",
        "the trained parameters are FP16",
        FP32_MASTER_WEIGHTS,
        f"{SOURCE}, _unscale_grads_; pytorch#74739",
    ),
    Known(
        "non_finite_check_and_unscale",
        "scaler-bf16",
        "the scaler met gradients of a type that it cannot unscale",
        "usually BF16 parameters on a GPU",
        "Drop the GradScaler: BF16 needs none.",
        "pytorch#127176",
    ),
    Known(
        "closure use is not currently supported",
        "scaler-closure",
        "an optimizer with a closure cannot step through a GradScaler",
        "L-BFGS and others evaluate the model inside their step",
        "Use another optimizer, or train without a GradScaler (BF16 or FP32).",
        f"{SOURCE}, step",
    ),
)


def exceptions(watched: Watched) -> Iterator[events.Finding]:
    """The scaler's errors in a run, the newest of each kind."""
    told: set[str] = set()
    for event in reversed(watched.happened("exception")):
        known = _known(event)
        if known is None or known.code in told:
            continue
        told.add(known.code)
        over = watched.sample is not None and not watched.in_window(event.step)
        worst: events.Severity = "warn" if event.values.get("handled") else "fail"
        yield found(
            watched,
            rests_on=event,
            code=known.code,
            severity=watched.severity(worst, over=over),
            word="AMP",
            title=known.title,
            cause=known.cause,
            evidence=(f"step {event.step:,}: {exception_text(event)}",),
            remedy=known.remedy,
            basis=known.basis,
        )


def _known(event: events.RunEvent) -> Known | None:
    message = event.message.lower()
    return next((known for known in KNOWN if known.part in message), None)


def exception_text(event: events.RunEvent, limit: int = 200) -> str:
    """The error as Python prints it: "RuntimeError: unscale_() has already ..."."""
    kind = plain(event.names[0], 60) if event.names else "exception"
    message = plain(event.message, limit).strip()
    return f"{kind}: {message}" if message else kind

"""Model FLOPs utilisation: the FLOPs of a run's model per second over its device's rated ceiling.

What recomputation (activation checkpointing) executes twice is counted once, so that it lowers the
utilisation by the time it takes. The default count is 6 N D (Kaplan et al. 2020, "Scaling laws for
neural language models", 2.1): 2 FLOPs a parameter and token forward, 4 backward, without attention
itself and without embeddings. It holds for transformers alone. N are the parameters that a token
passes on its rank: of a mixture of experts those of the chosen ones. A frozen matrix costs its 2
forward, and 2 more where gradients surely flow through it to what trains before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.run_state import RunState
from topsmon.state import State
from topsmon.units import PRECISIONS, percent, plain, rate

LEAST_STEPS = 20
"""Steps in the window: a single step time only says when the host got there."""
NO_STEP = "no step for long"
SOURCES = {"given": "given", "counted": "counted in one step"}
SIX_N_D = "6 x parameters x tokens"
WITH_FROZEN = "6 x trained + 2 x frozen parameters x tokens"
WITH_FLOWING = "6 x trained + 2 to 4 x frozen parameters x tokens"

PRECISION_OF_TYPE = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}


class Rated(Protocol):
    """What is asked of a device here: a `DeviceState`, or a device of a fleet."""

    identity: events.Device

    @property
    def key(self) -> str:
        """The device's key in events."""

    def ceiling(self, precision: str) -> events.Ceiling | None:
        """The ceiling of a measured precision."""

    def absence(self, precision: str) -> str | None:
        """Why a precision has no ceiling."""


@dataclass(frozen=True)
class Mfu:
    """A run's rate on its device beside that device's rated ceiling.

    `flops_per_second` is the sum over the `runs` (ranks) on the device and None where it is not
    known, because of `absence`. `ratio` is never clamped; `ceiling_absence` says why there is none.
    `lower_bound`: more is computed than was counted. `ceiling_note` says of a CPU which cores its
    ceiling counts.
    """

    flops_per_second: float | None = None
    ratio: float | None = None
    ceiling_ops_per_second: float | None = None
    precision: str | None = None
    source: str = ""
    lower_bound: bool = False
    absence: str = ""
    ceiling_absence: str = ""
    device: str | None = None
    runs: tuple[str, ...] = ()
    ceiling_note: str = ""

    @property
    def reason(self) -> str:
        """Why there is no ratio, "" where there is one."""
        return self.absence or self.ceiling_absence

    @property
    def doubtful(self) -> bool:
        """True above 100 %, which no device reaches."""
        return self.ratio is not None and self.ratio > 1.0


def of_run(state: State, run: RunState) -> Mfu:
    """The utilisation by a run and by the ranks of its launch that share its device.

    While it lives by those that live, afterwards by those that have ended.
    """
    device = state.device_of(run)
    if device is None:
        return of_ranks(None, [run])
    ranks = [
        other
        for other in state.runs.values()
        if other.group == run.group
        and other.ended == run.ended
        and state.device_of(other) is device
    ]
    return of_ranks(device, ranks)


def of_device(state: State, device: DeviceState) -> Mfu | None:
    """The utilisation of a device by all runs that live on it, None where there is none."""
    runs = [run for run in state.runs.values() if not run.ended and state.device_of(run) is device]
    return of_ranks(device, runs) if runs else None


def words(mfu: Mfu) -> str:
    """One line: "38.2 TFLOPS, 38.6% of 98.9 TFLOPS BF16 (6 x parameters x tokens, lower bound)"."""
    if mfu.flops_per_second is None:
        return f"N/A: {mfu.absence}"
    line = rate(mfu.flops_per_second, mfu.precision or "fp32")
    notes = [mfu.source]
    if mfu.lower_bound:
        notes.append("lower bound")
    if len(mfu.runs) > 1:
        notes.append(f"{len(mfu.runs)} ranks on this device")
    if mfu.ratio is None or mfu.ceiling_ops_per_second is None or mfu.precision is None:
        line += f", ceiling unknown: {mfu.ceiling_absence}"
    else:
        ceiling = rate(mfu.ceiling_ops_per_second, mfu.precision)
        label = PRECISIONS[mfu.precision].label
        line += f", {percent(mfu.ratio)} of {ceiling} {label}"
        if mfu.ceiling_note:
            notes.append(f"ceiling of {mfu.ceiling_note}")
        if mfu.doubtful:
            notes.insert(0, "in doubt: above the ceiling")
    return f"{line} ({', '.join(notes)})"


def of_ranks(device: Rated | None, runs: Iterable[RunState]) -> Mfu:
    """The utilisation of a device by these runs, of which there is at least one."""
    own = [(run, _flops_per_second(run)) for run in runs]
    keys = tuple(run.key for run, _ in own)
    key = device.key if device is not None else None
    told = [one for _, one in own if one.flops_per_second is not None]
    if not told:
        first = own[0][1]
        return replace(first, device=key, runs=keys)
    total = Mfu(
        flops_per_second=sum(one.flops_per_second or 0.0 for one in told),
        source=told[0].source,
        lower_bound=len(told) < len(own) or any(one.lower_bound for one in told),
        device=key,
        runs=keys,
    )
    return _against_ceiling(total, device, own[0][0])


def _against_ceiling(mfu: Mfu, device: Rated | None, run: RunState) -> Mfu:
    if device is None:
        return replace(mfu, ceiling_absence="the device of this run is not known")
    precision = precision_of(run, device)
    if precision is None:
        return replace(mfu, ceiling_absence="the precision of this run is not known")
    ceiling = device.ceiling(precision)
    if ceiling is None or ceiling.ops_per_second <= 0:
        reason = device.absence(precision) or f"no {PRECISIONS[precision].label} ceiling"
        return replace(mfu, precision=precision, ceiling_absence=plain(reason, 120))
    achieved = mfu.flops_per_second
    return replace(
        mfu,
        precision=precision,
        ceiling_ops_per_second=ceiling.ops_per_second,
        ceiling_note=plain(ceiling.note, 60) if device.identity.kind == "cpu" else "",
        ratio=None if achieved is None else achieved / ceiling.ops_per_second,
    )


def prevailing_type(*tables: Mapping[str, int]) -> str | None:
    """The type that most parameters have, as "bfloat16"; None where there are none.

    Each table maps names of torch's types, with or without "torch.", to numbers of parameters.
    """
    counts: dict[str, int] = {}
    for table in tables:
        for name, count in table.items():
            kind = name.rpartition(".")[2]
            counts[kind] = counts.get(kind, 0) + count
    return max(counts, key=lambda name: counts[name], default=None)


def precision_of(run: RunState, device: Rated) -> str | None:
    """What the run's matrix products compute in: autocast's type, else that of its parameters."""
    autocast = run.sample.autocast if run.sample is not None else None
    if autocast is not None:
        return autocast
    kind = prevailing_type(run.identity.parameter_types, run.identity.frozen_types)
    if kind is None:
        return None
    precision = PRECISION_OF_TYPE.get(kind)
    tf32 = run.identity.allow_tf32 and device.identity.kind == "gpu"
    if precision == "fp32" and tf32 and device.ceiling("tf32") is not None:
        return "tf32"
    return precision


def _flops_per_second(run: RunState) -> Mfu:
    sample, identity = run.sample, run.identity
    if run.condition == "silent":
        return Mfu(absence=NO_STEP)
    window = sample.window if sample is not None else None
    per_step, source, reason = _flops_per_step(identity, window)
    if per_step is None:
        return Mfu(absence=reason)
    if window is None or window.steps < LEAST_STEPS:
        return Mfu(source=source, absence=f"the mean of {LEAST_STEPS} steps is needed")
    seconds = _step_seconds(window)
    if seconds is None or not math.isfinite(seconds) or seconds <= 0:
        return Mfu(source=source, absence="the time of a step is not known")
    own_count = identity.flops_per_step is not None
    return Mfu(
        flops_per_second=per_step / seconds,
        source=source,
        lower_bound=identity.flops_lower_bound if own_count else True,
    )


def _step_seconds(window: events.RunWindow) -> float | None:
    """Mean time of the steps that the speed is told of: rate and speed are of the same steps."""
    told = (
        (window.tokens_per_step, window.tokens_per_second),
        (window.samples_per_step, window.samples_per_second),
    )
    for amount, per_second in told:
        if amount is not None and per_second is not None and amount > 0 and per_second > 0:
            return amount / per_second
    return window.mean_step_seconds


def _flops_per_step(
    identity: events.Run, window: events.RunWindow | None
) -> tuple[float | None, str, str]:
    """FLOPs of one step and rank with their source, or None and why."""
    given = identity.flops_per_step
    if given is not None and math.isfinite(given) and given > 0:
        return given, SOURCES.get(identity.flops_source, "given"), ""
    if not identity.transformer:
        what = "no transformer" if identity.transformer is False else "not known as a transformer"
        return None, "", f"{what}: give the FLOPs per step (--flops)"
    if identity.active_absence:
        reason = plain(identity.active_absence, 120)
        return None, "", f"{reason}: give the FLOPs per step (--flops, watch(flops_per_step=))"
    parameters = _token_parameters(identity)
    tokens = window.tokens_per_step if window is not None else None
    frozen, flowing = identity.frozen_parameters or 0, identity.frozen_flowing
    if parameters is None or parameters + frozen <= 0:
        return None, "", "the number of parameters is not known"
    if tokens is None or not math.isfinite(tokens) or tokens <= 0:
        return None, "", "the tokens per step are not known: give them (--tokens-per-step)"
    note = f", N = {plain(identity.active_note, 60)}" if identity.active_note else ""
    formula = (WITH_FLOWING if flowing else WITH_FROZEN) if frozen else SIX_N_D
    per_token = 6.0 * parameters + 2.0 * frozen + 2.0 * flowing
    return per_token * tokens, f"{formula}{note}", ""


def _token_parameters(identity: events.Run) -> int | None:
    """The N of 6 N D, None where it is not known."""
    if identity.active_parameters is not None:
        return identity.active_parameters
    if identity.parameters is None:
        return None
    return identity.parameters - (identity.embedding_parameters or 0)

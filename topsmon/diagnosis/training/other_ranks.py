"""Which rank of a launch is the cause where others only suffer: a bad loss, a lost connection."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from topsmon.diagnosis.words import joined
from topsmon.run_state import RunState
from topsmon.state import State

LOST = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "nccl",
    "gloo",
    "processgroup",
    "sockettimeout",
    "socket timeout",
    "watchdog",
)
"""Parts of errors, in lower case, that a rank raises when another one has gone."""
ENDED_BADLY = frozenset({"failed", "killed", "gone"})


def others(state: State, run: RunState) -> list[RunState]:
    """The other ranks of a run's launch."""
    return [one for one in state.runs.values() if one is not run and one.group == run.group]


def with_bad_loss(state: State, run: RunState) -> RunState | None:
    """The rank whose loss was not finite where this one, with finite losses, skipped steps.

    The all-reduce of the gradients carries NaN into every rank.
    """
    sample = run.sample
    if sample is None or sample.totals.nonfinite_losses or sample.totals.last_skip_step is None:
        return None
    last = sample.totals.last_skip_step
    guilty = [one for one in others(state, run) if _bad_at(one, last)]
    return min(guilty, key=_first_bad, default=None)


def _bad_at(run: RunState, step: int) -> bool:
    totals = run.sample.totals if run.sample is not None else None
    if totals is None or not totals.nonfinite_losses:
        return False
    buckets = run.buckets.values()
    about = next((one for one in buckets if 0 <= step - one.first_step < one.steps), None)
    if about is not None:
        return bool(about.nonfinite_losses)
    return _first_bad(run) <= step


def _first_bad(run: RunState) -> int:
    first = run.sample.totals.first_nonfinite_loss_step if run.sample is not None else None
    return first if first is not None else 0


def lost(run: RunState) -> bool:
    """True for a rank that failed because its connection to another one broke."""
    if run.condition != "failed" or run.status is None:
        return False
    text = run.status.detail.lower()
    error = run.last_error
    if error is not None:
        text += " ".join((*error.names, error.message)).lower()
    return any(part in text for part in LOST)


def died_first(state: State, run: RunState) -> RunState | None:
    """The rank whose end this one, which lost its connection, followed; None where none is seen."""
    if not lost(run):
        return None
    ended = [
        one
        for one in others(state, run)
        if one.condition in ENDED_BADLY and not lost(one) and not one.interrupted
    ]
    return min(ended, key=_since, default=None)


def led_to_others(state: State, run: RunState) -> bool:
    """True for a rank whose end other ranks followed."""
    return any(died_first(state, one) is run for one in others(state, run))


def _since(run: RunState) -> float:
    return run.status.since if run.status is not None else 0.0


def suffers(state: State, run: RunState) -> bool:
    """True for a rank whose trouble another one has caused."""
    return with_bad_loss(state, run) is not None or died_first(state, run) is not None


def causes_first(state: State, runs: Sequence[RunState]) -> list[RunState]:
    """The runs in their order, but the first to go bad first, and after all who only suffers."""
    return sorted(runs, key=lambda run: place(state, run))


def place(state: State, run: RunState) -> tuple[bool, float]:
    """Sorts the ranks of a launch by who comes first as a cause.

    Who suffers comes last; before that a lower first step with a bad loss or bad weights counts.
    """
    totals = run.sample.totals if run.sample is not None else None
    weights = run.bad_weights()
    steps = (
        totals.first_nonfinite_loss_step if totals is not None else None,
        weights.step if weights is not None else None,
    )
    first = min((step for step in steps if step is not None), default=None)
    return suffers(state, run), math.inf if first is None else first


def rank_word(run: RunState) -> str:
    """Its rank, or its process where it has none."""
    rank = run.identity.rank
    return f"rank {rank}" if rank is not None else f"PID {run.identity.pid}"


def ranks_text(runs: Iterable[RunState]) -> str:
    """Ranks in short: "ranks 0-3, 6"; of processes without ranks one is named, several counted."""
    runs = list(runs)
    ranks = sorted({run.identity.rank for run in runs if run.identity.rank is not None})
    if len(ranks) != len(runs):
        return f"PID {runs[0].identity.pid}" if len(runs) == 1 else f"in {len(runs)} processes"
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in spans]
    return f"rank{'s' if len(ranks) > 1 else ''} {joined(parts, 4)}"

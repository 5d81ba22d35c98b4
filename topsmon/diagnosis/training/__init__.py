"""Rules about training runs, one small function each, and the findings of one run or of all.

Add a rule: write a function `(watched) -> Iterator[Finding]` and put it into `RUN_RULES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from topsmon import events
from topsmon.diagnosis.training import (
    ending,
    exceptions,
    gradients,
    losses,
    misuse,
    other_ranks,
    scale,
    skips,
    throughput,
)
from topsmon.diagnosis.training.alike import together
from topsmon.diagnosis.training.other_ranks import ranks_text
from topsmon.diagnosis.training.watched import RunRule, Watched
from topsmon.run_state import RunState
from topsmon.state import State

__all__ = ["merged", "of_run", "ranks_text", "together", "training"]

RUN_RULES: tuple[RunRule, ...] = (
    losses.weights_nan,
    scale.scale_dead,
    ending.ended_badly,
    losses.loss_not_finite,
    misuse.bypass,
    misuse.clip_before_unscale,
    misuse.fp16_parameters,
    exceptions.exceptions,
    skips.consecutive_skips,
    skips.skip_rate,
    scale.scale_low,
    gradients.one_parameter_bad,
    gradients.backward_overflow,
    misuse.fp16_no_scaler,
    gradients.underflow,
    gradients.gradient_spike,
    scale.scale_huge,
    ending.silent,
    throughput.input_stall,
    throughput.rate_impossible,
    throughput.host_bound,
    throughput.memory_bound,
    misuse.scaler_bf16,
    misuse.scaler_disabled,
    misuse.scheduler_ahead,
    gradients.clip_always,
    skips.calibrating,
    skips.growth_probe,
    ending.recorder_trouble,
)
"""All rules. Of two findings with one code the earlier rule's counts."""

SEVERITIES: tuple[events.Severity, ...] = ("fail", "warn", "info")
NORMAL = frozenset({"calibrating", "growth-probe"})
"""What is as it should be: said of a run that is looked at, not among the machine's findings."""
SAID_BY = {"skip-rate": "consecutive-skips", "scale-low": "scale-dead"}
"""Findings that add nothing where the other is at least as grave."""
BESIDE_NO_FAILURE = frozenset({"clip-always", "growth-probe", "calibrating"})
"""What is not worth a word where the run is broken."""
ENDS = frozenset({"run-failed", "run-killed", "run-gone"})
ENDED_SECONDS = 600.0
"""So long the findings of a run that has ended stay among the machine's."""


def of_run(state: State, key: str, now: float) -> tuple[events.Finding, ...]:
    """All findings about one run, worst first; their titles do not name the run.

    `key` is the run's in the state; of one that the state does not hold nothing is found.
    """
    run = state.runs.get(key)
    if run is None:
        return ()
    watched = Watched(state, run, now)
    found: dict[str, events.Finding] = {}
    for rule in RUN_RULES:
        for finding in rule(watched):
            found.setdefault(finding.code, finding)
    for code, by in SAID_BY.items():
        if code in found and by in found and _gravity(found[by]) <= _gravity(found[code]):
            del found[code]
    if any(finding.severity == "fail" and finding.code not in ENDS for finding in found.values()):
        found = {code: one for code, one in found.items() if code not in BESIDE_NO_FAILURE}
    return tuple(sorted(found.values(), key=_gravity))


def _gravity(finding: events.Finding) -> int:
    return SEVERITIES.index(finding.severity)


def training(state: State, now: float) -> Iterator[events.Finding]:
    """What the machine's list holds about runs: troubles, alike ones of several ranks as one."""
    by_group: dict[str, list[RunState]] = {}
    for run in state.ordered_runs():
        ended = run.ended_for(now)
        if ended is None or ended <= ENDED_SECONDS:
            by_group.setdefault(run.group, []).append(run)
    for runs in by_group.values():
        yield from merged(state, runs, now)


def merged(state: State, runs: Sequence[RunState], now: float) -> list[events.Finding]:
    """The findings of the ranks of one launch; what several ranks have in common is said once.

    Titles begin with the run and its ranks: "train.py ranks 0-7  loss scale is dead: 0".
    """
    alike: dict[tuple[str, events.Severity], list[tuple[RunState, events.Finding]]] = {}
    for run in other_ranks.causes_first(state, runs):
        for finding in of_run(state, run.key, now):
            if finding.code in NORMAL or (run.ended and finding.severity == "info"):
                continue
            alike.setdefault((finding.code, finding.severity), []).append((run, finding))
    return [_named(pairs) for pairs in alike.values()]


def _named(pairs: list[tuple[RunState, events.Finding]]) -> events.Finding:
    ranks, finding = together(pairs)
    run = ranks[0]
    who = run.label if len(pairs) == 1 else f"{run.name} {ranks_text(ranks)}"
    return msgspec.structs.replace(finding, title=f"{who}  {finding.title}")

"""Training runs as metrics: steps, loss scale, skips, tokens, model FLOPs beside the ceiling.

A run is known by a number from 0 on that is free again some time after its end, by its rank and its
device: the number of series is bounded, and no PID, user or command leaves the machine.
"""

from __future__ import annotations

from topsmon.diagnosis import mfu
from topsmon.exporters.device_metrics import device_labels
from topsmon.exporters.families import Families
from topsmon.run_state import RunState
from topsmon.state import State

RUNS = 32
"""Runs (ranks) exported at a time; the others are counted."""
KEPT_AFTER_END_SECONDS = 300.0
"""So long that the last totals are scraped."""
CONDITIONS = ("running", "silent", "finished", "failed", "killed", "gone")


class Slots:
    """Gives runs small numbers: a run keeps its own, the lowest free one goes to the next."""

    def __init__(self, most: int = RUNS) -> None:
        self.most = most
        self._taken: dict[str, int] = {}

    def assign(self, state: State, now: float) -> dict[str, int]:
        """The number of each run to export, by key. `now` is monotonic. Those alive go first."""
        wanted = [run for run in state.ordered_runs() if _is_due(run, now)]
        wanted.sort(key=lambda run: (run.ended, run.key not in self._taken))
        chosen = wanted[: self.most]
        kept = {run.key: self._taken[run.key] for run in chosen if run.key in self._taken}
        free = iter(sorted(set(range(self.most)) - set(kept.values())))
        for run in chosen:
            if run.key not in kept:
                kept[run.key] = next(free)
        self._taken = kept
        return kept


def _is_due(run: RunState, now: float) -> bool:
    ended = run.ended_for(now)
    return ended is None or ended <= KEPT_AFTER_END_SECONDS


def add_runs(families: Families, state: State, slots: Slots, now: float) -> None:
    """Add the runs. `now` is this process's monotonic clock."""
    numbers = slots.assign(state, now)
    for condition in CONDITIONS:
        count = sum(run.condition == condition for run in state.runs.values())
        text = "Training runs known here by their condition; those ended long ago are forgotten."
        families.gauge("runs", text, {"condition": condition}, count)
    due = sum(_is_due(run, now) for run in state.runs.values())
    text = "Runs that have no series of their own: more than --runs."
    families.gauge("runs_left_out", text, {}, due - len(numbers))
    for key, number in numbers.items():
        run = state.runs[key]
        device = state.device_of(run)
        labels: dict[str, object] = {"run": number, "rank": run.identity.rank}
        if device is not None:
            labels.update(device_labels(device))
        _add_steps(families, run, labels)
        _add_scaler(families, run, labels)
        if not run.ended:
            _add_pace(families, run, labels)
            _add_mfu(families, state, run, labels)


def _add_steps(families: Families, run: RunState, labels: dict[str, object]) -> None:
    sample = run.sample
    if sample is None:
        return
    totals = sample.totals
    families.counter(
        "run_steps", "Optimizer steps tried, skipped ones included.", labels, totals.steps
    )
    families.counter("run_tokens", "Tokens trained on.", labels, totals.tokens)
    families.counter("run_samples", "Samples trained on.", labels, totals.samples)
    families.counter(
        "run_nonfinite_losses",
        "Steps whose loss was NaN or infinite.",
        labels,
        totals.nonfinite_losses if _knows_losses(run) else None,
    )
    families.counter(
        "run_recorder_seconds",
        "Time that topsmon's recorder has taken from the run.",
        labels,
        totals.recorder_seconds,
    )
    families.gauge(
        "run_last_step_timestamp_seconds", "When the newest step ended.", labels, sample.stepped_at
    )


def _knows_losses(run: RunState) -> bool:
    """True where losses are seen at all: no loss seen is not the same as none that was NaN."""
    sample = run.sample
    if sample is None:
        return False
    if sample.loss_finite is not None or sample.totals.nonfinite_losses > 0:
        return True
    return any(bucket.loss_mean is not None for bucket in run.buckets.values())


def _add_scaler(families: Families, run: RunState, labels: dict[str, object]) -> None:
    sample, scaler = run.sample, run.identity.scaler
    if sample is None or scaler is None or not scaler.enabled:
        return
    totals = sample.totals
    families.counter(
        "amp_skipped_steps",
        "Steps that the loss scaler skipped because of non-finite gradients.",
        labels,
        totals.skipped,
    )
    families.counter("amp_scale_growths", "Growths of the loss scale.", labels, totals.growths)
    families.counter("amp_scale_backoffs", "Cuts of the loss scale.", labels, totals.backoffs)
    if run.ended:
        return
    families.gauge("amp_loss_scale", "Loss scale now.", labels, sample.scale)
    families.gauge(
        "amp_skip_streak", "Steps skipped in a row up to now.", labels, sample.skip_streak
    )


def _add_pace(families: Families, run: RunState, labels: dict[str, object]) -> None:
    sample = run.sample
    if sample is None:
        return
    window = sample.window
    families.gauge(
        "run_step_seconds", "Median time of the last 200 steps.", labels, window.step_seconds
    )
    families.gauge(
        "run_step_high_seconds",
        "95th percentile of the time of the last 200 steps.",
        labels,
        window.high_step_seconds,
    )
    families.gauge(
        "run_data_wait_ratio",
        "Share of the time in which the loop waited for its data.",
        labels,
        window.data_wait_ratio,
    )
    families.gauge("run_loss", "Loss of the newest step, if finite.", labels, sample.loss)
    families.gauge(
        "run_gradient_norm",
        "Norm of the unscaled gradients of the newest step, if finite.",
        labels,
        sample.gradient_norm,
    )
    families.gauge(
        "run_learning_rate", "Learning rate of the newest step.", labels, sample.learning_rate
    )
    families.gauge(
        "run_memory_peak_bytes",
        "Most device memory that torch had allocated.",
        labels,
        sample.memory_peak_bytes,
    )
    families.gauge(
        "run_step_joules", "Energy of the GPU per step, where alone.", labels, run.joules_per_step
    )


def _add_mfu(families: Families, state: State, run: RunState, labels: dict[str, object]) -> None:
    found = mfu.of_run(state, run)
    precise = {**labels, "precision": found.precision}
    families.gauge(
        "run_model_flops_per_second",
        "Model FLOPs per second of all ranks of this launch on the device.",
        precise,
        found.flops_per_second,
    )
    families.gauge(
        "run_ceiling_flops_per_second",
        "Rated ceiling of the device in the precision of the run.",
        precise,
        found.ceiling_ops_per_second,
    )
    families.gauge(
        "run_mfu_ratio",
        "Model FLOPs utilisation: model FLOPs per second / rated ceiling, never clamped.",
        precise,
        found.ratio,
    )

"""What a watched training run tells: who it is, its steps, what went wrong, how it ended.

A run is one process (one rank). `run` is its key: the stem of its ring file, unique on a host.
A step is one optimizer step tried, skipped ones included: one `GradScaler.update()`, or, without a
scaler, one step of the run's first optimizer. Steps count from 1.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from topsmon.events.base import Event

RunCondition = Literal["running", "silent", "finished", "failed", "killed", "gone"]
"""silent: alive, but no step for long; gone: ended without a word, or not to be seen from here."""
AutocastType = Literal["fp16", "bf16"]


class Scaler(msgspec.Struct, frozen=True, kw_only=True):
    """A loss scaler's kind and constants; None where it does not have such a one."""

    kind: str
    enabled: bool = True
    init_scale: float | None = None
    growth_factor: float | None = None
    backoff_factor: float | None = None
    growth_interval: int | None = None
    min_scale: float | None = None


class Run(Event, frozen=True, kw_only=True, tag="run"):
    """Identity of a run: what changes seldom. Sent anew when more of it becomes known.

    `started` is the wall-clock time of the process's start. `torch_device` is torch's name
    ("cuda:0", "cpu") of where the parameters lie, `device_uuid` NVML's name of that GPU. `launch`
    is shared by all ranks that one `topsmon run` has started. `parameters` counts the whole model's
    trainable parameters, those of other ranks' shards included; `embedding_parameters` are those
    among them that only look up. `active_parameters` are those that one token passes on this rank,
    lookups left out, where they are not simply the rest: of a mixture of experts and of layers that
    ranks split among them; `active_note` says which ("2 of 8 experts"), `active_absence` why they
    are not known. `frozen_parameters` are the matrices of the model that do not train, lookups left
    out (None: not known), `frozen_flowing` those among them through which gradients surely flow,
    `frozen_types` their types. `transformer`: attention was found in the model. `entry` says how
    the recorder came in ("run", "watch", "attach"). `flops_per_step` is per optimizer step and
    rank, forward and backward, and `flops_source` where it comes from: "given" or "counted".
    `limits` are what the recorder cannot see here, in words ("compiled modules show no layers").
    `data_workers` is the number of worker processes of the data loader in use, 0: none.
    """

    run: str
    pid: int
    hostname: str
    started: float
    command: str = ""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    launch: str | None = None
    entry: str = ""
    local: bool = True
    python_version: str = ""
    torch_version: str = ""
    torch_device: str | None = None
    device_uuid: str | None = None
    model: str | None = None
    parameters: int | None = None
    embedding_parameters: int | None = None
    active_parameters: int | None = None
    active_note: str = ""
    active_absence: str = ""
    frozen_parameters: int | None = None
    frozen_flowing: int = 0
    frozen_types: dict[str, int] = {}
    parameter_types: dict[str, int] = {}
    transformer: bool | None = None
    sharded: bool = False
    compiled: bool = False
    allow_tf32: bool | None = None
    optimizers: tuple[str, ...] = ()
    scaler: Scaler | None = None
    flops_per_step: float | None = None
    flops_source: str = ""
    flops_lower_bound: bool = False
    limits: tuple[str, ...] = ()
    data_workers: int | None = None


class RunWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The last `steps` steps of a run, at most 200. Ratios are 0..1.

    `step_seconds` is the median time between two steps, `mean_step_seconds` the mean,
    `high_step_seconds` the 95th percentile. `data_wait_ratio` is the share of that time in which
    the training loop waited for its data loader. Rates are per second of that time.
    `skips_after_growth` are those within three steps after a growth. `gradient_norm_median` and
    `_deviation` (median absolute deviation) are of the finite unscaled norms known. `clipped_ratio`
    is the share of clip calls that changed the gradients.
    """

    steps: int
    seconds: float | None = None
    skipped: int = 0
    skips_after_growth: int = 0
    growths: int = 0
    nonfinite_losses: int = 0
    step_seconds: float | None = None
    mean_step_seconds: float | None = None
    high_step_seconds: float | None = None
    data_wait_ratio: float | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    backward_calls_per_step: float | None = None
    gradient_norm_median: float | None = None
    gradient_norm_deviation: float | None = None
    gradient_norm_highest: float | None = None
    clip_calls: int = 0
    clipped_ratio: float | None = None


class RunTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over the whole life of a run, whatever the ring has forgotten.

    `calibration_skips` are skips among the first 25 steps (more for a high first scale:
    log2(init_scale) + 5). `first_nonfinite_loss_step` and `last_skip_step` are None if there was
    none. `dropped` are readings given up rather than waited for, `errors` the recorder's own.
    `recorder_seconds` is the time that the recorder has taken from the run by its own measure.
    `gradient_zero_ratio` is the highest share of zeros among sampled gradients that were computed
    in FP16, `gradient_zero_scale` the loss scale at that sample (None: without a scaler) and
    `gradient_zero_ratio_later` the share at the highest scale sampled after it.
    """

    steps: int = 0
    skipped: int = 0
    growths: int = 0
    backoffs: int = 0
    calibration_skips: int = 0
    longest_skip_streak: int = 0
    last_skip_step: int | None = None
    last_growth_step: int | None = None
    nonfinite_losses: int = 0
    first_nonfinite_loss_step: int | None = None
    backward_overflows: int = 0
    scale_lowest: float | None = None
    scale_highest: float | None = None
    clip_calls: int = 0
    scaled_clips: int = 0
    bypasses: int = 0
    scheduler_steps: int = 0
    dropped: int = 0
    errors: int = 0
    recorder_seconds: float = 0.0
    tokens: float | None = None
    samples: float | None = None
    gradient_zero_ratio: float | None = None
    gradient_zero_scale: float | None = None
    gradient_zero_ratio_later: float | None = None


class RunSample(Event, frozen=True, kw_only=True, tag="run-sample"):
    """The newest step of a run, its window and its totals.

    `step` is the number of steps tried, `stepped_at` the wall-clock time of the newest. `loss` and
    `gradient_norm` are None where unknown *or* not finite; `loss_finite` and
    `gradient_norm_finite` tell which. The norm is that of the unscaled gradients, before
    clipping. `skip_streak` is the number of skipped steps up to the newest one.
    """

    run: str
    step: int
    stepped_at: float
    skipped: bool = False
    skip_streak: int = 0
    loss: float | None = None
    loss_finite: bool | None = None
    scale: float | None = None
    growth_tracker: int | None = None
    gradient_norm: float | None = None
    gradient_norm_finite: bool | None = None
    clip_max_norm: float | None = None
    learning_rate: float | None = None
    autocast: AutocastType | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    window: RunWindow
    totals: RunTotals


class HistoryBucket(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`steps` steps from `first_step` on. Extremes and means over those where it is known."""

    first_step: int
    steps: int
    skipped: int
    scale_lowest: float | None = None
    scale_highest: float | None = None
    loss_mean: float | None = None
    nonfinite_losses: int = 0
    gradient_norm_highest: float | None = None
    mean_step_seconds: float | None = None


class RunHistory(Event, frozen=True, kw_only=True, tag="run-history"):
    """A run from its first step on, in at most 256 buckets of `stride` steps (the last is open).

    `buckets` are those that are new or changed since the last such event, all of them when
    `stride` has changed or the source begins.
    """

    run: str
    stride: int
    buckets: tuple[HistoryBucket, ...]


class RunEvent(Event, frozen=True, kw_only=True, tag="run-event"):
    """One thing that happened in a run. `number` counts from 1 within the run.

    `kind` is one of:
    "nonfinite-gradients": `names` are parameters with a non-finite gradient in forward order,
        `values["parameters"]` how many parameters have gradients, `values["bad"]` how many are bad;
    "nonfinite-output": `names[0]` is the first module in forward order with a non-finite output,
        `message` its class; without names: the module could not be seen, and why;
    "nonfinite-loss", "skip" (the first of a streak), "growth", "back-off" (with `values["scale"]`);
    "scaled-clip": clipping found scaled gradients; `values` norm, max_norm, scale;
    "bypass": `optimizer.step()` was called directly with scaled gradients;
    "nonfinite-weights": `names` are the parameters, as many as fit;
    "gradient-zeros": `values` ratio and scale of a sample of FP16 gradients;
    "exception": `names[0]` is the type, `message` the text; `values["handled"]` 1 when it was only
        seen passing through a scaler and not (yet) the end of the run;
    "end": `message` says how ("exit code 0", "signal SIGKILL"), `values["exit_code"]` if known;
    "profile": `message` is the path of a stored profile;
    "recorder": the recorder's own trouble ("switched itself off after 20 errors: ...").
    """

    run: str
    number: int
    kind: str
    step: int
    message: str = ""
    names: tuple[str, ...] = ()
    values: dict[str, float] = {}


class RunStatus(Event, frozen=True, kw_only=True, tag="run-status"):
    """A change in whether a run lives. `since` is wall-clock time; `exit_code` as a shell tells.

    The `detail` of an ended run are its last words: exit code, signal, or exception.
    """

    run: str
    condition: RunCondition
    since: float
    detail: str = ""
    exit_code: int | None = None

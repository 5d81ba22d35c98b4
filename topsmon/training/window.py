"""Records of a ring turned into the numbers that events carry: pure functions.

The window is always the ring's newest 200 steps, so that a monitor that starts during or after a
run shows what one that was there all the time does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

from topsmon import events
from topsmon.training.reader import Bucket, Happening, Identity, Record
from topsmon.training.recorder import layout

SETTLING_STEPS = 16
"""Readings of a step may come in this many steps later (the recorder's slots and to spare)."""
GROWTH_PROBE_STEPS = 3
HIGH_SHARE = 0.95


def sample(
    identity: Identity, records: Sequence[Record], happenings: Iterable[Happening]
) -> events.RunSample | None:
    """Return the sample of the newest step, None before the first.

    Readings are those of the newest step whose readings have all arrived, where that is not long
    ago; counts and times are the newest step's.
    """
    if not records:
        return None
    newest, shown = records[-1], _settled(records)
    nonfinite = bool(shown.flags & layout.NONFINITE_LOSS)
    return events.RunSample(
        time=time.time(),
        monotonic=time.monotonic(),
        source=identity.run.source,
        run=identity.run.run,
        step=newest.step,
        stepped_at=stepped_at(records) or 0.0,
        skipped=bool(shown.flags & layout.SKIPPED),
        skip_streak=shown.skip_streak,
        loss=None if nonfinite else known(shown.loss),
        loss_finite=False if nonfinite or math.isinf(shown.loss) else _true_if_known(shown.loss),
        scale=known(shown.scale),
        growth_tracker=shown.growth_tracker if shown.growth_tracker >= 0 else None,
        gradient_norm=known(shown.gradient_norm),
        gradient_norm_finite=_norm_finite(shown),
        clip_max_norm=known(shown.clip_max_norm),
        learning_rate=known(shown.learning_rate),
        autocast=_autocast(shown.flags),
        memory_bytes=_integer(shown.memory_bytes),
        memory_peak_bytes=_integer(shown.memory_peak_bytes),
        window=window(records),
        totals=totals(records, happenings),
    )


def window(records: Sequence[Record]) -> events.RunWindow:
    """Return what the given steps, in order, amount to."""
    flags = [record.flags for record in records]
    times = _finite(record.step_seconds for record in records)
    norms = _finite(record.gradient_norm for record in records)
    middle = _median(norms)
    backward = [record.backward_calls for record in records]
    clip_calls = _count(flags, layout.CLIP_CALLED)
    seconds = _sum(times) if times else None
    return events.RunWindow(
        steps=len(records),
        seconds=seconds,
        skipped=_count(flags, layout.SKIPPED),
        skips_after_growth=sum(map(_skipped_after_growth, records)),
        growths=_count(flags, layout.GREW),
        nonfinite_losses=_count(flags, layout.NONFINITE_LOSS),
        step_seconds=_median(times),
        mean_step_seconds=None if seconds is None else seconds / len(times),
        high_step_seconds=_high(times),
        data_wait_ratio=_per_second(records, lambda record: record.data_wait_seconds),
        tokens_per_second=_per_second(records, lambda record: record.tokens),
        samples_per_second=_per_second(records, lambda record: record.samples),
        tokens_per_step=_mean(record.tokens for record in records),
        samples_per_step=_mean(record.samples for record in records),
        backward_calls_per_step=sum(backward) / len(backward) if any(backward) else None,
        gradient_norm_median=middle,
        gradient_norm_deviation=(
            None if middle is None else _median([abs(norm - middle) for norm in norms])
        ),
        gradient_norm_highest=max(norms, default=None),
        clip_calls=clip_calls,
        clipped_ratio=_count(flags, layout.CLIPPED) / clip_calls if clip_calls else None,
    )


def totals(records: Sequence[Record], happenings: Iterable[Happening]) -> events.RunTotals:
    """Return the counts of the whole run from its newest records, which are not empty.

    A record that was amended holds later counts than one written before that: the highest count.
    """
    newest = records[-1]
    latest = records[-SETTLING_STEPS:]

    def most(count: Callable[[Record], int]) -> int:
        return max(map(count, latest))

    ratio, scale, later = zeros(happenings)
    first_bad = [r.first_nonfinite_loss_step for r in latest if r.first_nonfinite_loss_step]
    return events.RunTotals(
        steps=newest.step,
        skipped=most(lambda r: r.skipped),
        growths=most(lambda r: r.growths),
        backoffs=most(lambda r: r.backoffs),
        calibration_skips=most(lambda r: r.calibration_skips),
        longest_skip_streak=most(lambda r: r.longest_skip_streak),
        last_skip_step=most(lambda r: r.last_skip_step) or None,
        last_growth_step=most(lambda r: r.last_growth_step) or None,
        nonfinite_losses=most(lambda r: r.nonfinite_losses),
        first_nonfinite_loss_step=min(first_bad, default=None),
        backward_overflows=most(lambda r: r.backward_overflows),
        scale_lowest=min(_finite(r.scale_lowest for r in latest), default=None),
        scale_highest=max(_finite(r.scale_highest for r in latest), default=None),
        clip_calls=most(lambda r: r.clip_calls),
        scaled_clips=most(lambda r: r.scaled_clips),
        bypasses=most(lambda r: r.bypasses),
        scheduler_steps=most(lambda r: r.scheduler_steps),
        dropped=most(lambda r: r.dropped),
        errors=most(lambda r: r.errors),
        recorder_seconds=max(_finite(r.recorder_seconds for r in latest), default=0.0),
        tokens=max(_finite(r.tokens_total for r in latest), default=None),
        samples=max(_finite(r.samples_total for r in latest), default=None),
        gradient_zero_ratio=ratio,
        gradient_zero_scale=scale,
        gradient_zero_ratio_later=later,
    )


def zeros(
    happenings: Iterable[Happening],
) -> tuple[float | None, float | None, float | None]:
    """Return the highest share of zero gradients sampled, its loss scale, and the share later.

    The share later is that at the highest scale sampled after it. None where there is none.
    """
    samples = [
        (happening.values["ratio"], happening.values.get("scale"))
        for happening in happenings
        if happening.kind == "gradient-zeros" and "ratio" in happening.values
    ]
    if not samples:
        return None, None, None
    worst = max(range(len(samples)), key=lambda index: samples[index][0])
    after = [(scale, ratio) for ratio, scale in samples[worst + 1 :] if scale is not None]
    later = max(after, key=lambda pair: pair[0])[1] if after else None
    return *samples[worst], later


def history(
    stored: Sequence[Bucket], records: Sequence[Record]
) -> tuple[int, tuple[events.HistoryBucket, ...]]:
    """Return the stride and all buckets: the ring's, with the newest steps added from records."""
    # While the writer doubles the stride, slots of both lie side by side for a moment.
    stride = max((_stride(bucket) for bucket in stored), default=1)
    by_slot = {
        bucket.slot: bucket
        for bucket in stored
        if bucket.first_step == bucket.slot * stride + 1 and bucket.steps <= stride
    }
    covered = max((b.first_step + b.steps - 1 for b in by_slot.values()), default=0)
    fresh: dict[int, list[Record]] = {}
    for record in records:
        if record.step > covered:
            fresh.setdefault((record.step - 1) // stride, []).append(record)
    for slot, added in fresh.items():
        begun = slot in by_slot or added[0].step == slot * stride + 1
        if slot < layout.HISTORY_SLOTS and begun:
            by_slot[slot] = _extended(by_slot.get(slot), slot, stride, added)
    return stride, tuple(_event_bucket(by_slot[slot]) for slot in sorted(by_slot))


def stepped_at(records: Sequence[Record]) -> float | None:
    """The wall-clock time of the newest step in s since the epoch, None where it is not known."""
    return known(records[-1].time) if records else None


def known(value: float) -> float | None:
    """Return a finite number, None for NaN and the infinities."""
    return value if math.isfinite(value) else None


def _settled(records: Sequence[Record]) -> Record:
    for record in reversed(records[-SETTLING_STEPS:]):
        if not record.flags & layout.PENDING:
            return record
    return records[-1]


def _true_if_known(value: float) -> bool | None:
    return None if math.isnan(value) else True


def _norm_finite(record: Record) -> bool | None:
    if not math.isnan(record.gradient_norm):
        return math.isfinite(record.gradient_norm)
    # A norm that was read and is NaN; of scaled gradients it says nothing.
    read = record.flags & (layout.CLIP_CALLED | layout.NORM_SAMPLED)
    return False if read and not record.flags & (layout.PENDING | layout.SCALED_CLIP) else None


def _autocast(flags: int) -> events.AutocastType | None:
    if flags & layout.AUTOCAST_FP16:
        return "fp16"
    return "bf16" if flags & layout.AUTOCAST_BF16 else None


def _integer(value: float) -> int | None:
    return int(value) if 0 <= value < 2**63 else None


def _count(flags: Sequence[int], bit: int) -> int:
    return sum(1 for value in flags if value & bit)


def _skipped_after_growth(record: Record) -> bool:
    if not record.flags & layout.SKIPPED or not record.last_growth_step:
        return False
    return 0 < record.step - record.last_growth_step <= GROWTH_PROBE_STEPS


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _sum(values: Iterable[float]) -> float:
    """The exact sum; infinite where it is beyond a float."""
    listed = list(values)
    try:
        return math.fsum(listed)
    except OverflowError:
        return sum(listed)


def _mean(values: Iterable[float]) -> float | None:
    finite = _finite(values)
    return _sum(finite) / len(finite) if finite else None


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    ordered, middle = sorted(values), len(values) // 2
    if len(values) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def _high(times: Sequence[float]) -> float | None:
    """The 95th percentile by nearest rank."""
    if not times:
        return None
    return sorted(times)[math.ceil(HIGH_SHARE * len(times)) - 1]


def _per_second(records: Sequence[Record], amount: Callable[[Record], float]) -> float | None:
    """Sum of an amount over the sum of step times, over the steps in which both are known."""
    pairs = [
        (value, record.step_seconds)
        for record in records
        if math.isfinite(value := amount(record)) and math.isfinite(record.step_seconds)
    ]
    seconds = _sum(pair[1] for pair in pairs)
    return _sum(pair[0] for pair in pairs) / seconds if seconds > 0 else None


def _stride(bucket: Bucket) -> int:
    """The stride that a slot tells: bucket i begins at step i * stride + 1."""
    return max((bucket.first_step - 1) // bucket.slot, 1) if bucket.slot else 1


def _extended(bucket: Bucket | None, slot: int, stride: int, added: Sequence[Record]) -> Bucket:
    """A bucket, or None for an empty one, with the steps of records that come after it."""
    first = slot * stride + 1
    before = bucket or _empty_bucket(slot, first)
    flags = [record.flags for record in added]
    nonfinite = _count(flags, layout.NONFINITE_LOSS)
    losses = [r.loss for r in added if not r.flags & layout.NONFINITE_LOSS]
    scales = _finite((before.scale_lowest, before.scale_highest, *(r.scale for r in added)))
    norms = _finite((before.gradient_norm_highest, *(r.gradient_norm for r in added)))
    return Bucket(
        slot=slot,
        first_step=first,
        steps=added[-1].step - first + 1,
        skipped=before.skipped + _count(flags, layout.SKIPPED),
        scale_lowest=min(scales, default=math.nan),
        scale_highest=max(scales, default=math.nan),
        loss_mean=_joint_mean(before.loss_mean, before.steps - before.nonfinite_losses, losses),
        gradient_norm_highest=max(norms, default=math.nan),
        nonfinite_losses=before.nonfinite_losses + nonfinite,
        mean_step_seconds=_joint_mean(
            before.mean_step_seconds, before.steps, (r.step_seconds for r in added)
        ),
    )


def _empty_bucket(slot: int, first: int) -> Bucket:
    nan = math.nan
    return Bucket(slot, first, 0, 0, nan, nan, nan, nan, 0, nan)


def _joint_mean(mean: float, weight: int, added: Iterable[float]) -> float:
    """The mean of `weight` values of a known mean and the finite ones added."""
    values = _finite(added)
    if not math.isfinite(mean) or weight <= 0:
        mean, weight = 0.0, 0
    count = weight + len(values)
    return (mean * weight + _sum(values)) / count if count else math.nan


def _event_bucket(bucket: Bucket) -> events.HistoryBucket:
    return events.HistoryBucket(
        first_step=bucket.first_step,
        steps=bucket.steps,
        skipped=bucket.skipped,
        scale_lowest=known(bucket.scale_lowest),
        scale_highest=known(bucket.scale_highest),
        loss_mean=known(bucket.loss_mean),
        nonfinite_losses=bucket.nonfinite_losses,
        gradient_norm_highest=known(bucket.gradient_norm_highest),
        mean_step_seconds=known(bucket.mean_step_seconds),
    )

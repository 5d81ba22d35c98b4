"""The whole run in 256 buckets, held against a count of all steps by hand."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ring_runs import new_run, values

from topsmon import events
from topsmon.training import window
from topsmon.training.reader import RingReader
from topsmon.training.recorder import layout


@dataclass
class Step:
    loss: float
    nonfinite: bool
    skipped: bool
    scale: float
    norm: float
    seconds: float

    def values(self, step: int) -> list[float]:
        flags = layout.SKIPPED * self.skipped + layout.NONFINITE_LOSS * self.nonfinite
        return values(
            step,
            loss=self.loss,
            flags=flags,
            scale=self.scale,
            gradient_norm=self.norm,
            step_seconds=self.seconds,
        )


maybe = st.one_of(st.just(math.nan), st.floats(0.001, 1000.0))
steps = st.builds(
    Step,
    loss=st.one_of(maybe, st.just(math.inf)),
    nonfinite=st.just(False),
    skipped=st.booleans(),
    scale=maybe,
    norm=st.one_of(maybe, st.just(math.inf)),
    seconds=maybe,
).map(lambda s: Step(s.loss, math.isinf(s.loss), s.skipped, s.scale, s.norm, s.seconds))


def by_hand(run: list[Step], stride: int) -> list[events.HistoryBucket]:
    found = []
    for start in range(0, len(run), stride):
        part = run[start : start + stride]
        losses = [s.loss for s in part if math.isfinite(s.loss)]
        scales = [s.scale for s in part if math.isfinite(s.scale)]
        norms = [s.norm for s in part if math.isfinite(s.norm)]
        seconds = [s.seconds for s in part if math.isfinite(s.seconds)]
        found.append(
            events.HistoryBucket(
                first_step=start + 1,
                steps=len(part),
                skipped=sum(s.skipped for s in part),
                scale_lowest=min(scales, default=None),
                scale_highest=max(scales, default=None),
                loss_mean=sum(losses) / len(losses) if losses else None,
                nonfinite_losses=sum(s.nonfinite for s in part),
                gradient_norm_highest=max(norms, default=None),
                mean_step_seconds=sum(seconds) / len(seconds) if seconds else None,
            )
        )
    return found


def assert_alike(found: events.HistoryBucket, wanted: events.HistoryBucket) -> None:
    for name in events.HistoryBucket.__struct_fields__:
        one, other = getattr(found, name), getattr(wanted, name)
        assert one == (other if other is None else pytest.approx(other, rel=1e-9)), name


def stride_of(count: int) -> int:
    stride = 1
    while count > 256 * stride:
        stride *= 2
    return stride


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pattern=st.lists(steps, min_size=1, max_size=40),
    count=st.one_of(st.integers(1, 300), st.integers(500, 1100), st.just(256), st.just(257)),
    amend=st.lists(st.tuples(st.integers(1, 8), steps), max_size=6),
    data=st.data(),
)
def test_buckets_count_every_step_once_whenever_it_is_amended(
    monkeypatch: pytest.MonkeyPatch,
    pattern: list[Step],
    count: int,
    amend: list[tuple[int, Step]],
    data: st.DataObject,
) -> None:
    """Amendments replace what was counted; extremes of what they replace stay, so keep those."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TOPSMON_DIR", f"{folder}/rings")
        writer = new_run()
        run = [pattern[index % len(pattern)] for index in range(count)]
        times = sorted(data.draw(st.lists(st.integers(1, count), max_size=len(amend))))
        for number, one in enumerate(run, 1):
            writer.write(one.values(number))
            for (back, other), when in zip(amend, times, strict=False):
                if when == number and number > back:
                    old = run[number - back - 1]
                    new = Step(other.loss, other.nonfinite, other.skipped, old.scale, old.norm, 0.5)
                    run[number - back - 1] = new
                    writer.write(new.values(number - back))
        reader = RingReader(Path(writer.path))
        stride, found = window.history(reader.history(), reader.window())
        assert stride == stride_of(count)
        wanted = by_hand(run, stride)
        assert len(found) == len(wanted)
        # The open bucket's mean is made of a stored mean and the newest steps: the writer's close
        # stores it whole.
        writer.close()
        _, closed = window.history(reader.history(), reader.window())
        for one, two in zip(closed, wanted, strict=True):
            assert_alike(one, two)
        for one, two in zip(found[:-1], wanted[:-1], strict=True):
            assert_alike(one, two)


@pytest.mark.parametrize("count", [1, 127, 128, 129, 256, 257, 512, 513, 5000, 33_000])
def test_the_open_bucket_is_completed_from_the_newest_steps(rings: Path, count: int) -> None:
    writer = new_run()
    one = Step(loss=2.0, nonfinite=False, skipped=True, scale=4.0, norm=3.0, seconds=0.5)
    for number in range(1, count + 1):
        writer.write(one.values(number))
    reader = RingReader(Path(writer.path))
    stride, found = window.history(reader.history(), reader.window())
    assert stride == stride_of(count)
    assert list(found) == by_hand([one] * count, stride)


def test_a_day_of_steps_keeps_the_file_s_size_and_every_count(rings: Path) -> None:
    """200,000 steps: a day at more than two a second."""
    count = 200_000
    writer = new_run()
    size = Path(writer.path).stat().st_size
    skipped = 0
    record = values(1, loss=1.0, scale=65536.0, step_seconds=0.432)
    step_at, flags_at, skipped_at = (
        layout.RECORD_NAMES.index(name) for name in ("step", "flags", "skipped")
    )
    for step in range(1, count + 1):
        bad = step % 2000 == 1
        skipped += bad
        record[step_at], record[flags_at] = step, layout.SKIPPED * bad
        record[skipped_at] = skipped
        writer.write(record)
        if bad:
            writer.event("skip", step)
    assert Path(writer.path).stat().st_size == size
    reader = RingReader(Path(writer.path))
    newest = reader.window()[-1]
    assert (newest.step, newest.skipped) == (count, 100)
    assert [number for number, _ in reader.happenings()] == list(range(1, 101))
    stride, buckets = window.history(reader.history(), reader.window())
    assert stride == 1024
    assert len(buckets) == math.ceil(count / 1024)
    assert sum(bucket.steps for bucket in buckets) == count
    assert sum(bucket.skipped for bucket in buckets) == 100
    assert {bucket.loss_mean for bucket in buckets} == {1.0}
    seconds = sum(bucket.steps * (bucket.mean_step_seconds or 0.0) for bucket in buckets)
    assert seconds == pytest.approx(86_400.0)


def test_slots_of_two_strides_side_by_side_are_not_mixed(rings: Path) -> None:
    """While the stride doubles a reader may find the first slots new and the others old."""
    writer = new_run()
    for step in range(1, 257):
        writer.write(values(step, loss=1.0))
    reader = RingReader(Path(writer.path))
    old = reader.history()
    writer.write(values(257, loss=1.0))
    new = RingReader(Path(writer.path)).history()
    for cut in (1, 2, 3, 64, 127):
        mixed = (*new[:cut], *old[cut:])
        stride, buckets = window.history(mixed, ())
        assert all(bucket.steps <= stride for bucket in buckets)
        assert all((bucket.first_step - 1) % stride == 0 for bucket in buckets)
        counted = [s for b in buckets for s in range(b.first_step, b.first_step + b.steps)]
        assert len(counted) == len(set(counted))

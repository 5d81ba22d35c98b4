"""Rates kept from session to session."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topsmon import events, results
from topsmon.state import State


def rate(tera: float | None = 700.0, **changes: Any) -> events.RateMeasured:
    fields: dict[str, Any] = {
        "time": 1000.0,
        "monotonic": 1.0,
        "source": "node",
        "device": "GPU-0",
        "precision": "bf16",
        "rate_ops_per_second": None if tera is None else tera * 1e12,
        "shape": (4096, 4096, 4096),
        "correct": True,
    }
    return events.RateMeasured(**{**fields, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "rates.jsonl"


def test_saved_rates_come_back(path: Path) -> None:
    kept = [rate(), rate(50.0, precision="fp32"), rate(650.0, device="GPU-1")]
    results.save(path, kept)
    assert sorted(results.load(path), key=str) == sorted(kept, key=str)


def test_nothing_saved_is_nothing_loaded(path: Path) -> None:
    assert results.load(path) == []
    results.save(path, [])
    assert not path.exists()


def test_a_newer_rate_replaces_an_older_one_and_not_the_other_way(path: Path) -> None:
    results.save(path, [rate(700.0, time=1000.0)])
    results.save(path, [rate(710.0, time=2000.0)])
    results.save(path, [rate(720.0, time=1500.0)])
    assert results.load(path) == [rate(710.0, time=2000.0)]


def test_rates_of_other_devices_stay(path: Path) -> None:
    results.save(path, [rate(device="GPU-0")])
    results.save(path, [rate(device="GPU-1")])
    assert {result.device for result in results.load(path)} == {"GPU-0", "GPU-1"}


@pytest.mark.parametrize(
    "bad",
    [rate(correct=False), rate(valid=False), rate(None), rate(0.0), rate(-1.0), rate(float("nan"))],
)
def test_what_must_not_be_trusted_is_not_kept(path: Path, bad: events.RateMeasured) -> None:
    results.save(path, [bad])
    assert results.load(path) == []


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (rate(1e18), "impossible rate"),  # 1e30 ops/s
        (rate(1.1e7), "impossible rate"),
        (rate(-1.0), "impossible rate"),
        (rate(held_clock_mhz=10_001.0), "impossible clock"),
        (rate(held_clock_mhz=0.0), "impossible clock"),
        (rate(shape=(4096, 0, 4096)), "impossible shape"),
        (rate(shape=(4096, 4096, 1 << 40)), "impossible shape"),
        (rate(time=NOW + 90_000), "time in the future"),
        (rate(time=-1.0), "impossible time"),
        (rate(correct=False), "wrong or invalid result"),
    ],
)
def test_what_cannot_be_is_skipped_with_its_reason(
    path: Path, bad: events.RateMeasured, reason: str
) -> None:
    path.parent.mkdir()
    path.write_bytes(events.encode(bad) + b"garbage\n" + events.encode(rate(precision="fp32")))
    loaded = results.read(path, NOW)
    assert loaded.results == (rate(precision="fp32"),)
    assert loaded.skipped == {reason: 1, "no saved rate": 1}
    assert results.load(path) == [rate(precision="fp32")] or bad.time > NOW


def test_what_is_high_but_possible_is_kept(path: Path) -> None:
    high = rate(15_000.0, held_clock_mhz=6_200.0, time=NOW + 3600, shape=None)
    path.parent.mkdir()
    path.write_bytes(events.encode(high))
    assert results.read(path, NOW) == ((high,), {})


def test_a_pipe_in_its_place_is_not_waited_for(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    assert results.load(path) == []


def test_simulated_rates_are_never_kept() -> None:
    state = State()
    device = events.Device(
        time=1.0, monotonic=1.0, source="n", device="GPU-0", kind="gpu", index=0, name="x"
    )
    hello = events.Hello(
        time=1.0,
        monotonic=1.0,
        source="n",
        version="1",
        schema=1,
        role="poller",
        pid=1,
        simulated="idle",
    )
    for event in (device, rate()):
        state.apply(event, 1.0)
    assert results.worth_keeping(state) == [rate()]
    state.apply(hello, 1.0)
    assert results.worth_keeping(state) == []


def test_the_file_is_private_and_replaced_in_one_step(path: Path) -> None:
    results.save(path, [rate()])
    first = path.stat().st_ino
    results.save(path, [rate(time=2000.0)])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_ino != first
    assert [entry.name for entry in path.parent.iterdir()] == ["rates.jsonl"]


def test_an_unchanged_file_is_left_alone(path: Path) -> None:
    results.save(path, [rate()])
    before = path.stat().st_ino
    results.save(path, [rate()])
    assert path.stat().st_ino == before


def test_the_file_does_not_grow_without_bound(path: Path) -> None:
    results.save(path, [rate(device=f"GPU-{n}", time=float(n)) for n in range(700)])
    loaded = results.load(path)
    assert len(loaded) == results.MAX_RESULTS == 512
    assert {result.device for result in loaded} == {f"GPU-{n}" for n in range(188, 700)}


def test_a_directory_that_cannot_be_written_leaves_the_old_file(path: Path) -> None:
    results.save(path, [rate()])
    blocked = path / "below a file" / "rates.jsonl"
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        results.save(blocked, [rate()])
    assert results.load(path) == [rate()]
    assert results.load(path.parent) == []  # a directory in its place


def test_good_lines_among_bad_ones_are_read(path: Path) -> None:
    path.parent.mkdir()
    good = events.encode(rate())
    huge = events.encode(rate(device="GPU-9", note="x" * 20000))
    path.write_bytes(b"garbage\n\xff\xfe\n{}\n" + huge + good + good[: len(good) // 2])
    assert results.load(path) == [rate()]
    results.save(path, [rate(precision="fp32")])
    assert len(results.load(path)) == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_garbage_is_never_fatal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rates.jsonl"
    path.write_bytes(content)
    results.load(path)
    results.save(path, [rate()])
    assert rate() in results.load(path)
    path.unlink()

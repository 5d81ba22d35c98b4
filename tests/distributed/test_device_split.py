"""The split over one machine's GPUs, from what `topsmon bench --advice` has measured."""

from typing import Any

import pytest

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.device_split import split_of
from topsmon.report.ranks_text import split_lines
from topsmon.state import State

STAMP: dict[str, Any] = {"time": 1.0, "monotonic": 1.0, "source": "node0"}
GIB = 1 << 30


def machine(*cards: tuple[float, dict[str, float]]) -> list[DeviceState]:
    """GPUs by free memory in GiB and rates in tera-operations per second by precision."""
    state = State()
    for at, (free, rates) in enumerate(cards):
        key = f"GPU-{at}"
        total = int(80 * GIB)
        told: list[events.AnyEvent] = [
            events.Device(**STAMP, device=key, kind="gpu", index=at, name=f"GPU {at}", uuid=key),
            events.DeviceSample(
                **STAMP,
                device=key,
                memory_total_bytes=total,
                memory_used_bytes=total - int(free * GIB),
            ),
        ]
        told += [
            events.RateMeasured(
                **STAMP,
                device=key,
                precision=precision,
                rate_ops_per_second=rate * 1e12,
                correct=True,
                shape=(8192, 8192, 8192),
            )
            for precision, rate in rates.items()
        ]
        for event in told:
            state.apply(event, 1.0)
    return list(state.ordered())


def test_free_memory_and_the_training_type_decide() -> None:
    # BF16 90 and 10 %, memory 50 and 50 %: min 50 and 10, normalised 83.3 and 16.7 %.
    devices = machine((60, {"bf16": 900, "fp32": 50}), (60, {"bf16": 100, "fp32": 50}))
    found = split_of(devices)
    assert found is not None
    assert [one.batch for one in found.shares] == pytest.approx([5 / 6, 1 / 6])
    told = " ".join(" ".join(split_lines(found)).split())
    assert "GPU 0: 83.3% of the batch (memory 50.0%, rate 90.0%)" in told
    assert "by memory alone" in told


def test_a_type_that_only_one_has_shown_is_not_compared() -> None:
    devices = machine((40, {"bf16": 900, "fp32": 50}), (40, {"fp32": 50}))
    found = split_of(devices)
    assert found is not None
    assert [one.rate for one in found.shares] == pytest.approx([0.5, 0.5])
    assert split_lines(found) == []  # equal parts are as good


@pytest.mark.parametrize("cards", [[], [(40, {"bf16": 900.0})], [(40, {}), (40, {})]])
def test_nothing_to_split(cards: list[tuple[float, dict[str, float]]]) -> None:
    assert split_of(machine(*cards)) is None

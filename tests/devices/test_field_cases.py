"""Cases that users of other monitors have reported, each with the right reading."""

from __future__ import annotations

import pytest
from poller_process import Read, Simulate, one_gpu

from topsmon import events


def test_a_limit_that_moves_is_read_again(read: Read) -> None:
    """Dynamic Boost gives and takes watts while one looks; the default and the most stay."""
    moving = one_gpu(
        name="NVIDIA GeForce RTX 4070 Laptop GPU",
        power_limit_watts={"steps": [[0, 105], [3, 55], [6, 80]]},
        power_limit_default_watts=80,
        power_limit_min_watts=5,
        power_limit_max_watts=105,
    )
    result = read(moving, [float(second) for second in range(9)])
    limits = [sample.power_limit_watts for sample in result.samples]
    assert limits == [105] * 3 + [55] * 3 + [80] * 3
    assert result.device.power_limit_max_watts == 105
    assert {sample.power_limit_default_watts for sample in result.samples} == {80}


def test_a_limit_that_the_driver_does_not_tell_is_not_made_up(read: Read) -> None:
    content = one_gpu(name="NVIDIA GeForce RTX 4070 Laptop GPU", power_watts=54)
    sample = read(content, [0.0]).samples[0]
    assert sample.power_limit_watts is None
    assert "not supported" in sample.unavailable["power_limit_watts"]
    assert sample.power_watts == 54


@pytest.mark.parametrize("memory_busy", [0, 2])
def test_busy_without_work_has_its_second_witness(read: Read, memory_busy: int) -> None:
    """GPU-Util 100 % at 95 of 400 W: both numbers stand beside each other, none is corrected."""
    content = one_gpu(
        busy_percent=100, memory_busy_percent=memory_busy, power_watts=95, power_limit_watts=400
    )
    sample = read(content, [0.0]).samples[0]
    assert (sample.busy_ratio, sample.memory_busy_ratio) == (1.0, memory_busy / 100)
    assert (sample.power_watts, sample.power_limit_watts) == (95, 400)


@pytest.mark.real
def test_sixteen_slow_gpus_are_read_side_by_side(simulate: Simulate) -> None:
    """25 ms a call: whoever reads them one after the other has no second sample of the first
    before the last one's first."""
    content = one_gpu(power_watts=300, busy_percent=50, memory_busy_percent=1)
    slow = {"call": "nvmlDevice*", "latency": 0.025}
    poller = simulate({**content, "count": 16, "faults": [slow]}, interval=0.1)
    keys = [poller.key(index) for index in range(16)]
    for index in range(16):
        poller.first_sample(index)
    order = [event.device for event in poller.history if isinstance(event, events.DeviceSample)]
    first = {key: order.index(key) for key in keys}
    again = [place for place, key in enumerate(order) if key in first and place > first[key]]
    # Most have told their first sample before anyone tells a second.
    assert sum(place < min(again, default=len(order)) for place in first.values()) >= 8
    calls = poller.calls()
    busy = {device for name, device in calls[-64:] if device >= 0}
    assert len(busy) >= 8, "the calls of many GPUs are out at the same time"

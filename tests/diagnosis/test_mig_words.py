"""A GPU in MIG mode: its instances, each with its own ceilings and its own verdict."""

from typing import Any

import pytest
from machines import NOW, codes, gpu, header, machine, sample, samples

from topsmon import events
from topsmon.diagnosis import bound, mig
from topsmon.state import State

WHOLE = {"busy_ratio": None, "memory_busy_ratio": None, "memory_used_bytes": None}


def counters(turn: int, **changes: Any) -> events.GpuCounters:
    shares = {
        "graphics_active_ratio": 0.98,
        "sm_active_ratio": 0.9,
        "sm_occupancy_ratio": 0.3 + 0.01 * turn,
        "tensor_active_ratio": 0.2,
        "dram_active_ratio": 0.2,
        "fp64_active_ratio": 0.0,
        "fp32_active_ratio": 0.1,
        "fp16_active_ratio": 0.0,
        "integer_active_ratio": 0.1,
    }
    return events.GpuCounters(seconds=1.0, **{**shares, **changes})


def part(number: int, found: events.GpuCounters | None, **changes: Any) -> events.Slice:
    fields = {
        "uuid": f"MIG-{number}",
        "profile": "3g.40gb",
        "gpu_instance": number,
        "compute_instance": 0,
        "sm_count": 60,
        "memory_used_bytes": 10 * 2**30,
        "memory_total_bytes": 40 * 2**30,
        "counters": found,
    }
    return events.Slice(**{**fields, **changes})


def cut(count: int = 4) -> State:
    """Two instances: one bound by Tensor Cores, one by memory."""
    return machine(
        gpu(0, mig=True),
        samples(**WHOLE),
        [
            events.Slices(
                **header(NOW - count + turn),
                device="GPU-0",
                slices=(
                    part(1, counters(turn, tensor_active_ratio=0.9)),
                    part(2, counters(turn, dram_active_ratio=0.9)),
                ),
            )
            for turn in range(count)
        ],
        sample(NOW - 0.1, **WHOLE),
    )


def parts(state: State) -> tuple[mig.Part, ...]:
    return mig.parts(state, state.devices["GPU-0"], NOW)


def test_each_instance_has_its_own_verdict() -> None:
    first, second = parts(cut())
    assert (first.bound.kind, second.bound.kind) == ("tensor", "memory")
    assert mig.describe(first) == (
        "3g.40gb #1: 60 SMs, 10.0 of 40.0 GiB, SMs 90% active, Tensor Core-bound: 90% of their peak"
    )


def test_each_instance_has_the_ceilings_of_its_own_sms_and_memory() -> None:
    first, _ = parts(cut())
    by_precision = {one.precision: one.ops_per_second for one in first.ceilings.rates}
    # 60 of 132 SMs at the same clock; half of the memory has half of its bandwidth.
    full = {one.precision: one.ops_per_second for one in gpu(0)[1].rates}
    assert by_precision["bf16"] == pytest.approx(full["bf16"] * 60 / 132, rel=0.1)
    assert first.ceilings.memory_bandwidth_bytes_per_second == pytest.approx(3.35e12 / 2)


def test_the_gpu_as_a_whole_is_not_judged() -> None:
    state = cut()
    device = state.devices["GPU-0"]
    found = bound.of_device(state, device, NOW)
    assert found.kind == "cannot tell"
    assert "see its instances" in found.words
    assert mig.summary(device).startswith("in MIG mode, 2 instances: ")
    assert codes(state) == []


def test_few_readings_and_none_are_told() -> None:
    assert parts(cut(2))[0].bound.words == "cannot tell yet: 2 of 3 readings"
    blind = events.Slices(
        **header(NOW),
        device="GPU-0",
        slices=(part(1, None, unavailable={"counters": "GPM: no permission"}),),
    )
    state = cut()
    state.apply(blind, NOW)
    assert parts(state)[0].bound.words == "cannot tell: GPM: no permission"


def test_an_instance_that_was_removed_is_gone() -> None:
    state = cut()
    left = events.Slices(**header(NOW), device="GPU-0", slices=(part(2, counters(9)),))
    state.apply(left, NOW)
    assert [one.label for one in parts(state)] == ["3g.40gb #2"]
    state.apply(events.Slices(**header(NOW), device="GPU-0", slices=()), NOW)
    assert parts(state) == ()
    assert "no instance is visible" in mig.summary(state.devices["GPU-0"])


def test_a_gpu_that_is_not_cut_has_no_parts() -> None:
    state = machine(gpu(), samples())
    assert parts(state) == ()


def test_what_an_instance_does_not_tell_is_left_out() -> None:
    state = machine(
        gpu(0, mig=True),
        samples(**WHOLE),
        events.Slices(
            **header(NOW),
            device="GPU-0",
            slices=(
                events.Slice(uuid=None, profile=None, unavailable={"counters": "not supported"}),
            ),
        ),
    )
    (only,) = parts(state)
    assert mig.describe(only) == "instance: cannot tell: not supported"
    assert only.ceilings.unknown is not None

"""What bounds a GPU: averaged counters, own bursts left out, and honest words without counters."""

from typing import Any

import pytest
from machines import A100, H100, NOW, cpu, gpu, header, machine, rate, sample, status

from topsmon import events
from topsmon.diagnosis import bound
from topsmon.diagnosis.activity import average, readings
from topsmon.state import State

BUSY: dict[str, Any] = {
    "graphics_active_ratio": 0.98,
    "sm_active_ratio": 0.95,
    "sm_occupancy_ratio": 0.4,
    "tensor_active_ratio": 0.1,
    "dram_active_ratio": 0.2,
    "fp64_active_ratio": 0.0,
    "fp32_active_ratio": 0.1,
    "fp16_active_ratio": 0.0,
    "integer_active_ratio": 0.1,
}
NO_GPM = "no GPM on this device"


def counters(seconds: float = 1.0, **changes: Any) -> events.GpuCounters:
    return events.GpuCounters(seconds=seconds, **{**BUSY, **changes})


def watched(*found: events.GpuCounters | None, board: Any = H100, **changes: Any) -> State:
    """One sample a second, each with its counters, the last just before NOW."""
    last = len(found) - 1
    return machine(
        gpu(0, board),
        [
            sample(NOW - 0.1 - (last - place), counters=one, **changes)
            for place, one in enumerate(found)
        ],
    )


def verdict(state: State) -> bound.Bound:
    return bound.of_device(state, state.devices["GPU-0"], NOW)


def varying(count: int = 4, **changes: Any) -> list[events.GpuCounters]:
    """Distinct readings; occupancy, which decides nothing, varies."""
    return [counters(**changes, sm_occupancy_ratio=0.4 + 0.01 * turn) for turn in range(count)]


def test_a_memory_bound_kernel_with_its_numbers() -> None:
    found = verdict(watched(*varying(dram_active_ratio=0.92)))
    assert found.kind == "memory"
    assert found.words == "memory-bound: DRAM 92% of its bandwidth"
    assert found.missing == ()
    # 0.92 x 3.35 TB/s, the H100's data sheet figure.
    assert "about 3082 GB/s of 3350 GB/s" in found.evidence[-1]
    assert "mean of 4 readings, 4 s" in found.evidence[0]


def test_the_mean_counts_and_not_the_last_reading() -> None:
    state = watched(*varying(3, dram_active_ratio=0.92), counters(dram_active_ratio=0.3))
    assert verdict(state).kind == "memory"  # (3 x 0.92 + 0.3) / 4 = 0.765


def test_readings_weigh_by_their_time() -> None:
    found = [counters(2.0, tensor_active_ratio=0.9), *varying(2, tensor_active_ratio=0.3)]
    assert average(found, "tensor_active_ratio") == pytest.approx((2 * 0.9 + 2 * 0.3) / 4)


def test_one_reading_repeated_in_many_samples_is_one_reading() -> None:
    repeated = [counters(dram_active_ratio=0.92)] * 8
    found = verdict(watched(*repeated))
    assert (found.kind, found.words) == ("cannot tell", "cannot tell yet: 1 of 3 readings")


def test_own_bursts_are_kept_out() -> None:
    own = [counters(tensor_active_ratio=0.99, during_burst=True, sm_occupancy_ratio=0.1 * turn)
           for turn in range(4)]  # fmt: skip
    assert verdict(watched(*own, *varying(dram_active_ratio=0.9))).kind == "memory"
    alone = verdict(watched(*own))
    assert (alone.kind, alone.words) == (
        "cannot tell",
        "cannot tell: topsmon itself has computed in this time",
    )


def test_a_repeated_reading_is_own_if_any_of_its_samples_says_so() -> None:
    first = counters(during_burst=True)
    found = readings([first, counters(), counters(fp32_active_ratio=0.5), None])
    assert (len(found.others), found.own) == (1, 1)
    assert found.others[0].fp32_active_ratio == 0.5


def test_a_metric_that_is_missing_is_named_with_its_reason() -> None:
    lacking = varying(tensor_active_ratio=None, unavailable={"tensor_active_ratio": "unsupported"})
    found = verdict(watched(*lacking))
    assert found.kind == "cannot tell"
    assert found.words == "cannot tell: no Tensor Cores"
    assert found.missing == ("Tensor Cores: unsupported",)


def test_a_metric_that_comes_and_goes_is_missing() -> None:
    twice = [*varying(2, tensor_active_ratio=0.9), *varying(2, tensor_active_ratio=None)]
    assert verdict(watched(*twice)).kind == "cannot tell"


def test_busy_time_stands_in_for_the_engine() -> None:
    found = verdict(watched(*varying(graphics_active_ratio=None), busy_ratio=0.4))
    assert found.kind == "stalled"
    assert found.words == "stalled: rests for 60% of the time"


def test_throttling_outranks_the_units() -> None:
    hot = verdict(watched(*varying(tensor_active_ratio=0.9), clock_event_mask=0x40))
    assert (hot.kind, hot.words) == ("throttled", "throttled: HW thermal slowdown")
    counted = verdict(
        watched(
            *varying(tensor_active_ratio=0.9),
            throttle_ratios={"hw_thermal": 0.25, "sw_thermal": 0.0, "power": 0.7},
        )
    )
    assert counted.words == "throttled: HW thermal slowdown, 25% of the time"


def test_the_board_s_own_power_cap_is_evidence_and_no_verdict() -> None:
    found = verdict(
        watched(
            *varying(tensor_active_ratio=0.9),
            clock_event_mask=0x4,
            throttle_ratios={"power": 0.83},
        )
    )
    assert found.kind == "tensor"
    assert "power cap for 83% of the time, which is by design" in found.evidence[-1]


def test_a_lowered_power_limit_is_throttling() -> None:
    lowered = {"power_limit_watts": 350.0, "power_watts": 349.0, "clock_event_mask": 0x4}
    found = verdict(watched(*varying(tensor_active_ratio=0.9), **lowered))
    assert found.words == "throttled: power limit 350 W of 700 W"


def test_without_event_bits_or_times_nothing_is_claimed() -> None:
    found = verdict(watched(*varying(tensor_active_ratio=0.9), clock_event_mask=None))
    assert (found.kind, found.words) == ("cannot tell", "cannot tell: no throttled time")


def test_the_verdict_is_held_against_measured_rates() -> None:
    state = watched(*varying(tensor_active_ratio=0.6))
    assert verdict(state).kind == "tensor"
    assert any("at most" in line for line in verdict(state).evidence)
    # At 1755 of 1830 MHz the data sheet's 989 TFLOPS are 949; 700 are 0.738 of them, so that Tensor
    # Cores bound from 0.7 x 0.738 = 0.516 on, and not from 0.49 on.
    state.apply(rate("bf16", 700.0), NOW - 5)
    assert "best product here 700 TFLOPS" in "".join(verdict(state).evidence)
    lower = watched(*varying(tensor_active_ratio=0.50))
    assert verdict(lower).kind == "tensor"
    lower.apply(rate("bf16", 700.0), NOW - 5)
    assert verdict(lower).kind == "mixed"


def test_the_memory_limit_follows_the_memory_probe() -> None:
    probe = events.ProbeResult(
        **header(NOW - 50),
        device="GPU-0",
        probe="memory",
        values={"copy_bytes_per_second": 3.0e12, "copy_high_bytes_per_second": 9e12},
        correct=True,
    )
    state = watched(*varying(dram_active_ratio=0.65))
    assert verdict(state).kind == "memory"
    state.apply(probe, NOW - 50)
    assert verdict(state).kind == "mixed"  # 0.75 x 3.0 / 3.352 = 0.67


# Without counters ---------------------------------------------------------------------------------


def plainly(count: int = 10, **changes: Any) -> bound.Bound:
    fields = {"unavailable": {"counters": NO_GPM}, "power_limit_watts": 400.0, **changes}
    return verdict(watched(*[None] * count, board=A100, **fields))


def test_without_counters_only_the_reason_is_told_and_what_is_known() -> None:
    found = plainly(power_watts=360.0, sm_clock_mhz=1410.0)
    assert (found.kind, found.words) == ("cannot tell", f"cannot tell: {NO_GPM}")
    assert found.missing == (f"counters: {NO_GPM}",)
    assert found.evidence == (
        "busy 90% of the time: some kernel ran, however small",
        "90% of the power limit",
        "SM clock 100% of its maximum",
        "clocks held down 0% of the time",
    )


def test_busy_but_not_working() -> None:
    found = plainly(busy_ratio=1.0, power_watts=95.0, memory_busy_ratio=0.02)
    assert found.kind == "cannot tell"
    assert found.words == "busy but not working: 100% busy at 24% power"


@pytest.mark.parametrize(
    "changes",
    [
        {"power_watts": 130.0},
        {"memory_busy_ratio": 0.9},  # bound by memory needs little power
        {"busy_ratio": 0.9},
        {"power_watts": None},
        {"count": 4},
    ],
)
def test_not_busy_but_not_working(changes: dict[str, Any]) -> None:
    base = {"busy_ratio": 1.0, "power_watts": 95.0, "memory_busy_ratio": 0.02}
    assert plainly(**{**base, **changes}).words == f"cannot tell: {NO_GPM}"


def test_idle_and_throttled_can_be_told_without_counters() -> None:
    assert plainly(busy_ratio=0.0).kind == "idle"
    assert plainly(busy_ratio=None).kind == "cannot tell"
    assert plainly(clock_event_mask=0x20).words == "throttled: SW thermal slowdown"


def teeth(*more: Any) -> bound.Bound:
    found = [
        sample(
            NOW - 0.1 - 0.5 * back,
            busy_ratio=0.96 if back % 4 < 2 else 0.0,
            unavailable={"counters": NO_GPM},
        )
        for back in reversed(range(24))
    ]
    return verdict(machine(gpu(0, A100, power_limit_default_watts=700.0), found, *more))


def test_a_sawtooth_is_stalled_unless_topsmon_itself_made_it() -> None:
    assert teeth().words == "stalled: works in bursts, rests for 52% of the time"
    assert teeth(rate("bf16", 300.0, valid=True)).kind == "cannot tell"


def test_what_is_not_read_now_is_not_judged() -> None:
    state = watched(*varying())
    late = bound.of_device(state, state.devices["GPU-0"], NOW + 60)
    assert late.words == "cannot tell: the device is not read now"
    state.apply(status("lost", NOW, NOW), NOW)
    assert verdict(state).kind == "cannot tell"
    nothing = machine(gpu())
    assert verdict(nothing).kind == "cannot tell"
    processor = machine(cpu())
    assert bound.of_device(processor, processor.devices["cpu"], NOW).kind == "cannot tell"


def test_counters_that_were_lost_are_not_used_any_longer() -> None:
    found = [*varying(dram_active_ratio=0.95), None]
    state = watched(*found, unavailable={"counters": "GPM: no permission"})
    assert verdict(state).words == "cannot tell: GPM: no permission"


def test_words_are_ascii_and_fit_a_line() -> None:
    for changes in ({}, {"dram_active_ratio": 0.9}, {"tensor_active_ratio": None}):
        found = verdict(watched(*varying(**changes)))
        assert all(line.isascii() for line in (found.words, *found.evidence, *found.missing))
        assert len(found.words) <= 80

"""What polling costs the driver: counted in its call log, not timed."""

from __future__ import annotations

from collections import Counter

import pytest
from poller_process import Poller, Read, Simulate

from topsmon import events
from topsmon.devices import metrics


def after_ticks(poller: Poller, ticks: int) -> Counter[str]:
    """Calls to GPU 0 between the first sample and that many samples later."""
    poller.sample(0)
    before = Counter(name for name, device in poller.calls() if device == 0)
    for _ in range(ticks):
        poller.sample(0)
    return Counter(name for name, device in poller.calls() if device == 0) - before


def test_handles_and_identity_are_read_once(simulate: Simulate) -> None:
    poller = simulate("h100-8")
    for _ in range(5):
        poller.sample(0)
    calls = Counter(poller.calls())
    assert calls["nvmlInitWithFlags", -1] == 1
    for index in range(8):
        assert calls["nvmlDeviceGetHandleByIndex_v2", index] == 1
        assert calls["nvmlDeviceGetCudaComputeCapability", index] == 1
        assert calls["nvmlDeviceGetPciInfo_v3", index] == 1


def test_fast_ticks_read_slow_things_slowly(simulate: Simulate) -> None:
    """At 10 samples a second: fast readings 5 times a second, the others at their own pace."""
    calls = after_ticks(simulate("h100-8", interval=0.1), 8)
    assert 3 <= calls["nvmlDeviceGetPowerUsage"] <= 6
    assert calls["nvmlDeviceGetMemoryInfo_v2"] <= 1
    assert calls["nvmlDeviceGetCurrPcieLinkWidth"] <= 1
    assert calls["nvmlDeviceGetComputeRunningProcesses_v3"] == 0
    assert calls["nvmlDeviceGetMaxPcieLinkWidth"] == 0


def test_what_is_not_supported_is_not_asked_again(simulate: Simulate) -> None:
    poller = simulate("laptop", interval=0.1)
    for _ in range(4):
        poller.sample(0)
    calls = Counter(name for name, _ in poller.calls())
    assert calls["nvmlDeviceGetTotalEnergyConsumption"] == 1
    assert calls["nvmlDeviceGetTotalEccErrors"] == 4
    assert calls["nvmlDeviceGetMarginTemperature"] <= 1


def test_calls_that_measure_for_20_ms_are_never_made(simulate: Simulate) -> None:
    poller = simulate("h100-8")
    poller.sample(0)
    assert "nvmlDeviceGetPcieThroughput" not in {name for name, _ in poller.calls()}


def test_a_slow_gpu_holds_up_no_other(simulate: Simulate) -> None:
    """50 ms a call on GPU 0, which needs dozens for its first sample: GPU 1 is well ahead."""
    content = {
        "title": "slow",
        "description": "one slow GPU",
        "expected": "ok",
        "extends": "h100-8",
        "count": 2,
        "faults": [{"call": "nvmlDevice*", "device": 0, "latency": 0.05}],
    }
    poller = simulate(content, interval=0.1)
    for _ in range(5):
        poller.sample(1)
    told = {event.device for event in poller.history if isinstance(event, events.DeviceSample)}
    assert told == {poller.key(1), "cpu"}


def test_periods_are_the_documented_ones() -> None:
    periods = {metric.name: metric.period_seconds for metric in (*metrics.LIVE, *metrics.HEALTH)}
    assert {periods[name] for name in ("utilisation", "power_watts", "sm_clock_mhz")} == {0.2}
    assert {periods[name] for name in ("memory", "temperature_celsius", "energy_joules")} == {1.0}
    assert periods["pcie_width"] == 2.0
    assert periods["ecc_uncorrected_volatile"] == 5.0
    assert periods["row remapping"] == 30.0


@pytest.mark.parametrize(
    ("scenario", "counters", "most"),
    [
        # Fast 5, middle 7 and one batch, GPM 3, links 1 + 1.8, engines 1.5, errors 1.4, rest.
        ("h100-8", True, 24),
        ("h100-8", False, 22),
        ("rtx4090", False, 18),
        ("laptop", False, 15),
    ],
)
def test_calls_per_second_at_one_sample_a_second(
    read: Read, scenario: str, counters: bool, most: float
) -> None:
    """A minute of scenario time after the first sample, without processes."""
    seconds = [float(second) for second in range(61)]
    calls = [time for time, _, _ in read(scenario, seconds, counters=counters).calls if time >= 1]
    assert len(calls) / 60 <= most


def test_calls_per_second_at_ten_samples_a_second(read: Read) -> None:
    """Ten times the samples cost less than twice the calls: what is slow keeps its own pace."""
    tenths = [tick / 10 for tick in range(101)]
    calls = [name for time, name, _ in read("h100-8", tenths).calls if time >= 1]
    assert len(calls) / 9 <= 45
    assert Counter(calls)["nvmlDeviceGetPowerUsage"] / 9 <= 5.2
    assert Counter(calls)["nvmlDeviceGetFieldValues"] / 9 <= 2.5
    assert Counter(calls)["nvmlGpmSampleGet"] / 9 <= 1.2


def test_what_the_driver_does_not_know_is_asked_once(read: Read) -> None:
    """The unknown calls and fields of an old driver, over a minute."""
    result = read("driver-470", [float(second) for second in range(61)])
    calls = Counter(name for _, name, _ in result.calls)
    for sample in result.samples[-1:]:
        unsupported = [name for name, why in sample.unavailable.items() if "NotSupported" in why]
    assert unsupported
    assert calls["nvmlGpmSampleAlloc"] == 0  # the symbol is not there
    assert calls["nvmlDeviceGetRetiredPagesPendingStatus"] <= 3

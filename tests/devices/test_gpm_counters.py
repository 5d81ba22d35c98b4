"""GPM: asked for by a real sample, each metric for itself, only while somebody looks."""

from __future__ import annotations

import ctypes
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from poller_process import Read, Simulate, one_gpu

from topsmon import events
from topsmon.devices import gpm, nvml
from topsmon.devices.gpm import Gpm
from topsmon.devices.nvml import Driver, Unavailable, Watch
from topsmon.devices.reader import Reader

HOPPER = one_gpu(gpm_supported=1, gpm_sm_percent=50, gpm_tensor_percent=25)


class FakeGpm:
    """GPM functions as nvidia-ml-py has them, with every sample counted."""

    NVMLError = pynvml.NVMLError
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t  # noqa: N815 - NVML's name
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION

    def __init__(self) -> None:
        self.held = 0
        self.calls: Counter[str] = Counter()
        self.code = 0
        self.values: dict[int, tuple[int, float]] = {}
        self._kept: list[Any] = []

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802 - NVML's name
        self.held += 1
        self._kept.append(pynvml.struct_c_nvmlGpmSample_t())
        return ctypes.pointer(self._kept[-1])

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802 - NVML's name
        assert sample
        self.held -= 1

    def nvmlGpmSampleGet(self, handle: object, sample: Any) -> Any:  # noqa: N802 - NVML's name
        self.calls["sample"] += 1
        if self.code:
            raise pynvml.NVMLError(self.code)
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:  # noqa: N802 - NVML's name
        self.calls["metrics"] += 1
        assert request.version == 1
        for metric in request.metrics[: request.numMetrics]:
            # The slices of a ctypes array are copies of references: writes reach the request.
            metric.nvmlReturn, metric.value = self.values.get(metric.metricId, (3, 0.0))
        return request


def sampler(fake: FakeGpm) -> tuple[Gpm, SimpleNamespace]:
    clock = SimpleNamespace(now=0.0)
    reader = Reader(Driver(fake), Watch(), "handle", clock=lambda: clock.now)
    return Gpm(reader), clock


def read_at(sampler: Gpm, clock: SimpleNamespace, now: float) -> Any:
    clock.now = now
    return sampler.read()


def test_two_samples_give_the_time_between_them() -> None:
    fake = FakeGpm()
    fake.values = {2: (0, 80.0), 10: (0, 40.0)}
    one, clock = sampler(fake)
    first = read_at(one, clock, 0.0)
    assert isinstance(first, Unavailable)
    assert first.reason == "two readings are needed"
    counters = read_at(one, clock, 1.5)
    assert (counters.seconds, counters.sm_active_ratio, counters.dram_active_ratio) == (
        1.5,
        0.8,
        0.4,
    )
    assert counters.tensor_active_ratio is None
    assert "NotSupported" in counters.unavailable["tensor_active_ratio"]
    assert not counters.during_burst


def test_samples_of_less_than_100_ms_apart_are_not_compared() -> None:
    fake = FakeGpm()
    one, clock = sampler(fake)
    read_at(one, clock, 0.0)
    assert isinstance(read_at(one, clock, 0.1), Unavailable)
    assert fake.calls == {"sample": 1}


def test_a_metric_that_is_not_supported_is_asked_for_once() -> None:
    fake = FakeGpm()
    fake.values = {2: (0, 10.0), 5: (999, 0.0)}
    one, clock = sampler(fake)
    read_at(one, clock, 0.0)
    asked: list[set[int]] = []
    answer = fake.nvmlGpmMetricsGet

    def spy(request: Any) -> Any:
        asked.append({request.metrics[place].metricId for place in range(request.numMetrics)})
        return answer(request)

    fake.nvmlGpmMetricsGet = spy  # type: ignore[method-assign]
    for now in (1.0, 2.0):
        counters = read_at(one, clock, now)
        assert "NotSupported" in counters.unavailable["fp64_active_ratio"]
        assert "unknown driver error" in counters.unavailable["tensor_active_ratio"]
    assert asked == [set(gpm.METRICS), {2, 5}]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 250.0])
def test_a_share_that_cannot_be_is_not_shown(value: float) -> None:
    fake = FakeGpm()
    fake.values = {2: (0, value), 5: (0, 100.4)}
    one, clock = sampler(fake)
    read_at(one, clock, 0.0)
    counters = read_at(one, clock, 1.0)
    assert counters.sm_active_ratio is None
    assert "implausible" in counters.unavailable["sm_active_ratio"]
    assert counters.tensor_active_ratio == pytest.approx(1.004)  # not clamped


def test_permission_lost_in_mid_run_is_said_and_asked_again_after_a_minute() -> None:
    """DCGM#214: NoPermission after minutes in a container."""
    fake = FakeGpm()
    fake.values = {2: (0, 80.0)}
    one, clock = sampler(fake)
    read_at(one, clock, 0.0)
    assert read_at(one, clock, 1.0).sm_active_ratio == 0.8
    fake.code = nvml.NO_PERMISSION
    refused = read_at(one, clock, 2.0)
    assert refused.reason == "GPM: no permission (NVML NoPermission)"
    assert fake.held == 0
    fake.code = 0
    assert read_at(one, clock, 61.0).kind == "permission"
    assert read_at(one, clock, 62.0).reason == "two readings are needed"
    assert read_at(one, clock, 63.0).sm_active_ratio == 0.8


def test_samples_are_reused_and_freed() -> None:
    fake = FakeGpm()
    fake.values = {2: (0, 80.0)}
    one, clock = sampler(fake)
    for now in range(20):
        read_at(one, clock, float(now))
    assert fake.held == 2
    one.free()
    assert fake.held == 0
    assert read_at(one, clock, 30.0).reason == "two readings are needed"


def test_a_device_without_gpm_is_asked_once() -> None:
    fake = FakeGpm()
    fake.code = nvml.NOT_SUPPORTED
    one, clock = sampler(fake)
    for now in range(3):
        assert "no GPM on this device" in read_at(one, clock, float(now)).reason
    assert (fake.calls["sample"], fake.held) == (1, 0)


def test_a_binding_or_driver_without_gpm_says_so() -> None:
    bare = SimpleNamespace(NVMLError=pynvml.NVMLError)
    one = Gpm(Reader(Driver(bare), Watch(), "handle"))
    answer = one.read()
    assert isinstance(answer, Unavailable)
    assert "too old" in answer.reason


def test_counters_are_read_only_while_shown(read: Read) -> None:
    shown = read(HOPPER, [0.0, 1.0, 2.0])
    assert shown.samples[-1].counters is not None
    hidden = read(HOPPER, [0.0, 1.0, 2.0], counters=False)
    assert hidden.samples[-1].counters is None
    assert "only while it is shown" in hidden.samples[-1].unavailable["counters"]
    # One sample tells whether there could be any; it is given back.
    asked = [name for _, name, _ in hidden.calls if "Gpm" in name]
    assert asked == ["nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmSampleFree"]


def test_a_device_without_counters_says_so_though_nobody_looks(read: Read) -> None:
    fault = {"call": "nvmlGpmSampleGet", "return": "NotSupported"}
    hidden = read({**HOPPER, "faults": [fault]}, [0.0], counters=False)
    assert hidden.samples[-1].unavailable["counters"] == "no GPM on this device (NVML NotSupported)"


def test_the_support_query_decides_nothing(read: Read) -> None:
    """It has failed where samples work (DataDog/datadog-agent#47669)."""
    fault = {"call": "nvmlGpmQueryDeviceSupport", "return": "FunctionNotFound"}
    result = read({**HOPPER, "faults": [fault]}, [0.0, 1.0])
    assert result.samples[-1].counters is not None
    assert "nvmlGpmQueryDeviceSupport" not in {name for _, name, _ in result.calls}


def test_one_metric_may_fail_alone(read: Read) -> None:
    fault = {"call": "gpm:5", "return": "Unknown"}
    counters = read({**HOPPER, "faults": [fault]}, [0.0, 1.0]).samples[-1].counters
    assert counters is not None
    assert counters.sm_active_ratio == 0.5
    assert "unknown driver error" in counters.unavailable["tensor_active_ratio"]


def test_the_screen_switches_counters_on_and_off(simulate: Simulate) -> None:
    poller = simulate(HOPPER, interval=0.2)
    assert poller.sample(0).counters is None
    poller.send(b'{"command": "counters", "on": true}')
    poller.wait(events.DeviceSample, lambda sample: sample.counters is not None)
    poller.send(b'{"command": "counters", "on": false}')
    key = poller.key(0)
    poller.wait(events.DeviceSample, lambda one: one.device == key and one.counters is None)
    calls = Counter(name for name, _ in poller.calls())
    assert calls["nvmlGpmSampleAlloc"] == calls["nvmlGpmSampleFree"] == 3

"""Shares of time and of capacity by NVML's GPU performance monitoring (Hopper and newer).

Two samples more than 100 ms apart give the metrics of the time between them (nvml.h,
nvmlGpmMetricsGet). Whether a device has it is told by a real sample: the query for support has been
wrong, and every metric has a return code of its own.
"""

from __future__ import annotations

import math
from typing import Any

from topsmon import events
from topsmon.devices import nvml, rates
from topsmon.devices.metrics import bounded, implausible
from topsmon.devices.nvml import Unavailable
from topsmon.devices.reader import Reader

MIN_SECONDS = 0.1
"""Samples must be further apart than this."""
_PERCENT, _MIB = 0.01, float(1 << 20)
METRICS: dict[int, tuple[str, float]] = {
    1: ("graphics_active_ratio", _PERCENT),
    2: ("sm_active_ratio", _PERCENT),
    3: ("sm_occupancy_ratio", _PERCENT),
    4: ("integer_active_ratio", _PERCENT),
    5: ("tensor_active_ratio", _PERCENT),
    10: ("dram_active_ratio", _PERCENT),
    11: ("fp64_active_ratio", _PERCENT),
    12: ("fp32_active_ratio", _PERCENT),
    13: ("fp16_active_ratio", _PERCENT),
    20: ("pcie_transmit_bytes_per_second", _MIB),
    21: ("pcie_receive_bytes_per_second", _MIB),
    60: ("nvlink_receive_bytes_per_second", _MIB),
    61: ("nvlink_transmit_bytes_per_second", _MIB),
}
"""NVML_GPM_METRIC_*: the field of GpuCounters and what its unit is in the field's."""
RATIO_LIMIT = 1.1
"""A share that is above 1 by more than jitter cannot be."""
RATE_LIMIT = 4e12
_ABSENT = Unavailable("no GPM on this device (NVML NotSupported)", nvml.NOT_SUPPORTED)
HIDDEN = "GPM is sampled only while it is shown, and not by a single look"


class Gpm:
    """Samples of one device, or of one MIG GPU instance through the device that it is part of."""

    def __init__(self, reader: Reader, instance: int | None = None) -> None:
        self._reader = reader
        self._instance = instance
        self._name = "GPM" if instance is None else f"GPM of instance {instance}"
        self._newest: Any = None
        self._spare: Any = None
        self._sampled = 0.0
        self._request: Any = None
        self._lacking: dict[str, str] = {}

    def read(self) -> events.GpuCounters | Unavailable:
        """Take a sample; return what happened since the one before, or why that is not known."""
        now = self._reader.clock()
        off = self._reader.capabilities.off(self._name, now)
        if off is not None:
            return off
        if self._newest is not None and now - self._sampled <= MIN_SECONDS:
            return rates.FIRST
        answer = self._sample()
        if isinstance(answer, Unavailable):
            return self._refuse(answer, now)
        before, self._newest, self._spare = self._newest, answer, self._newest
        seconds, self._sampled = now - self._sampled, now
        if before is None:
            return rates.FIRST
        counters = self._metrics(before, seconds)
        if isinstance(counters, Unavailable):
            return self._refuse(counters, now)
        self._reader.capabilities.accept(self._name)
        return counters

    def free(self) -> None:
        """Give the samples back to the driver; the next one is the first again."""
        for sample in (self._newest, self._spare):
            if sample is not None:
                self._reader.driver.call(self._reader.watch, "nvmlGpmSampleFree", sample)
        self._newest = self._spare = None

    def _sample(self) -> Any | Unavailable:
        reader = self._reader
        sample = self._spare
        if sample is None:
            sample = reader.driver.call(reader.watch, "nvmlGpmSampleAlloc")
            if isinstance(sample, Unavailable):
                return sample
            # From here on `free` knows of it.
            self._spare = sample
        if self._instance is None:
            answer = reader.call("nvmlGpmSampleGet", sample)
        else:
            answer = reader.call("nvmlGpmMigSampleGet", self._instance, sample)
        return answer if isinstance(answer, Unavailable) else sample

    def _refuse(self, answer: Unavailable, now: float) -> Unavailable:
        """Fall back: without samples; asked again as the kind of the failure allows."""
        if answer.kind not in {"lost", "restart"}:
            self.free()
        known = self._reader.capabilities
        if answer.code == nvml.NOT_SUPPORTED and known.unsupported_words is None:
            answer = _ABSENT
        elif answer.kind not in {"lost", "restart", "unsupported"}:
            # The prefix says that the device has GPM, and that it fails.
            answer = Unavailable(f"GPM: {answer.reason}", answer.code, answer.kind)
        return known.refuse(self._name, answer, now) or answer

    def _metrics(self, before: Any, seconds: float) -> events.GpuCounters | Unavailable:
        wanted = [number for number, (field, _) in METRICS.items() if field not in self._lacking]
        if not wanted:
            return Unavailable("no metric is supported by this device")
        binding = self._reader.driver.binding
        if self._request is None:
            self._request = binding.c_nvmlGpmMetricsGet_t()
        request = self._request
        request.version = binding.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = before, self._newest
        for place, number in enumerate(wanted):
            request.metrics[place].metricId = number
        answer = self._reader.driver.call(self._reader.watch, "nvmlGpmMetricsGet", request)
        if isinstance(answer, Unavailable):
            return answer
        values: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for place, number in enumerate(wanted):
            field, unit = METRICS[number]
            reading = _value(request.metrics[place], unit)
            if isinstance(reading, Unavailable):
                reasons[field] = reading.reason
                if reading.kind == "unsupported":
                    self._lacking[field] = reading.reason
            else:
                values[field] = reading
        return events.GpuCounters(
            seconds=seconds, unavailable={**self._lacking, **reasons}, **values
        )


def _value(metric: Any, unit: float) -> float | int | Unavailable:
    if metric.nvmlReturn != 0:
        return nvml.explain(metric.nvmlReturn, f"GPM metric {metric.metricId}")
    if not math.isfinite(metric.value):
        return implausible(metric.value)
    return bounded(metric.value * unit, 0, RATIO_LIMIT if unit == _PERCENT else RATE_LIMIT)

"""The share of time that each process kept a GPU's SMs and memory busy, as the driver samples it.

The driver keeps a sample of every process that used the GPU in its last period (nvml.h,
nvmlDeviceGetProcessUtilization). No sample is no news: it never becomes 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from topsmon.devices import nvml
from topsmon.devices.nvml import Call, Unavailable

METRIC = "process utilisation"
_NEWEST, _OLDER = "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"
_NO_SAMPLES = frozenset({0, nvml.NOT_FOUND})
"""Answers for an idle GPU: NotFound, and SUCCESS to the question how many samples there are."""
_SILENT_READINGS = 3
"""After so many without a sample the driver is asked for all: its clock may have gone back."""


class Share(NamedTuple):
    """Shares of time, 0..1; None where the driver's value cannot be."""

    sm_ratio: float | None = None
    memory_busy_ratio: float | None = None


class ProcessShares:
    """Reads the samples of one GPU through one handle. Use from one thread."""

    def __init__(self, driver: nvml.Driver, watch: nvml.Watch) -> None:
        self.reason: str | None = None
        """Why no shares are told at all; None while they are."""
        self._driver = driver
        self._watch = watch
        self._names: tuple[str, ...] = (_NEWEST, _OLDER)
        self._newest = 0
        self._silent = 0

    def read(self, capabilities: nvml.Capabilities, handle: object, now: float) -> dict[int, Share]:
        """Return the newest share of each process by PID; {} where nothing new is told.

        Raises GpuLostError and DriverGoneError.
        """
        off = capabilities.off(METRIC, now)
        if off is not None:
            self.reason = off.reason
            return {}
        since = self._newest if self._silent < _SILENT_READINGS else 0
        calls = [Call(name, (since,)) for name in self._names]
        answer, index = self._driver.first_supported(self._watch, calls, handle)
        if isinstance(answer, Unavailable) and answer.code not in _NO_SAMPLES:
            refused = capabilities.refuse(METRIC, answer, now)
            self.reason = None if refused is None else refused.reason
            return {}
        capabilities.accept(METRIC)
        self.reason = None
        self._names = self._names[index:]
        return self._take([] if isinstance(answer, Unavailable) else answer)

    def _take(self, samples: list[Any]) -> dict[int, Share]:
        newest: dict[int, tuple[int, Share]] = {}
        for sample in samples:
            if sample.pid not in newest or sample.timeStamp >= newest[sample.pid][0]:
                newest[sample.pid] = sample.timeStamp, _share(sample)
        latest = max((stamp for stamp, _ in newest.values()), default=None)
        if latest is None or latest == self._newest:
            self._silent = min(self._silent + 1, _SILENT_READINGS)
            return {}
        self._newest, self._silent = latest, 0
        return {pid: share for pid, (_, share) in newest.items()}


def _share(sample: Any) -> Share:
    return Share(_ratio(sample.smUtil), _ratio(sample.memUtil))


def _ratio(percent: int) -> float | None:
    return percent / 100 if 0 <= percent <= 100 else None

"""The quantities of a device that a fleet is looked at by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from topsmon.diagnosis import mfu
from topsmon.fleet.device_view import DeviceView
from topsmon.fleet.host_view import HostView
from topsmon.run_state import RunState
from topsmon.units import percent

USUAL_PRECISIONS = ("bf16", "fp16", "fp32", "fp64")


class Metric(NamedTuple):
    """One quantity of a device.

    `head` is its name over a narrow column, `worse` the end to look at first, `floor` and `top` the
    scale to draw it on; a `top` of None is that of what is there. Ratios are 0..1. `read` takes a
    device and the precision of the ratio and gives None where it is not known.
    """

    key: str
    label: str
    head: str
    unit: str
    worse: Literal["low", "high"]
    read: Callable[[DeviceView, str], float | None]
    floor: float = 0.0
    top: float | None = 1.0

    @property
    def is_ratio(self) -> bool:
        """True for shares, which are shown in per cent."""
        return not self.unit

    def words(self, value: float | None) -> str:
        """The value with its unit: "97.3%", "655 W", "N/A"."""
        if value is None or self.is_ratio:
            return percent(value)
        return f"{value:.0f} {self.unit}"


def _busy(device: DeviceView, _precision: str) -> float | None:
    return device.sample.busy_ratio if device.sample is not None else None


def _power(device: DeviceView, _precision: str) -> float | None:
    return device.sample.power_watts if device.sample is not None else None


def _temperature(device: DeviceView, _precision: str) -> float | None:
    return device.sample.temperature_celsius if device.sample is not None else None


def _clock(device: DeviceView, _precision: str) -> float | None:
    return device.sample.sm_clock_mhz if device.sample is not None else None


def _memory(device: DeviceView, _precision: str) -> float | None:
    sample = device.sample
    if sample is None or sample.memory_used_bytes is None or not sample.memory_total_bytes:
        return None
    return sample.memory_used_bytes / sample.memory_total_bytes


def _ratio(device: DeviceView, precision: str) -> float | None:
    return device.ratio(precision)


def _mfu(device: DeviceView, _precision: str) -> float | None:
    return device.mfu


METRICS: dict[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric("busy", "busy", "busy", "", "low", _busy),
        Metric("power", "power", "power", "W", "high", _power, top=None),
        Metric(
            "temperature", "temperature", "temp", "°C", "high", _temperature, floor=20.0, top=100.0
        ),
        Metric("memory", "memory used", "memory", "", "high", _memory),
        Metric("clock", "SM clock", "clock", "MHz", "low", _clock, top=None),
        Metric("ratio", "achieved/ceiling", "ratio", "", "low", _ratio),
        Metric("mfu", "MFU", "MFU", "", "low", _mfu),
    )
}


def update_mfu(hosts: Iterable[HostView]) -> None:
    """Compute the utilisation by training runs anew on hosts whose runs have told something."""
    for host in hosts:
        if not host.runs_changed:
            continue
        host.runs_changed = False
        on: dict[str, list[RunState]] = {}
        for run in host.runs.values():
            device = host.run_device(run)
            if device is not None and not run.ended:
                on.setdefault(device.key, []).append(run)
        for key, device in host.devices.items():
            ranks = on.get(key)
            device.mfu = mfu.of_ranks(device, ranks).ratio if ranks else None

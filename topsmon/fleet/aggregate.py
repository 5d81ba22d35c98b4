"""Distributions and sums over the devices of a fleet."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topsmon.fleet.device_view import DeviceView
from topsmon.fleet.host_view import HostView, LinkCondition
from topsmon.fleet.metrics import Metric

BINS = 20


class Extreme(NamedTuple):
    """One device at the end of a distribution."""

    host: str
    device: DeviceView
    value: float


class Histogram(NamedTuple):
    """Counts of values in equal bins between two edges; what lies outside is in the end bins."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Aggregate:
    """The distribution of a metric.

    Quantiles are by nearest rank: the smallest value that a share q of all does not exceed. All are
    None where nothing is known. `missing` counts devices without a value, those of hosts that are
    not live among them. `worst` is in order of badness.
    """

    metric: Metric
    precision: str
    count: int = 0
    missing: int = 0
    low: float | None = None
    p5: float | None = None
    p50: float | None = None
    p95: float | None = None
    high: float | None = None
    worst: tuple[Extreme, ...] = ()
    histogram: Histogram | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over a fleet. Rates are in ops/s of one precision, over the `measured` live devices.

    `power_watts` is that of the live devices that tell it, None where none does; `powered` counts
    them. `devices` counts all, `live_devices` those of live hosts.
    """

    hosts: Counter[LinkCondition]
    devices: int
    live_devices: int
    precision: str
    measured: int = 0
    achieved_ops_per_second: float | None = None
    ceiling_ops_per_second: float | None = None
    powered: int = 0
    power_watts: float | None = None


def over(
    hosts: Iterable[HostView], metric: Metric, precision: str, *, worst: int, others: int = 0
) -> Aggregate:
    """Aggregate the devices of live hosts; `others` are devices of hosts that are not live."""
    read = metric.read
    values: list[float] = []
    owners: list[tuple[str, DeviceView]] = []
    missing = others
    for host in hosts:
        name = host.name
        for device in host.shown:
            value = None if device.condition == "lost" else read(device, precision)
            if value is None or not math.isfinite(value):
                missing += 1
            else:
                values.append(value)
                owners.append((name, device))
    if not values:
        return Aggregate(metric, precision, missing=missing)
    pick = heapq.nsmallest if metric.worse == "low" else heapq.nlargest
    places = pick(worst, range(len(values)), key=values.__getitem__)
    extremes = tuple(Extreme(*owners[place], values[place]) for place in places)
    values.sort()
    return Aggregate(
        metric,
        precision,
        count=len(values),
        missing=missing,
        low=values[0],
        p5=quantile(values, 0.05),
        p50=quantile(values, 0.50),
        p95=quantile(values, 0.95),
        high=values[-1],
        worst=extremes,
        histogram=histogram(values, metric),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest-rank quantile of values in ascending order, of which there is at least one."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def histogram(ordered: Sequence[float], metric: Metric, bins: int = BINS) -> Histogram:
    """Count values in ascending order; the edges are round numbers, 0 and 1 for shares."""
    low, high = (0.0, 1.0) if metric.is_ratio else _round_edges(ordered[0], ordered[-1])
    counts = [0] * bins
    scale = bins / (high - low)
    for value in ordered:
        counts[min(max(int((value - low) * scale), 0), bins - 1)] += 1
    return Histogram(low, high, tuple(counts))


def _round_edges(low: float, high: float) -> tuple[float, float]:
    """Edges around an interval at multiples of 1, 2 or 5 times a power of ten."""
    span = max(high - low, 1.0)
    power = 10.0 ** math.floor(math.log10(span))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power * 4 >= span)
    first = math.floor(low / step) * step
    return first, max(math.ceil(high / step) * step, first + step)


def totals(hosts: Sequence[tuple[HostView, LinkCondition]], precision: str) -> Totals:
    """Add up what the live devices tell."""
    devices = live_devices = measured = powered = 0
    achieved = ceiling = watts = 0.0
    for host, condition in hosts:
        devices += len(host.shown)
        if condition != "live":
            continue
        live_devices += len(host.shown)
        for device in host.shown:
            sample = device.sample
            if sample is not None and sample.power_watts is not None:
                watts += sample.power_watts
                powered += 1
            rate = device.achieved.get(precision)
            rated = device.ceiling(precision) if rate is not None else None
            if rate is not None and rated is not None:
                achieved += rate
                ceiling += rated.ops_per_second
                measured += 1
    return Totals(
        hosts=Counter(condition for _, condition in hosts),
        devices=devices,
        live_devices=live_devices,
        precision=precision,
        measured=measured,
        achieved_ops_per_second=achieved if measured else None,
        ceiling_ops_per_second=ceiling if measured else None,
        powered=powered,
        power_watts=watts if powered else None,
    )

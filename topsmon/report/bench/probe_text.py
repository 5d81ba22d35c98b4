"""The probes' part of a benchmark's text: bandwidths, launches, energy, what is held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topsmon.report.bench.model import Bandwidth, BenchDevice, Latency, ProbeValue
from topsmon.report.bench.words import DOUBTED, Column, lines_of, table
from topsmon.report.columns import wrap
from topsmon.units import NOT_AVAILABLE, PRECISIONS, bandwidth, percent, plain, rate, si, watts


def probe_lines(device: BenchDevice, width: int) -> list[str]:
    """Everything that probes found of a device."""
    values: tuple[Bandwidth | Latency, ...] = (*device.bandwidths, *device.latencies)
    lines = []
    if values:
        lines += ["", *table(_columns(values), width), *lines_of(_remarks(values), width)]
    more = [*_energy(device), *_sustained(device), *device.notes]
    return lines + [line for words in more for line in wrap(plain(words, 1000), width, rest=4)]


def _columns(values: Sequence[Bandwidth | Latency]) -> list[Column]:
    return [
        Column("probe", [plain(one.name, 30) for one in values], right=False),
        Column("median", [_value(one) for one in values]),
        Column("IQR", [percent(one.iqr_ratio) for one in values]),
        Column("rated", [percent(_ratio(one)) for one in values], optional=1),
        Column("ceiling", [_ceiling(one) for one in values], optional=2),
    ]


def _value(one: Bandwidth | Latency) -> str:
    if one.median is None:
        return NOT_AVAILABLE
    words = si(one.seconds, "s", digits=3) if isinstance(one, Latency) else bandwidth(one.median)
    return words if one.trusted else words + DOUBTED


def _ratio(one: Bandwidth | Latency) -> float | None:
    return None if isinstance(one, Latency) else one.ratio


def _ceiling(one: Bandwidth | Latency) -> str:
    known = None if isinstance(one, Latency) else one.ceiling_bytes_per_second
    return NOT_AVAILABLE if known is None else bandwidth(known)


def _remarks(values: Sequence[ProbeValue]) -> Iterator[tuple[str, str]]:
    for one in values:
        if one.correct is False:
            yield one.name, f"WRONG RESULT: {one.invalid_reason}"
        elif isinstance(one, Bandwidth) and one.nothing_moved:
            yield one.name, "nothing was moved: a bandwidth of 0 is a failure and no slow device"
        elif one.unavailable:
            yield f"N/A {one.name}", one.unavailable
        elif not one.valid:
            yield one.name, f"not valid: {one.invalid_reason}"
    for one in values:
        if isinstance(one, Bandwidth) and one.ceiling_source:
            yield f"ceiling of {one.probe}", one.ceiling_source


def _energy(device: BenchDevice) -> Iterator[str]:
    energy = device.energy
    if energy is None:
        return
    label = PRECISIONS[energy.precision].label if energy.precision in PRECISIONS else "GEMM"
    line = (
        f"energy: {si(energy.ops_per_joule, digits=4)} operations per joule, {label} "
        f"{energy.shape}, by the {energy.source or 'driver'}: {watts(energy.mean_watts)} W"
    )
    if energy.idle_watts is not None:
        line += f" (idle {watts(energy.idle_watts)} W)"
    if not energy.valid:
        line += f", not valid: {energy.invalid_reason}"
    yield line
    if energy.note:
        yield f"energy: {energy.note}"


def _sustained(device: BenchDevice) -> Iterator[str]:
    found = device.sustained
    if found is None:
        return
    line = (
        f"sustained: {percent(found.sustained_ratio)} of the burst: "
        f"{rate(found.sustained_rate_ops_per_second, found.precision)} against "
        f"{rate(found.burst_rate_ops_per_second, found.precision)}"
    )
    if found.burst_clock_mhz is not None and found.sustained_clock_mhz is not None:
        line += f", {found.burst_clock_mhz:.0f} to {found.sustained_clock_mhz:.0f} MHz"
    if found.work_seconds is not None:
        line += f", after {found.work_seconds:.0f} s of work"
    if not found.valid:
        line += f", not valid: {found.invalid_reason}"
    yield line
    if found.note:
        yield f"sustained: {found.note}"

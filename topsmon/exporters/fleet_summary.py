"""A reading of a fleet as distributions and worst devices: text for people, JSON for programs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from topsmon import __version__
from topsmon.exporters.fleet_queries import QUANTITIES, Worst
from topsmon.exporters.fleet_reading import Found, Gpu, Reading
from topsmon.fleet.words import counted
from topsmon.report.columns import clip, pad, wrap
from topsmon.units import PRECISIONS, binary_bytes, percent, plain, significant

SCHEMA = "topsmon.fleet/1"
WORST_SHOWN = 5
FINDINGS_SHOWN = 10
LABEL_WIDTH = 18
SHOWN = ("busy", "sm_active", "tensor_active", "dram_active", "power", "temperature", "clock")


class Row(NamedTuple):
    """One quantity over the fleet; `values` are in ascending order."""

    key: str
    label: str
    unit: str
    worst: Worst | None
    values: tuple[tuple[float, Gpu], ...]

    def quantile(self, share: float) -> float:
        """The value below which `share` (0..1) of the devices are, as Prometheus interpolates."""
        place = share * (len(self.values) - 1)
        low, high = self.values[math.floor(place)][0], self.values[math.ceil(place)][0]
        return low + (high - low) * (place - math.floor(place))

    def worst_devices(self, count: int) -> list[tuple[float, Gpu]]:
        """The devices to look at first, worst first; none where neither end is bad."""
        if self.worst is None:
            return []
        return list(self.values[:count] if self.worst == "low" else self.values[::-1][:count])


def rows(reading: Reading) -> list[Row]:
    """The quantities that any device has, in the order of display."""
    found = [
        _row(f"ratio_{key}", label, "ratio", "low", _ratios(reading, key))
        for key, label in _precision_labels()
    ]
    by_key = {quantity.key: quantity for quantity in QUANTITIES}
    for key in (*SHOWN, "throttled", "mfu"):
        quantity = by_key[key]
        found.append(
            _row(key, quantity.label, quantity.unit, quantity.worst, _numbers(reading, key))
        )
        if key == "dram_active":
            values = _numbers(reading, "memory_fill")
            found.append(_row("memory_fill", "memory used", "ratio", "high", values))
    return [row for row in found if row.values]


def _precision_labels() -> Iterable[tuple[str, str]]:
    return ((key, f"{one.label} / ceiling") for key, one in PRECISIONS.items())


def _row(
    key: str, label: str, unit: str, worst: Worst | None, values: Iterable[tuple[float, Gpu]]
) -> Row:
    ordered = sorted(values, key=lambda pair: (pair[0], pair[1].host, pair[1].key))
    return Row(key, label, unit, worst, tuple(ordered))


def _numbers(reading: Reading, key: str) -> Iterable[tuple[float, Gpu]]:
    return ((gpu.numbers[key], gpu) for gpu in reading.gpus.values() if key in gpu.numbers)


def _ratios(reading: Reading, precision: str) -> Iterable[tuple[float, Gpu]]:
    for gpu in reading.gpus.values():
        ratio = gpu.ratio(precision)
        if ratio is not None:
            yield ratio, gpu


def counts(reading: Reading) -> tuple[int, int]:
    """How many GPUs there are, and how many processors that stand for a machine without one."""
    cpus = sum(gpu.uuid == "cpu" for gpu in reading.gpus.values())
    return len(reading.gpus) - cpus, cpus


def text(reading: Reading, server: str, *, worst: int = WORST_SHOWN, width: int = 100) -> str:
    """The summary in words, at most `width` columns."""
    gpus, cpus = counts(reading)
    devices = counted(gpus, "GPU") + (f" and {counted(cpus, 'CPU')}" if cpus else "")
    devices += f" on {counted(len(reading.hosts()), 'host')}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(reading.time))
    lines = [f"{plain(server, 80)}  {when}  {devices}", ""]
    shown = rows(reading)
    if not shown and not reading.findings:
        lines.append(
            "no GPU metrics here: topsmon export --prometheus, dcgm-exporter or "
            "nvidia_gpu_exporter must be scraped"
        )
    else:
        lines += _table(shown)
        lines += _worst(shown, worst, width)
        lines += _finding_lines(reading.findings)
    lines += [f"not known: {key}: {plain(why, 200)}" for key, why in reading.problems.items()]
    lines += [f"the server warns: {warning}" for warning in reading.warnings]
    return "\n".join(clip(line, width).rstrip() for line in lines)


def _table(shown: Sequence[Row]) -> list[str]:
    lines = [_columns("", ["devices", "min", "5%", "median", "95%", "max"])]
    for row in shown:
        values = [row.quantile(share) for share in (0.0, 0.05, 0.5, 0.95, 1.0)]
        words = _words(row.unit)
        lines.append(_columns(row.label, [str(len(row.values)), *map(words, values)]))
    return [*lines, ""]


def _columns(label: str, cells: Sequence[str]) -> str:
    return pad(label, LABEL_WIDTH) + "".join(cell.rjust(11) for cell in cells)


def _worst(shown: Sequence[Row], count: int, width: int) -> list[str]:
    lines: list[str] = []
    for row in shown:
        devices = row.worst_devices(count)
        words = _words(row.unit)
        if words(row.values[0][0]) == words(row.values[-1][0]):
            continue  # nobody stands out
        if row.worst == "high":
            devices = [(value, gpu) for value, gpu in devices if words(value) != words(0.0)]
        if not devices:
            continue
        names = (f"{words(value)} {gpu.host} {gpu.label}" for value, gpu in devices)
        head = f"{'lowest' if row.worst == 'low' else 'highest'} {row.label}: "
        lines += wrap(", ".join(names), width, first=head, rest=4)
    return [*lines, ""] if lines else []


def _finding_lines(findings: Sequence[Found]) -> list[str]:
    if not findings:
        return []
    lines = [f"findings: {len(findings)}"]
    for one in findings[:FINDINGS_SHOWN]:
        where = f"{one.host} {one.gpu.label}" if one.gpu is not None else one.host
        lines.append(f"  {one.severity.upper()} {where}: {one.code}")
    if len(findings) > FINDINGS_SHOWN:
        lines.append(f"  and {len(findings) - FINDINGS_SHOWN} more")
    return [*lines, ""]


def _words(unit: str) -> Callable[[float], str]:
    forms: dict[str, Callable[[float], str]] = {
        "ratio": percent,
        "watts": lambda value: f"{value:.0f} W",
        "celsius": lambda value: f"{value:.0f} °C",
        "hertz": lambda value: f"{value / 1e6:.0f} MHz",
        "bytes": binary_bytes,
    }
    return forms.get(unit, significant)


def to_json(reading: Reading, server: str, *, worst: int = WORST_SHOWN) -> bytes:
    """The summary as one JSON document with a newline; numbers in base units."""
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "server": server,
        "time_unix_seconds": reading.time,
        "hosts": len(reading.hosts()),
        "devices": len(reading.gpus),
        "gpus": counts(reading)[0],
        "cpus": counts(reading)[1],
        "quantities": [_document(row, worst) for row in rows(reading)],
        "findings": [
            {
                "host": one.host,
                "code": one.code,
                "severity": one.severity,
                "device": _device(one.gpu) if one.gpu is not None else None,
            }
            for one in reading.findings
        ],
        "problems": reading.problems,
        "warnings": reading.warnings,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _document(row: Row, worst: int) -> dict[str, Any]:
    shares = {"min": 0.0, "p5": 0.05, "p50": 0.5, "p95": 0.95, "max": 1.0}
    return {
        "quantity": row.key,
        "unit": row.unit,
        "devices": len(row.values),
        **{name: row.quantile(share) for name, share in shares.items()},
        "worst": [{"value": value, **_device(gpu)} for value, gpu in row.worst_devices(worst)],
    }


def _device(gpu: Gpu) -> dict[str, Any]:
    return {"host": gpu.host, "gpu": gpu.index, "uuid": gpu.uuid, "name": gpu.name or None}

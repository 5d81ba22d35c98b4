"""A benchmark as text: one table a device, then what qualifies it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence

from topsmon.report.bench.model import BenchDevice, BenchDocument, Conditions, PrecisionResult
from topsmon.report.bench.probe_text import probe_lines
from topsmon.report.bench.words import (
    DOUBTED,
    NARROWEST,
    Column,
    finish,
    lines_of,
    shape_words,
    table,
)
from topsmon.report.columns import wrap
from topsmon.report.shown import AT_TOP_CLOCK, TOP_CLOCK, ceiling_word
from topsmon.units import (
    NOT_AVAILABLE,
    PRECISIONS,
    percent,
    plain,
    rate,
    si,
    significant,
    watts,
)

LEGEND = (
    "Rates are medians over calls, IQR is the distance of their quartiles. rated: share of the "
    "dense ceiling at the rated clock; held: of the ceiling at the clock held meanwhile; x FP32: "
    "speed-up over FP32, measured / rated; per W: operations per joule, T = 1e12."
)
BOOST = "A burst this short shows boost: what is held for long can be less (probe sustained)."
MISSING = {
    "iqr_ratio": "IQR",
    "ratio_at_held_clock": "held",
    "speedup_over_fp32_ratio": "x FP32",
    "ops_per_joule": "per W",
}
_CALLS = re.compile(r"median of \d+ calls")


def text(document: BenchDocument, width: int, ascii_only: bool) -> str:
    """Return the benchmark as text of at most `width` columns; the tables need 60 to 80."""
    width = max(width, NARROWEST)
    lines = heading(document, width)
    told: set[str] = set()
    for device in document.devices:
        lines += ["", *_device(device, width, told)]
    if not document.devices:
        lines.append("no device was measured")
    if any(device.precisions for device in document.devices):
        lines += ["", *_methods(document.devices, width), *wrap(LEGEND, width)]
    if any(device.at_top_clock and device.precisions for device in document.devices):
        lines += wrap(f"{AT_TOP_CLOCK}: of the ceiling at {TOP_CLOCK}.", width)
    if any(_has_doubt(device) for device in document.devices):
        lines += wrap(f"{DOUBTED} marks what must not be trusted; its line says why.", width)
    return finish(lines, ascii_only=ascii_only)


def _has_doubt(device: BenchDevice) -> bool:
    """True if some number of a device is marked."""
    values = (*device.bandwidths, *device.latencies)
    return not all(
        (
            *(one.trusted for one in device.precisions),
            *(burst.trusted for one in device.precisions for burst in one.bursts),
            *(value.trusted for value in values if value.median is not None),
        )
    )


def heading(document: BenchDocument, width: int) -> list[str]:
    """Who measured when, and with which driver."""
    lines = []
    if document.simulated is not None:
        name = plain(document.simulated, 40)
        lines += wrap(f"SIMULATED ({name}): no real device was measured", width)
    parts = [f"topsmon {plain(document.topsmon_version, 20)} bench"]
    if document.hostname is not None:
        parts.append(plain(document.hostname, 40))
    if document.driver_version is not None:
        parts.append(f"driver {plain(document.driver_version, 30)}")
    if document.cuda_version is not None:
        parts.append(f"CUDA {plain(document.cuda_version, 20)}")
    parts.append(moment(document.time_unix_seconds))
    return lines + wrap("  ".join(parts), width)


def moment(seconds: float) -> str:
    """Local date and time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


def device_heading(device: BenchDevice, width: int) -> list[str]:
    """Which device, by every name that it has."""
    parts = [f"{plain(device.label, 20)}  {plain(device.name, 80)}"]
    if device.board is not None:
        parts.append(f"({plain(device.board, 40)})")
    if device.mig:
        parts.append("MIG")
    if device.uuid is not None:
        parts.append(plain(device.uuid, 60))
    return wrap("  ".join(parts), width, rest=2)


def _device(device: BenchDevice, width: int, told: set[str]) -> list[str]:
    """One device. What is expected of a board is `told` once."""
    results = device.precisions
    lines = device_heading(device, width)
    conditions = ", ".join(_conditions(device.conditions))
    if conditions:
        lines += wrap(conditions, width, first="  ", rest=2)
    if device.no_ceiling is not None:
        lines += wrap(f"no ceiling: {plain(device.no_ceiling, 400)}", width, first="  ", rest=4)
    if results:
        lines += table(_columns(results, ceiling_word(top_clock=device.at_top_clock)), width)
    remarks = ((one.label, remark) for one in results for remark in one.remarks)
    expected = [pair for pair in _expected(results) if pair[1] not in told]
    told.update(text for _, text in expected)
    for pairs in (expected, remarks, _missing(device)):
        lines += lines_of(pairs, width)
    lines += probe_lines(device, width)
    return [*lines, *(["", *shapes] if (shapes := _all_shapes(results, width)) else [])]


def _conditions(conditions: Conditions) -> Iterator[str]:
    if conditions.torch_version:
        yield f"torch {plain(conditions.torch_version, 40)}"
    if conditions.threads is not None:
        yield f"{conditions.threads} threads"
    if conditions.power_limit_watts is not None:
        default = conditions.power_limit_default_watts
        at = f" (default {watts(default)} W)" if default is not None else ""
        yield f"power limit {watts(conditions.power_limit_watts)} W{at}"
    if conditions.sm_clock_max_mhz is not None:
        yield f"clock up to {conditions.sm_clock_max_mhz} MHz"
    if conditions.clocks_set:
        yield "clocks were set"
    if conditions.temperature_celsius is not None:
        yield f"{conditions.temperature_celsius:.0f} C"
    if conditions.ecc_enabled is not None:
        yield "ECC on" if conditions.ecc_enabled else "ECC off"
    if conditions.pcie:
        yield plain(conditions.pcie, 40)


# Rates --------------------------------------------------------------------------------------------


def _columns(results: Sequence[PrecisionResult], word: str) -> list[Column]:
    def each(cell: Callable[[PrecisionResult], str]) -> list[str]:
        return [cell(one) for one in results]

    return [
        Column("GEMM", each(lambda one: plain(one.label, 8)), right=False),
        Column("median", each(_median)),
        Column("IQR", each(lambda one: percent(one.iqr_ratio))),
        Column(word, each(lambda one: percent(one.ratio)), optional=1),
        Column("held", each(lambda one: percent(one.ratio_at_held_clock)), optional=3),
        Column("x FP32", each(_speedups), optional=2),
        Column("per W", each(_per_watt), optional=4),
        Column("MHz", each(lambda one: _whole(one.best.held_clock_mhz)), optional=5),
        Column("W", each(lambda one: _whole(one.best.power_watts)), optional=6),
        Column("calls", each(lambda one: str(one.best.calls)), optional=8),
        Column("error", each(_error), optional=7),
        Column("best shape", each(lambda one: shape_words(one.best.shape)), right=False),
    ]


def _median(one: PrecisionResult) -> str:
    words = rate(one.best.rate_ops_per_second, one.precision)
    return words if one.trusted else words + DOUBTED


def _speedups(one: PrecisionResult) -> str:
    """Measured / rated: "14.3/14.8"."""
    measured, rated = (
        NOT_AVAILABLE if ratio is None else significant(ratio, 3)
        for ratio in (one.speedup_over_fp32_ratio, one.rated_speedup_over_fp32_ratio)
    )
    return measured if rated == NOT_AVAILABLE else f"{measured}/{rated}"


def _per_watt(one: PrecisionResult) -> str:
    return si(one.ops_per_joule, digits=3)


def _error(one: PrecisionResult) -> str:
    error = one.best.relative_error
    return NOT_AVAILABLE if error is None else f"{error:.1e}" if error else "0"


def _whole(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:.0f}"


def _expected(results: Sequence[PrecisionResult]) -> Iterator[tuple[str, str]]:
    """What is expected at least, precisions with the same words together, and on which basis."""
    words: dict[str, list[str]] = {}
    bases = []
    for one in results:
        if one.expected_ops_per_second is not None:
            amount = f"{plain(one.label, 8)} {rate(one.expected_ops_per_second, one.precision)}"
            words.setdefault(one.expected_words, []).append(amount)
            bases.append(one.expected_basis)
    for reason, amounts in words.items():
        yield "expected at least", f"{', '.join(amounts)}: {reason}"
    yield from (("basis", basis) for basis in dict.fromkeys(bases))


def _missing(device: BenchDevice) -> Iterator[tuple[str, str]]:
    """Columns without a number, and what could not be measured at all, each with its reason."""
    columns: dict[tuple[str, str], list[str]] = {}
    titles = {**MISSING, "ratio": ceiling_word(top_clock=device.at_top_clock)}
    for one in device.precisions:
        for field, reason in one.unavailable.items():
            column = titles.get(field, field)
            columns.setdefault((column, reason), []).append(one.label)
    for (column, reason), labels in columns.items():
        everywhere = len(labels) == len(device.precisions)
        yield f"N/A {column}" if everywhere else f"N/A {column} ({', '.join(labels)})", reason
    reasons: dict[str, list[str]] = {}
    for key, reason in device.not_measured.items():
        reasons.setdefault(reason, []).append(PRECISIONS[key].label if key in PRECISIONS else key)
    for reason, names in reasons.items():
        yield f"N/A {', '.join(names)}", reason


def _all_shapes(results: Sequence[PrecisionResult], width: int) -> list[str]:
    """Every shape with its rate, the best first."""
    lines = []
    for one in results:
        shapes = [
            f"{shape_words(burst.shape)} {rate(burst.rate_ops_per_second, one.precision)}"
            f"{'' if burst.trusted else DOUBTED}"
            for burst in one.bursts
        ]
        if shapes:
            lines += wrap(f"{plain(one.label, 8)} shapes: {', '.join(shapes)}", width, rest=4)
    return lines


def _methods(devices: Sequence[BenchDevice], width: int) -> list[str]:
    """How the rates were measured, equal methods once."""
    results = [one for device in devices for one in device.precisions]
    pairs = [
        (one.label, _CALLS.sub("median of calls", one.best.method))
        for one in results
        if one.best.method
    ]
    lines = lines_of(pairs, width)
    longest = max(one.best.burst_seconds or 0.0 for one in results)
    if longest and all(device.sustained is None for device in devices):
        lines += wrap(f"{longest:.2g} s a shape. {BOOST}", width, rest=4)
    return lines

"""One snapshot of the machine: readable text for a terminal or a log, or JSON for programs.

Text is at most 80 columns of plain characters without escape codes. In JSON every number has its
unit in its key, null stands for what was not measured, and `unavailable` says why.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from topsmon import __version__, events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import device_word, link
from topsmon.diagnosis.memory import fill_ratio
from topsmon.diagnosis.observe import load, under_load
from topsmon.diagnosis.waterfall import limited_by
from topsmon.report import gpu_detail, processes
from topsmon.report.columns import clip, pad, wrap
from topsmon.state import State
from topsmon.units import (
    NOT_AVAILABLE,
    PRECISIONS,
    bandwidth,
    binary_bytes,
    duration,
    gibibytes,
    percent,
    plain,
    rate,
    tera,
    watts,
)

SCHEMA = "topsmon.once/1"
SCHEMA_VERSION = 1
"""Raised when a key of the JSON snapshot changes its meaning or goes."""
WIDTH = 80
SEVERITIES: tuple[events.Severity, ...] = ("fail", "warn", "info")

Findings = Sequence[events.Finding]


def text(
    state: State,
    findings: Findings,
    now: float,
    *,
    ascii_only: bool,
    wall: float | None = None,
) -> str:
    """Return the snapshot as text. `now` is monotonic, `wall` epoch seconds (the clock's if None).

    The text of a simulation begins with SIMULATED.
    """
    wall = time.time() if wall is None else wall
    blocks = [
        _header(state, wall),
        _findings(findings),
        _device_table(state, findings, now),
        gpu_detail.bound_lines(state, now, WIDTH),
        processes.lines(state, wall, WIDTH),
        _runs(state, now),
        *_ceiling_blocks(state, wall),
    ]
    lines = [line for block in blocks if block for line in (*block, "")]
    whole = "\n".join(line.rstrip() for line in lines)
    return whole.encode("ascii", "replace").decode("ascii") if ascii_only else whole


def _header(state: State, wall: float) -> list[str]:
    host = state.host
    parts = [f"topsmon {__version__}"]
    if host is not None:
        parts.append(plain(host.hostname, 40))
        if host.driver_version:
            parts.append(f"driver {plain(host.driver_version, 20)}")
        if host.cuda_version:
            parts.append(f"CUDA {plain(host.cuda_version, 10)}")
    parts.append(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall)))
    lines = wrap("  ".join(parts), WIDTH)
    if state.simulated is not None:
        name = plain(state.simulated, 40)
        lines.insert(0, f"SIMULATED ({name}): no real GPU was read for this snapshot")
    return lines


def _findings(findings: Findings) -> list[str]:
    if not findings:
        return ["all ok"]
    lines = []
    for finding in findings:
        lines += wrap(plain(finding.title), WIDTH, first=f"{plain(finding.word, 6):<7}", rest=7)
        if finding.cause:
            lines += wrap(plain(finding.cause), WIDTH, first=" " * 7, rest=7)
        if finding.severity != "info" and finding.remedy:
            lines += wrap(plain(finding.remedy), WIDTH, first=" " * 7, rest=7)
        if finding.severity != "info" and finding.command:
            lines.append(f"       > {plain(finding.command)}")
    return lines


def _device_table(state: State, findings: Findings, now: float) -> list[str]:
    devices = state.ordered()
    if not devices:
        return ["no device could be read"]
    titles = ("device", "state", "busy", "memory GiB", "power W", "temp C", "MHz", "limited by")
    lines = [_row(titles)]
    for device in devices:
        word = device_word(device, findings)
        lines.append(_row((device.label, word, *_device_values(device, word, now))))
    return [*lines, *_reasons(devices)]


def _runs(state: State, now: float) -> list[str]:
    if not state.runs:
        return []
    from topsmon.report import training

    return ["training runs", *training.lines(state, now)]


def _row(cells: Sequence[str]) -> str:
    device, state, busy, memory, power, temperature, clock, limited = cells
    parts = (pad(device, 6), pad(state, 6), busy.rjust(5), memory.rjust(12), power.rjust(8))
    return clip("  ".join((*parts, temperature.rjust(6), clock.rjust(5), limited)), WIDTH)


def _device_values(device: DeviceState, word: str, now: float) -> tuple[str, ...]:
    sample = device.sample
    if sample is None or device.condition == "lost":
        return (*[NOT_AVAILABLE] * 5, "")
    memory = f"{gibibytes(sample.memory_used_bytes)}/{gibibytes(sample.memory_total_bytes)}"
    power = watts(sample.power_watts)
    if sample.power_limit_watts is not None:
        power += f"/{watts(sample.power_limit_watts)}"
    remark = f"{duration(device.age(now))} old" if word == "STALE" else limited_by(device)
    return (
        percent(sample.busy_ratio, 0),
        NOT_AVAILABLE if sample.memory_used_bytes is None else memory,
        power,
        _whole(sample.temperature_celsius),
        _whole(sample.sm_clock_mhz),
        remark,
    )


def _whole(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:.0f}"


_COLUMNS = {
    "busy_ratio": "busy",
    "memory_used_bytes": "memory",
    "power_watts": "power",
    "temperature_celsius": "temperature",
    "sm_clock_mhz": "clock",
}


_ASLEEP = "asleep: it is left alone, since a look would wake it"


def _reasons(devices: Iterable[DeviceState]) -> list[str]:
    """Why columns are N/A and what memory is meant, equal reasons together."""
    who: dict[tuple[str, str], list[str]] = {}
    notes: dict[str, list[str]] = {}
    for device in devices:
        if device.condition == "asleep":
            notes.setdefault(_ASLEEP, []).append(device.label)
        if device.sample is None:
            continue
        if device.sample.memory_note.startswith("unified"):
            note = plain(device.sample.memory_note, 120)
            notes.setdefault(f"memory: {note}", []).append(device.label)
        for field, column in _COLUMNS.items():
            if field in device.sample.unavailable:
                reason = plain(device.sample.unavailable[field], 120)
                who.setdefault((column, reason), []).append(device.label)
    lines = []
    for (column, reason), labels in who.items():
        lines += wrap(f"N/A {column} ({', '.join(labels)}): {reason}", WIDTH, rest=4)
    for note, labels in notes.items():
        lines += wrap(f"{', '.join(labels)}: {note}", WIDTH, rest=4)
    return lines


def _ceiling_blocks(state: State, wall: float) -> list[list[str]]:
    """One block for each kind of device: its ceilings and what was last measured."""
    groups: dict[tuple[object, ...], list[DeviceState]] = {}
    for device in state.ordered():
        board = device.ceilings.board if device.ceilings is not None else None
        key = (device.identity.name, board, device.identity.sm_count, device.identity.mig)
        groups.setdefault(key, []).append(device)
    return [_ceiling_block(group, wall) for group in groups.values()]


def _ceiling_block(group: list[DeviceState], wall: float) -> list[str]:
    device = group[0]
    ceilings = device.ceilings
    labels = device.label if len(group) == 1 else f"{device.label} to {group[-1].label}"
    lines = wrap(f"{labels}: {plain(device.identity.name, 60)}", WIDTH)
    if ceilings is None:
        return [*lines, "  no ceilings were determined"]
    if ceilings.unknown is not None:
        lines += wrap(f"no ceiling: {plain(ceilings.unknown)}", WIDTH, first="  ", rest=2)
    lines.append("  precision  dense ceiling    measured")
    for key in PRECISIONS:
        lines += _rate_lines(group, key, wall)
    lines += _link_lines(device)
    return lines


def _rate_lines(group: list[DeviceState], key: str, wall: float) -> list[str]:
    device, precision = group[0], PRECISIONS[key]
    ceiling, reason = device.ceiling(key), device.absence(key)
    measured = _measured(group, key, wall)
    if ceiling is None:
        if not measured and device.ceilings is not None and device.ceilings.unknown is not None:
            return []
        left = f"{NOT_AVAILABLE} ({plain(reason, 60)})" if reason else NOT_AVAILABLE
    else:
        low = ceiling.ops_per_second_low
        left = rate(ceiling.ops_per_second, key)
        if low is not None:
            left = f"{tera(low)} to {left}"
    if ceiling is not None or measured:
        left = f"{pad(left, 15)}  {measured or NOT_AVAILABLE}"
    line = f"{pad(precision.label, 9)}  {left}"
    return wrap(line, WIDTH, first="  ", rest=13)


def _measured(group: list[DeviceState], key: str, wall: float) -> str:
    """The best rates of a group, with ratio and age; "" where there is none."""
    found = [
        (device, result)
        for device in group
        if (result := device.rates[key].best) is not None and result.rate_ops_per_second is not None
    ]
    if not found:
        return plain(group[0].rates[key].unsupported or "", 80)
    rates = [result.rate_ops_per_second or 0.0 for _, result in found]
    ratios = [ratio for device, _ in found if (ratio := device.ratio(key)) is not None]
    words = rate(max(rates), key)
    if len(found) > 1:
        words = f"{rate(min(rates), key)} to {words}, {len(found)} devices"
    if ratios:
        low, high = percent(min(ratios)), percent(max(ratios))
        words += f" ({high})" if len(found) == 1 else f" ({low} to {high})"
    oldest = min(result.time for _, result in found)
    words += f", {duration(max(0.0, wall - oldest))} ago"
    if any(result.correct is False for _, result in found):
        words += ", WRONG RESULT"
    elif any(not result.valid for _, result in found):
        words += ", not valid"
    if any(result.emulated for _, result in found):
        words += ", emulated"
    return words


def _link_lines(device: DeviceState) -> list[str]:
    parts = []
    ceilings, sample = device.ceilings, device.sample
    if ceilings is not None and ceilings.memory_bandwidth_bytes_per_second is not None:
        parts.append(f"memory {bandwidth(ceilings.memory_bandwidth_bytes_per_second)}")
    if ceilings is not None and ceilings.l2_bytes is not None:
        parts.append(f"L2 {binary_bytes(ceilings.l2_bytes)}")
    shown = None
    if sample is not None:
        # Where nothing tells how busy it is, nothing is said of rest.
        shown = link.describe(sample, loaded=load(sample) is None or under_load(device))
    if shown is not None:
        parts.append(f"PCIe {shown}")
    return wrap(", ".join(parts), WIDTH, first="  ", rest=2) if parts else []


def to_json(state: State, findings: Findings, now: float, *, wall: float | None = None) -> bytes:
    """Return the snapshot as one JSON document with a newline: valid UTF-8 whatever was read."""
    wall = time.time() if wall is None else wall
    severities = {finding.severity for finding in findings}
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "schema_version": SCHEMA_VERSION,
        "topsmon_version": __version__,
        "time_unix_seconds": wall,
        "simulated": state.simulated,
        "worst_severity": next((level for level in SEVERITIES if level in severities), None),
        "host": _fields(state.host),
        "host_sample": _fields(state.host_sample),
        "problems": [_fields(problem) for problem in state.problems.values()],
        "devices": [_device(state, device, findings, now, wall) for device in state.ordered()],
        "runs": _run_documents(state, now),
        "findings": [_fields(finding, "device") for finding in findings],
    }
    return msgspec.json.format(msgspec.json.encode(_clean(document)), indent=1) + b"\n"


def _run_documents(state: State, now: float) -> list[dict[str, Any]]:
    if not state.runs:
        return []
    from topsmon.report import training

    return [training.to_builtins(state, run, now) for run in state.ordered_runs()]


def _fields(event: events.Event | None, *keep: str) -> dict[str, Any] | None:
    """An event's own fields, without those that every event has."""
    if event is None:
        return None
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for name in ("type", "time", "monotonic", "source", "device"):
        if name not in keep:
            fields.pop(name, None)
    return fields


def _device(
    state: State, device: DeviceState, findings: Findings, now: float, wall: float
) -> dict[str, Any]:
    entries = device.processes.entries if device.processes is not None else None
    sample = _fields(device.sample)
    if sample is not None and device.sample is not None:
        sample["age_seconds"] = device.age(now)
        sample["memory_fill_ratio"] = fill_ratio(device.sample)
    ceilings = _fields(device.ceilings)
    rates = [_rate(device, key, wall) for key in PRECISIONS]
    return {
        "device": device.key,
        "label": device.label,
        "word": device_word(device, findings),
        "condition": device.condition,
        "condition_detail": device.status.detail if device.status is not None else "",
        "limited_by": limited_by(device),
        "identity": _fields(device.identity),
        "sample": sample,
        "ceilings": ceilings,
        "rates": rates,
        **gpu_detail.fields(state, device, now),
        "processes": None if entries is None else [msgspec.to_builtins(one) for one in entries],
        "processes_unavailable": device.processes.reason if device.processes is not None else "",
    }


def _rate(device: DeviceState, key: str, wall: float) -> dict[str, Any]:
    """The last measured rate of one precision beside its ceiling."""
    known, precision = device.rates[key], PRECISIONS[key]
    result, ceiling = known.best, device.ceiling(key)
    unavailable = {}
    if ceiling is None and (reason := device.absence(key)):
        unavailable["ceiling_ops_per_second"] = reason
    if result is None or result.rate_ops_per_second is None:
        unavailable["rate_ops_per_second"] = known.unsupported or "not measured yet"
    measured = _fields(result)
    if measured is not None and result is not None:
        measured.pop("precision")
        measured["time_unix_seconds"] = result.time
        measured["age_seconds"] = max(0.0, wall - result.time)
        measured["earlier_session"] = known.is_remembered
    return {
        "precision": key,
        "label": precision.label,
        "unit": precision.unit,
        "ceiling_ops_per_second": ceiling.ops_per_second if ceiling is not None else None,
        "ceiling_key": ceiling.precision if ceiling is not None else None,
        "rate_ops_per_second": result.rate_ops_per_second if result is not None else None,
        "ratio": device.ratio(key),
        "ceiling_at_held_clock_ops_per_second": device.held_ceiling(key),
        "ratio_at_held_clock": device.held_ratio(key),
        "measurement": measured,
        "unavailable": unavailable,
    }


def _clean(value: Any) -> Any:
    """Make all strings safe to print and to encode; names from outside may hold anything."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value

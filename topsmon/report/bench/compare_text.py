"""A comparison of two benchmarks as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from topsmon.report.bench import noise
from topsmon.report.bench.comparison import (
    EXIT_OK,
    EXIT_REGRESSION,
    EXIT_UNKNOWN,
    EXIT_WRONG,
    Change,
    Comparison,
    DeviceComparison,
    Row,
    Verdict,
    exit_code,
)
from topsmon.report.bench.text import moment
from topsmon.report.bench.words import (
    NARROWEST,
    Column,
    finish,
    lines_of,
    shape_words,
    signed_percent,
    table,
)
from topsmon.report.columns import wrap
from topsmon.units import NOT_AVAILABLE, PRECISIONS, bandwidth, plain, rate, si

MEANINGS = {
    EXIT_OK: "exit 0",
    EXIT_REGRESSION: "exit 1",
    EXIT_WRONG: "exit 2: a result is wrong now, or 0",
    EXIT_UNKNOWN: "exit 3: what cannot be told says nothing bad about the machine",
}
COUNTED: dict[Verdict, str] = {
    "regression": "slower",
    "improvement": "faster",
    "no difference": "without a difference",
    "cannot tell": "that cannot be told",
}
RULE = (
    "noise: how far two runs of an unchanged machine may lie apart, from the spread of the calls "
    f"in both and the drift between shapes; {noise.FALSE_ALARMS:.0%} of such pairs of runs show a "
    "change in any row by chance."
)


def comparison_json(comparison: Comparison) -> bytes:
    """Return the comparison as indented JSON with a final newline; `exit_code` is in it."""
    content = {**msgspec.to_builtins(comparison), "exit_code": exit_code(comparison)}
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def comparison_text(comparison: Comparison, width: int, ascii_only: bool) -> str:
    """Return the comparison as text of at most `width` columns; its table needs 72."""
    width = max(width, NARROWEST)
    before = moment(comparison.before_unix_seconds)
    lines = wrap(f"compared with the result of {before}", width)
    lines += _changed(comparison.changed, width, indent=0)
    for device in comparison.devices:
        lines += ["", *_device(device, width)]
    for words, devices in (
        ("not in this run", comparison.only_before),
        ("not in the earlier run", comparison.only_now),
    ):
        if devices:
            lines += wrap(plain(f"{words}: {', '.join(devices)}", 1000), width, rest=4)
    lines += ["", *wrap(_verdict(comparison), width)]
    if any(row.noise_ratio is not None for device in comparison.devices for row in device.rows):
        lines += wrap(RULE, width)
    return finish(lines, ascii_only=ascii_only)


def _changed(changes: Sequence[Change], width: int, *, indent: int) -> list[str]:
    """What else is different, each by its name: it may be the reason."""
    if not changes:
        return []
    words = ", ".join(f"{one.condition} {one.before} -> {one.now}" for one in changes)
    return wrap(plain(f"changed: {words}", 1000), width, first=" " * indent, rest=indent + 4)


def _device(device: DeviceComparison, width: int) -> list[str]:
    by = "" if device.matched_by == "UUID" else f" (matched by {device.matched_by})"
    lines = wrap(f"{plain(device.label, 20)}  {plain(device.name, 80)}{by}", width, rest=2)
    lines += _changed(device.changed, width, indent=2)
    if device.rows:
        lines += table(_columns(device.rows), width)
    else:
        lines.append("  nothing was measured in both runs")
    lines += lines_of(_remarks(device.rows), width)
    for words, keys in (
        ("not measured this time", device.only_before),
        ("not in the earlier result", device.only_now),
    ):
        if keys:
            names = (PRECISIONS[key].label if key in PRECISIONS else key for key in keys)
            lines += wrap(plain(f"{words}: {', '.join(names)}", 500), width, rest=4)
    return lines


def _columns(rows: Sequence[Row]) -> list[Column]:
    return [
        Column("", [plain(row.label, 20) for row in rows], right=False),
        Column("before", [_amount(row, row.before) for row in rows]),
        Column("now", [_amount(row, row.now) for row in rows]),
        Column("change", [signed_percent(row.change_ratio) for row in rows]),
        Column("noise", [_noise(row.noise_ratio) for row in rows], optional=1),
        Column("verdict", [_word(row) for row in rows], right=False),
        Column("shape", [_shape(row) for row in rows], right=False, optional=2),
    ]


def _amount(row: Row, value: float | None) -> str:
    if row.unit == "ops/s":
        return rate(value, row.key)
    return bandwidth(value) if row.unit == "bytes/s" else si(value, "s", digits=3)


def _noise(ratio: float | None) -> str:
    return NOT_AVAILABLE if ratio is None else f"{ratio * 100:.1f}%"


def _word(row: Row) -> str:
    """The verdict; what must be looked at is in capitals."""
    return row.verdict.upper() if row.verdict == "regression" or row.wrong else row.verdict


def _shape(row: Row) -> str:
    return "" if row.unit != "ops/s" else shape_words(row.shape)


def _remarks(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row.reason:
            yield row.label, row.reason
        for remark in row.remarks:
            yield row.label, remark


def _verdict(comparison: Comparison) -> str:
    """All rows in one line, and what the exit code means."""
    rows = [row for device in comparison.devices for row in device.rows if row.judged]
    code = exit_code(comparison)
    counts = {word: sum(row.verdict == word for row in rows) for word in COUNTED}
    told = ", ".join(f"{count} {COUNTED[word]}" for word, count in counts.items() if count)
    heads = {EXIT_OK: "OK", EXIT_REGRESSION: "REGRESSION", EXIT_WRONG: "FAIL"}
    head = heads.get(code, "UNKNOWN")
    return f"{head}  {told or 'nothing could be compared'} ({MEANINGS[code]})"

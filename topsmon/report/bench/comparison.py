"""What a comparison of two benchmarks says."""

from __future__ import annotations

from typing import Literal

import msgspec

from topsmon.report.bench.model import Shape

SCHEMA = "topsmon.bench-comparison/1"
SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes."""

Verdict = Literal["regression", "improvement", "no difference", "cannot tell"]
EXIT_OK, EXIT_REGRESSION, EXIT_WRONG, EXIT_UNKNOWN = 0, 1, 2, 3


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One value in both runs, in `unit` ("ops/s", "bytes/s", "s").

    `change_ratio` is now / before - 1: of a time, less is better. `noise_ratio` is the change up to
    which nothing can be told from chance. `judged` False: this kind of value has no spread, so that
    no two runs could tell. `wrong`: the result is wrong now, or nothing was computed at all (0).
    """

    key: str
    label: str
    unit: str
    verdict: Verdict
    before: float | None = None
    now: float | None = None
    change_ratio: float | None = None
    noise_ratio: float | None = None
    shape: Shape | None = None
    reason: str = ""
    remarks: tuple[str, ...] = ()
    judged: bool = True
    wrong: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that is not what it was."""

    condition: str
    before: str
    now: str


class DeviceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One device in both runs; `matched_by` "UUID", "name and index" or "name"."""

    device: str
    label: str
    name: str
    matched_by: str
    changed: tuple[Change, ...] = ()
    rows: tuple[Row, ...] = ()
    only_before: tuple[str, ...] = ()
    only_now: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename={"format": "schema"}):
    """Two whole runs. `only_before` and `only_now` name devices without a partner."""

    schema_version: int
    before_unix_seconds: float
    now_unix_seconds: float
    changed: tuple[Change, ...] = ()
    devices: tuple[DeviceComparison, ...] = ()
    only_before: tuple[str, ...] = ()
    only_now: tuple[str, ...] = ()
    format: str = SCHEMA
    version: str = ""


def exit_code(comparison: Comparison) -> int:
    """2: a result is wrong or 0 now; 1: a regression; 3: something cannot be told; 0: neither."""
    rows = [row for device in comparison.devices for row in device.rows if row.judged]
    if any(row.wrong for row in rows):
        return EXIT_WRONG
    if any(row.verdict == "regression" for row in rows):
        return EXIT_REGRESSION
    unknown = any(row.verdict == "cannot tell" for row in rows)
    return EXIT_UNKNOWN if unknown or not rows else EXIT_OK

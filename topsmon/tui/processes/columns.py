"""The columns of the process table: head, width, the value to sort by, the text of a cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from topsmon.report.process_rows import Row
from topsmon.units import NOT_AVAILABLE, age, gibibytes, percent, plain

COMMAND_LEAST = 20
MIG_DEVICE = 11
"""Cells for "GPU 12/gi13"; without MIG a device takes less."""
_Value = TypeVar("_Value")
STATE_ROLES = {"Z": "fail", "D": "warn", "T": "warn"}


class Column(NamedTuple):
    """A column of fixed width, its leading blank included.

    `letter` sorts by it, descending first where `largest` is set. The lowest `keep` goes first
    where room is short. `value` is None where it is not known; a cell may need the time since the
    epoch, in s.
    """

    letter: str
    head: str
    name: str
    width: int
    keep: int
    largest: bool
    value: Callable[[Row], Any]
    cell: Callable[[Row, float], str]

    @property
    def is_text(self) -> bool:
        """True for a column of words, which stand at its left."""
        return self.letter in LEFT_ALIGNED


LEFT_ALIGNED = frozenset("udz")


def whole_percent(ratio: float) -> str:
    """Return a share in whole percent."""
    return percent(ratio, 0)


def arrange(width: int, *, mig: bool) -> list[Column]:
    """Return the columns that fit beside a readable command."""
    columns = [
        column._replace(width=MIG_DEVICE + 1) if mig and column.letter == "d" else column
        for column in COLUMNS
    ]
    while columns and sum(column.width for column in columns) + COMMAND_LEAST + 2 > width:
        columns.remove(min(columns, key=lambda column: column.keep))
    return columns


def by_letter(letter: str) -> Column | None:
    """The column, or the command, that a letter sorts by."""
    return next((column for column in SORTS if column.letter == letter), None)


def ranked(rows: Sequence[Row], column: Column, *, reverse: bool) -> list[Row]:
    """Return the rows in the order of a column; what is not known comes last either way."""
    stable = sorted(rows, key=lambda row: (row.order, row.entry.pid, row.key.gpu_instance or 0))
    known = [row for row in stable if column.value(row) is not None]
    unknown = [row for row in stable if column.value(row) is None]
    known.sort(key=column.value, reverse=column.largest != reverse)
    return known + unknown


def _of_gpu(row: Row, value: float | None, text: Callable[[float], str]) -> str:
    """A cell about a GPU; blank on a row that is about none."""
    if row.cpu or row.is_parent:
        return ""
    return NOT_AVAILABLE if value is None else text(value)


def _of_host(row: Row, value: _Value | None, text: Callable[[_Value], str]) -> str:
    """A cell about the host."""
    if row.is_parent:
        return ""
    return NOT_AVAILABLE if value is None else text(value)


def _cpu(row: Row, wall: float) -> str:
    del wall
    cores = row.entry.cpu_cores
    if cores is None:
        # Its use is known from the second reading on.
        return "" if row.entry.started is not None else _of_host(row, None, whole_percent)
    return whole_percent(cores)


def _age(row: Row, wall: float) -> str:
    started = row.entry.started
    return _of_host(row, None if started is None else wall - started, age)


COLUMNS = (
    Column(
        "p", "PID", "PID", 8, 99, largest=False,
        value=lambda row: row.entry.pid,
        cell=lambda row, _: str(row.entry.pid),
    ),
    Column(
        "u", "user", "user", 10, 70, largest=False,
        value=lambda row: row.entry.user and row.entry.user.lower(),
        cell=lambda row, _: _of_host(row, row.entry.user, lambda name: plain(name, 64)),
    ),
    Column(
        "d", "device", "device", 8, 90, largest=False,
        value=lambda row: None if row.is_parent else (row.order, row.key.gpu_instance or 0),
        cell=lambda row, _: row.device,
    ),
    Column(
        "g", "GPU GiB", "GPU memory", 10, 95, largest=True,
        value=lambda row: row.entry.memory_bytes,
        cell=lambda row, _: _of_gpu(row, row.entry.memory_bytes, gibibytes),
    ),
    Column(
        "s", "SM", "SM share", 6, 80, largest=True,
        value=lambda row: row.entry.sm_ratio,
        cell=lambda row, _: _of_gpu(row, row.entry.sm_ratio, whole_percent),
    ),
    Column(
        "b", "mem", "memory busy", 6, 30, largest=True,
        value=lambda row: row.entry.memory_busy_ratio,
        cell=lambda row, _: _of_gpu(row, row.entry.memory_busy_ratio, whole_percent),
    ),
    Column(
        "c", "CPU", "CPU", 7, 60, largest=True,
        value=lambda row: row.entry.cpu_cores,
        cell=_cpu,
    ),
    Column(
        "m", "host GiB", "host memory", 10, 40, largest=True,
        value=lambda row: row.entry.host_memory_bytes,
        cell=lambda row, _: _of_host(row, row.entry.host_memory_bytes, gibibytes),
    ),
    Column(
        "t", "age", "age", 9, 50, largest=True,
        value=lambda row: None if row.entry.started is None else -row.entry.started,
        cell=_age,
    ),
    Column(
        "z", "S", "state", 3, 85, largest=False,
        value=lambda row: row.entry.state,
        cell=lambda row, _: plain(row.entry.state or "", 1),
    ),
)  # fmt: skip
COMMAND = Column(
    "a", "command", "command", 0, 100, largest=False,
    value=lambda row: (row.entry.command or row.entry.name or "").lower() or None,
    cell=lambda row, _: row.entry.command or row.entry.name or "",
)  # fmt: skip
SORTS = (*COLUMNS, COMMAND)

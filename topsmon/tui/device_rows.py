"""One row a device in a fixed order, so that devices compare by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from textual.events import Click

from topsmon.device_state import DeviceState
from topsmon.diagnosis import bound
from topsmon.diagnosis.verdict import Kind
from topsmon.diagnosis.waterfall import limited_by
from topsmon.tui.cells import Line, Span, fit, left, right
from topsmon.tui.glyphs import spark
from topsmon.tui.panel import Panel
from topsmon.tui.view import View, ratio_mark, short_name, shown_devices, state_word
from topsmon.units import NOT_AVAILABLE, PRECISIONS, gibibytes, percent, watts

LABELS = 11
"""Cells of the two columns without a head: number and state."""
SPARK_MIN, SPARK_MAX = 10, 40
SPARK_FROM = 72
"""Width from which the history is worth more than the least telling column."""


class SelectingApp(Protocol):
    """What a click on a row needs of the application."""

    view: View

    def select_device(self, key: str) -> None:
        """Show this device."""


class Cell(NamedTuple):
    """Text of a cell, without padding, and its role."""

    text: str
    role: str


MISSING = Cell(NOT_AVAILABLE, "muted")


class Column(NamedTuple):
    """A column of fixed width, its leading blank included. The lowest `keep` goes first."""

    head: str
    width: int
    keep: int
    cell: Callable[[View, DeviceState], Cell]
    to_right: bool = True


class DeviceRows(Panel):
    """All devices in one widget. `first` is the row at the top when not all of them fit."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self.first = 0

    def title(self, view: View) -> str:
        """Return the number of devices."""
        count = len(shown_devices(view.state))
        return "device" if count == 1 else f"{count} devices"

    def subtitle(self, view: View) -> str:
        """Explain the first number column, which is no share of the hardware."""
        gpus = any(True for _ in view.state.gpus())
        return "busy: share of time with any kernel" if gpus else "busy: share of CPU time"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the head and as many rows as fit, among them the selected one."""
        devices = shown_devices(view.state)
        self.first = first_row(self.first, devices, view.selected, height - 1)
        shown = devices[self.first : self.first + max(height - 1, 0)]
        columns, spark_width = arrange(view, devices, width)
        hidden = _hidden(view, self.first, len(devices) - self.first - len(shown))
        rows = [_head(columns, spark_width, width, hidden)]
        several = len(devices) > 1
        rows += [_row(view, device, columns, spark_width, width, several) for device in shown]
        return rows

    def on_click(self, event: Click) -> None:
        """Select the device under the mouse."""
        app: SelectingApp = self.app  # type: ignore[assignment]
        devices = shown_devices(app.view.state)
        row = event.y - (2 if self.framed else 1)
        if 0 <= row < len(devices) - self.first:
            app.select_device(devices[self.first + row].key)


def first_row(first: int, devices: list[DeviceState], selected: str | None, room: int) -> int:
    """Return the row to show at the top so that the selected device is in sight."""
    place = next((i for i, device in enumerate(devices) if device.key == selected), 0)
    first = min(first, place)
    first = max(first, place - room + 1)
    return max(0, min(first, len(devices) - room))


def _hidden(view: View, above: int, below: int) -> str:
    parts = []
    if above:
        parts.append(f"{view.glyphs.up}{above}")
    if below:
        parts.append(f"{view.glyphs.down}{below}")
    return " ".join(parts)


def arrange(view: View, devices: list[DeviceState], width: int) -> tuple[list[Column], int]:
    """Return the columns that fit and the width of the history after the second."""
    columns = _columns(view, devices)
    wanted = SPARK_MIN + 2 if width >= SPARK_FROM else 0
    while len(columns) > 2 and sum(column.width for column in columns) + wanted > width:
        columns.remove(min(columns, key=lambda column: column.keep))
    room = width - sum(column.width for column in columns) - 2
    last = columns[-1]
    if room >= SPARK_MIN + 12 and not last.to_right:
        # The last column takes part of what is left: it holds words.
        more = min(room - SPARK_MIN, max(room - SPARK_MAX, room // 3))
        columns[-1] = last._replace(width=last.width + more)
        room -= more
    return columns, (min(room, SPARK_MAX) if room >= SPARK_MIN else 0)


def _columns(view: View, devices: list[DeviceState]) -> list[Column]:
    gpus = any(device.identity.kind == "gpu" for device in devices)
    names = {device.identity.name for device in devices}
    columns = [
        Column("", 4, 99, _label),
        Column("", 7, 98, _state, to_right=False),
    ]
    if len(names) > 1:
        columns.append(Column("board", 17, 2, _name, to_right=False))
    columns += [
        Column("busy", 6, 95, _busy),
        Column("memory GiB", 13, 80, _memory),
    ]
    if gpus or any(_measured(device, "power_watts") for device in devices):
        columns.append(Column("W", 10, 70, _power))
    if gpus or any(_measured(device, "temperature_celsius") for device in devices):
        columns.append(Column("°C", 5, 60, _temperature))
    columns.append(Column("MHz", 6, 65, _clock))
    # The mark after the ratio hangs beyond the head.
    columns.append(Column(PRECISIONS[view.precision].label + " ", 9, 97, _ratio))
    if gpus:
        columns.append(Column("limited by", 18, 1, _limited_by, to_right=False))
    return columns


def _measured(device: DeviceState, field: str) -> bool:
    return device.sample is not None and getattr(device.sample, field) is not None


SPARK_AFTER = "busy"
CLOCK_CODES = ("power-", "thermal-", "hw-")
RATIO_CODES = (*CLOCK_CODES, "rate-", "ceiling-")
"""Beginnings of the codes of findings that a number is coloured after."""
BOUND_WORDS: dict[Kind, str] = {
    "throttled": "throttled",
    "stalled": "stalled",
    "memory": "memory (DRAM)",
    "tensor": "Tensor Cores",
    "fp32": "FP32 units",
    "fp64": "FP64 units",
    "fp16": "FP16 units",
    "integer": "integer units",
    "latency": "latency",
}
"""What bounds the work, for a narrow column; nothing where no single thing does."""


def _head(columns: list[Column], spark_width: int, width: int, hidden: str) -> Line:
    text = ""
    for column in columns:
        text += _pad(column, column.head)
        if column.head == SPARK_AFTER:
            text += " " + " " * spark_width if spark_width else ""
    if hidden:
        # Above the two columns that need no head.
        text = left(" " + hidden, LABELS) + text[LABELS:]
    return fit((Span(text, "muted"),), width)


def _pad(column: Column, text: str) -> str:
    if column.to_right:
        return right(text, column.width)
    return " " + left(text, column.width - 1)


def _row(
    view: View,
    device: DeviceState,
    columns: list[Column],
    spark_width: int,
    width: int,
    several: bool,
) -> Line:
    selected = several and device.key == view.selected
    ending = "@cursor" if selected else ""
    spans: list[Span] = []
    for column in columns:
        text, role = column.cell(view, device)
        padded = _pad(column, text)
        if column is columns[0] and selected:
            padded = view.glyphs.cursor + padded[1:]
        spans.append(Span(padded, role + ending))
        if column.head == SPARK_AFTER and spark_width:
            history = spark(list(device.busy)[-spark_width:], spark_width, view.glyphs)
            _, state_role = state_word(view, device)
            role = state_role if state_role in {"warn", "fail"} else "spark"
            spans.append(Span(" " + history, role + ending))
    used = sum(column.width for column in columns) + (spark_width + 1 if spark_width else 0)
    if selected and used < width:
        spans.append(Span(" " * (width - used), "text" + ending))
    return fit(spans, width)


# Cells ------------------------------------------------------------------------------------------


def _label(view: View, device: DeviceState) -> Cell:
    del view
    text = "CPU" if device.identity.kind == "cpu" else str(device.identity.index)
    return Cell(text, "text")


def _state(view: View, device: DeviceState) -> Cell:
    return Cell(*state_word(view, device))


def _name(view: View, device: DeviceState) -> Cell:
    del view
    return Cell(short_name(device), "text")


def is_gone(device: DeviceState) -> bool:
    """A device that is lost has no numbers any more."""
    return device.condition in {"lost", "error"}


def _number(view: View, device: DeviceState) -> str:
    """Role of a number: old ones are not shown as if they were new."""
    return "muted" if state_word(view, device)[0] == "STALE" else "text"


def _busy(view: View, device: DeviceState) -> Cell:
    sample = device.sample
    if sample is None or sample.busy_ratio is None or is_gone(device):
        return MISSING
    return Cell(percent(sample.busy_ratio, 0), _number(view, device))


def _memory(view: View, device: DeviceState) -> Cell:
    sample = device.sample
    if sample is None or sample.memory_used_bytes is None or is_gone(device):
        return MISSING
    text = gibibytes(sample.memory_used_bytes)
    total = sample.memory_total_bytes or device.identity.memory_total_bytes
    if total is not None:
        text += f"/{gibibytes(total)}"
    role = concerned(view, device, "memory-")
    return Cell(text, role)


def _power(view: View, device: DeviceState) -> Cell:
    sample = device.sample
    if sample is None or sample.power_watts is None or is_gone(device):
        return MISSING
    text = watts(sample.power_watts)
    if sample.power_limit_watts is not None:
        text += f"/{watts(sample.power_limit_watts)}"
    return Cell(text, concerned(view, device, "power-"))


def _temperature(view: View, device: DeviceState) -> Cell:
    sample = device.sample
    if sample is None or sample.temperature_celsius is None or is_gone(device):
        return MISSING
    return Cell(f"{sample.temperature_celsius:.0f}", concerned(view, device, "thermal-"))


def _clock(view: View, device: DeviceState) -> Cell:
    sample = device.sample
    if sample is None or sample.sm_clock_mhz is None or is_gone(device):
        return MISSING
    return Cell(f"{sample.sm_clock_mhz:.0f}", concerned(view, device, *CLOCK_CODES))


def concerned(view: View, device: DeviceState, *codes: str) -> str:
    """Role of a number: that of a finding which is about it."""
    for finding in view.findings_of(device):
        if finding.code.startswith(codes) and finding.severity != "info":
            return finding.severity
    return _number(view, device)


def _ratio(view: View, device: DeviceState) -> Cell:
    ratio = device.ratio(view.precision)
    if ratio is None:
        return Cell(f"{NOT_AVAILABLE} ", "muted")
    mark = ratio_mark(device, view.precision)
    if mark == "!":
        role = "warn"
    elif mark == "~":
        role = "muted"
    else:
        role = concerned(view, device, *RATIO_CODES)
    return Cell(percent(ratio) + mark, role)


def _limited_by(view: View, device: DeviceState) -> Cell:
    """What holds the clocks; where nothing does, what bounds the work."""
    text = limited_by(device)
    if text:
        return Cell(text, concerned(view, device, *CLOCK_CODES))
    kind = bound.of_device(view.state, device, view.now).kind
    role = concerned(view, device, *CLOCK_CODES) if kind == "throttled" else "muted"
    return Cell(BOUND_WORDS.get(kind, ""), role)

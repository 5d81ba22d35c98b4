"""The instances of a GPU in MIG mode, one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import mig
from topsmon.diagnosis.mig import Part
from topsmon.diagnosis.verdict import Kind
from topsmon.fleet.words import counted
from topsmon.tui.cells import Line, Span, fit, left, right
from topsmon.tui.rate_rows import unit_and_scale
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, PRECISIONS, gibibytes, percent, significant

HEADS = 2
"""Lines above the instances."""


class Column(NamedTuple):
    """A column of fixed width, the blank beside it included. The lowest `keep` goes first."""

    head: str
    width: int
    keep: int
    cell: Callable[[View, Part], str]
    to_right: bool = True


def mig_lines(view: View, device: DeviceState, width: int, height: int) -> list[Line]:
    """What the GPU is cut into, then one line an instance; the last one counts those left out."""
    parts = mig.parts(view.state, device, view.now)
    summary = mig.summary(device)
    lines = [fit((Span(summary if len(summary) <= width else summary.partition(":")[0]),), width)]
    if not parts:
        return lines
    if height - HEADS < min(len(parts), 2):
        # A heading without a row tells nothing.
        lines.append(fit((Span(f"{counted(len(parts), 'instance')}: Enter", "muted"),), width))
        return lines
    columns = list(COLUMNS)
    while sum(column.width for column in columns) > width and len(columns) > 2:
        columns.remove(min(columns, key=lambda column: column.keep))
    lines.append(fit((Span("".join(_pad(one, one.head) for one in columns), "muted"),), width))
    room = height - len(lines)
    shown = parts if len(parts) <= room else parts[: max(room - 1, 0)]
    lines += [_row(view, part, columns, width) for part in shown]
    if len(shown) < len(parts):
        lines.append(fit((Span(f"and {len(parts) - len(shown)} more: Enter", "muted"),), width))
    return lines


def ceiling_text(view: View, part: Part) -> str:
    """Rated ceiling of an instance in the selected precision, without its unit."""
    by_key = {ceiling.precision: ceiling for ceiling in part.ceilings.rates}
    for key in PRECISIONS[view.precision].ceilings:
        if key in by_key:
            rate = by_key[key].ops_per_second
            unit, scale = unit_and_scale(view.precision, rate)
            return significant(rate / scale) + ("" if unit.startswith("T") else unit[0])
    return NOT_AVAILABLE


def _row(view: View, part: Part, columns: list[Column], width: int) -> Line:
    spans = []
    for column in columns:
        text = column.cell(view, part)
        role = "muted" if text.strip() == NOT_AVAILABLE else "text"
        spans.append(Span(_pad(column, text), role))
    return fit(spans, width)


def _pad(column: Column, text: str) -> str:
    if column.to_right:
        return right(text, column.width)
    return left(text, column.width)


def _label(view: View, part: Part) -> str:
    del view
    return part.label


def _sms(view: View, part: Part) -> str:
    del view
    return NOT_AVAILABLE if part.slice.sm_count is None else str(part.slice.sm_count)


def _memory(view: View, part: Part) -> str:
    del view
    used, total = part.slice.memory_used_bytes, part.slice.memory_total_bytes
    if used is None and total is None:
        return NOT_AVAILABLE
    return f"{gibibytes(used)}/{gibibytes(total)}"


def _counter(field: str) -> Callable[[View, Part], str]:
    def cell(view: View, part: Part) -> str:
        del view
        counters: events.GpuCounters | None = part.slice.counters
        return percent(getattr(counters, field) if counters is not None else None, 0)

    return cell


BOUND: dict[Kind, str] = {"cannot tell": NOT_AVAILABLE, "throttled": "throttle"}
"""Verdicts whose own word is too long."""


def _bound(view: View, part: Part) -> str:
    del view
    return " " + BOUND.get(part.bound.kind, part.bound.kind)


COLUMNS = (
    Column("instance", 12, 99, _label, to_right=False),
    Column("SMs", 4, 1, _sms),
    Column("GiB", 10, 90, _memory),
    Column("SM", 5, 80, _counter("sm_active_ratio")),
    Column("tensor", 7, 70, _counter("tensor_active_ratio")),
    Column("DRAM", 5, 60, _counter("dram_active_ratio")),
    Column("ceiling", 8, 50, ceiling_text),
    Column(" bound by", 9, 40, _bound, to_right=False),
)

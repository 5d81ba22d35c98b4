"""`topsmon specs`: the ceilings of a device or of any board, as a table or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from topsmon import __version__, events, units
from topsmon.ceilings import boards, held
from topsmon.ceilings.database import Board
from topsmon.ceilings.gpu import for_board
from topsmon.ceilings.lookup import askable_names, boards_asked_for, near_names

SCHEMA = "topsmon.specs/1"
SCHEMA_VERSION = 1
NARROWEST = 40
ADD_A_BOARD = "To add a board: topsmon/ceilings/boards.toml, explained in CONTRIBUTING.md."


class UnknownBoard(ValueError):  # noqa: N818 - "raise UnknownBoard" reads as what it is
    """A name that is no board's; the message says what to do."""


class AmbiguousBoard(UnknownBoard):
    """A name of several boards; the message lists them."""


class _Row(NamedTuple):
    """One line of the table. `footnotes` are the numbers of its source and remarks."""

    label: str
    dense: str
    unit: str
    sparse: str
    printed: str
    at_clock: str
    origin: str
    check: str
    footnotes: str


def board_ceilings(name: str) -> events.Ceilings:
    """Return the ceilings of the board with this exact name or key.

    Raises UnknownBoard, and AmbiguousBoard where boards of different hardware have the name.
    """
    found = boards_asked_for(name)
    shown = units.plain(name, 100)
    if len(found) == 1:
        return for_board(found[0])
    if found:
        listed = "\n".join(f"  topsmon specs {board.key:<24}{_hardware(board)}" for board in found)
        raise AmbiguousBoard(
            f'"{shown}" is the name of {len(found)} boards with different hardware. Ask for one by'
            f" its key:\n{listed}"
        )
    near = near_names(name)
    did_you_mean = f" Similar names: {', '.join(near)}." if near else ""
    raise UnknownBoard(
        f'no board is called "{shown}", so no ceiling is known; nothing is guessed from similar'
        f" names.{did_you_mean} {ADD_A_BOARD}"
    )


def board_names() -> list[str]:
    """Return one name for each board of the table; `board_ceilings` takes every one of them."""
    return sorted(askable_names(), key=str.lower)


def specs_text(
    ceilings: events.Ceilings,
    device: events.Device | None,
    clock_mhz: float | None,
    width: int,
    ascii_only: bool,
) -> str:
    """Return the ceilings as text of at most `width` columns; the table may need 80.

    With `clock_mhz` a column has the ceilings at that clock.
    """
    width = max(width, NARROWEST)
    footnotes: list[str] = []
    rows = [_row(ceiling, clock_mhz, footnotes) for ceiling in ceilings.rates]
    lines = _heading(ceilings, device, width)
    if ceilings.unknown is not None:
        lines += ["", *_wrapped(ceilings.unknown, width)]
    if rows:
        lines += ["", *_table(rows, clock_mhz, width)]
    lines += ["", *_bandwidths(ceilings, width)]
    lines += _absences(ceilings, width)
    if footnotes:
        lines.append("")
        for number, text in enumerate(footnotes, 1):
            lines += _wrapped(text, width, f"[{number}] ")
    for note in ceilings.notes:
        lines += _wrapped(note, width, "note: ")
    if rows:
        lines += ["", *_wrapped(_legend(ceilings), width)]
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.encode("ascii", "replace").decode() if ascii_only else text


def specs_json(
    ceilings: events.Ceilings, device: events.Device | None, clock_mhz: float | None
) -> bytes:
    """Return the ceilings as one JSON object; units are in the keys, null is "not known"."""
    board = _board(ceilings)
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "schema_version": SCHEMA_VERSION,
        "name": _name(ceilings, device),
        "device": ceilings.device,
        "kind": "gpu" if device is None else device.kind,
        "board": ceilings.board,
        "matched_by": ceilings.matched_by,
        "unknown": ceilings.unknown,
        "compute_capability": _capability(board, device),
        "sm_count": _sm_count(board, device),
        "power_watts": board.power_watts if board is not None else None,
        "clock_mhz": clock_mhz,
        "clock_source": ceilings.clock_source,
        "rates": [_rate(ceiling, clock_mhz) for ceiling in ceilings.rates],
        "absent": ceilings.absent,
        "memory_bandwidth_bytes_per_second": ceilings.memory_bandwidth_bytes_per_second,
        "memory_bandwidth_source": ceilings.memory_bandwidth_source,
        "l2_bytes": ceilings.l2_bytes,
        "pcie_bytes_per_second": ceilings.pcie_bytes_per_second,
        "pcie_source": ceilings.pcie_source,
        "nvlink_bytes_per_second": ceilings.nvlink_bytes_per_second,
        "nvlink_source": ceilings.nvlink_source,
        "notes": ceilings.notes,
    }
    return msgspec.json.encode(document) + b"\n"


def _rate(ceiling: events.Ceiling, clock_mhz: float | None) -> dict[str, object]:
    label, unit = units.RATE_LABELS[ceiling.precision]
    return {
        "precision": ceiling.precision,
        "label": label,
        "unit": unit,
        "dense_ops_per_second": ceiling.ops_per_second,
        "dense_low_ops_per_second": ceiling.ops_per_second_low,
        "sparse_ops_per_second": ceiling.sparse_ops_per_second,
        "published_ops_per_second": ceiling.published_ops_per_second,
        "at_clock_ops_per_second": held(ceiling, clock_mhz) if clock_mhz is not None else None,
        "ops_per_clock": ceiling.ops_per_clock,
        "rated_clock_mhz": ceiling.rated_clock_mhz,
        "origin": ceiling.origin,
        "verified": ceiling.verified,
        "source": ceiling.source,
        "note": ceiling.note,
    }


def _row(ceiling: events.Ceiling, clock_mhz: float | None, footnotes: list[str]) -> _Row:
    label, unit = units.RATE_LABELS[ceiling.precision]
    dense = _tera(ceiling.ops_per_second)
    if ceiling.ops_per_second_low is not None:
        dense = f"{_tera(ceiling.ops_per_second_low)}-{dense}"
    numbers = [_number(text, footnotes) for text in (ceiling.source, ceiling.note) if text]
    return _Row(
        label=label,
        dense=dense,
        unit=unit,
        sparse=_tera(ceiling.sparse_ops_per_second),
        printed=_as_printed(ceiling.published_ops_per_second),
        at_clock=_tera(held(ceiling, clock_mhz) if clock_mhz is not None else None),
        origin=ceiling.origin,
        check="unverified" if ceiling.verified is False else "",
        footnotes="".join(f"[{number}]" for number in numbers),
    )


def _number(text: str, footnotes: list[str]) -> int:
    if text not in footnotes:
        footnotes.append(text)
    return footnotes.index(text) + 1


def _tera(ops_per_second: float | None) -> str:
    """Return 1e12 per second with one decimal and at least three digits: 71.2, 142.3, 0.556."""
    if ops_per_second is None:
        return "-"
    return units.tera(ops_per_second, 4 if ops_per_second >= 1e14 else 3)


def _as_printed(ops_per_second: float | None) -> str:
    return "-" if ops_per_second is None else f"{ops_per_second / 1e12:.6g}"


class _Column(NamedTuple):
    title: str
    cell: Callable[[_Row], str]
    right: bool = False
    needed: bool = False


def _table(rows: Sequence[_Row], clock_mhz: float | None, width: int) -> list[str]:
    columns = [
        _Column("precision", lambda row: row.label, needed=True),
        _Column("dense", lambda row: row.dense, right=True, needed=True),
        _Column("2:4 sparse", lambda row: row.sparse, right=True),
        _Column("printed", lambda row: row.printed, right=True),
        _Column(f"at {clock_mhz or 0:g} MHz", lambda row: row.at_clock, right=True, needed=True),
        _Column("unit", lambda row: row.unit, needed=True),
        _Column("origin", lambda row: row.origin, needed=True),
        _Column("", lambda row: row.check, needed=True),
        _Column("", lambda row: row.footnotes),
    ]
    if clock_mhz is None:
        columns = [column for column in columns if not column.title.startswith("at ")]
    columns = [column for column in columns if _says_something(column, rows)]
    for optional in ("printed", "", "2:4 sparse"):
        if _total(columns, rows) > width:
            columns = [column for column in columns if column.needed or column.title != optional]
    widths = [_widest(column, rows) for column in columns]
    lines = [[column.title for column in columns]]
    lines += [[column.cell(row) for column in columns] for row in rows]
    return [
        "  ".join(
            cell.rjust(size) if column.right else cell.ljust(size)
            for cell, size, column in zip(line, widths, columns, strict=True)
        )
        for line in lines
    ]


def _says_something(column: _Column, rows: Sequence[_Row]) -> bool:
    return any(column.cell(row) not in ("", "-") for row in rows)


def _widest(column: _Column, rows: Sequence[_Row]) -> int:
    return max(len(column.title), *(len(column.cell(row)) for row in rows))


def _total(columns: Sequence[_Column], rows: Sequence[_Row]) -> int:
    return sum(_widest(column, rows) + 2 for column in columns) - 2


def _heading(ceilings: events.Ceilings, device: events.Device | None, width: int) -> list[str]:
    board = _board(ceilings)
    facts = []
    capability, sms = _capability(board, device), _sm_count(board, device)
    if capability is not None:
        facts.append(f"compute capability {capability}")
    if sms is not None:
        facts.append(f"{sms} SMs")
    if board is not None and board.power_watts is not None:
        facts.append(f"{board.power_watts:g} W")
    if ceilings.board is not None and ceilings.matched_by is not None:
        facts.append(f"{ceilings.board}, found by {ceilings.matched_by}")
    lines = _wrapped(_name(ceilings, device), width)
    if facts:
        lines += _wrapped(", ".join(facts), width)
    if ceilings.clock_source:
        lines += _wrapped(ceilings.clock_source, width, "clock: ")
    return lines


def _bandwidths(ceilings: events.Ceilings, width: int) -> list[str]:
    lines = []
    for label, value, per, source in (
        (
            "memory",
            ceilings.memory_bandwidth_bytes_per_second,
            "",
            ceilings.memory_bandwidth_source,
        ),
        ("PCIe", ceilings.pcie_bytes_per_second, " per direction", ceilings.pcie_source),
        ("NVLink", ceilings.nvlink_bytes_per_second, " per direction", ceilings.nvlink_source),
    ):
        amount = "-" if value is None else f"{units.bandwidth(value)}{per}"
        lines += _wrapped(f"{amount}  ({source})" if source else amount, width, f"{label:<8}")
    if ceilings.l2_bytes is not None:
        lines += _wrapped(units.binary_bytes(ceilings.l2_bytes), width, f"{'L2':<8}")
    return lines


def _absences(ceilings: events.Ceilings, width: int) -> list[str]:
    """Group the precisions without a ceiling by the reason."""
    labels: dict[str, list[str]] = {}
    for precision, reason in ceilings.absent.items():
        labels.setdefault(reason, []).append(units.RATE_LABELS[precision][0])
    lines = [
        line
        for reason, group in labels.items()
        for line in _wrapped(f"{'; '.join(group)}: {reason}", width, "  ")
    ]
    return ["", "no ceiling", *lines] if lines else []


def _legend(ceilings: events.Ceilings) -> str:
    parts = ["Dense figures; one multiply-add counts as two operations."]
    if any(ceiling.published_ops_per_second is not None for ceiling in ceilings.rates):
        parts.append(
            "printed: the vendor's figure; dense is the same with the digits of SMs x rate x clock"
            " where the vendor rounds or cuts it."
        )
    if any(ceiling.verified is False for ceiling in ceilings.rates):
        parts.append("unverified: not read again in the source named.")
    parts.append("Boards that boost above the rated clock can exceed these figures.")
    return " ".join(parts)


def _wrapped(text: str, width: int, prefix: str = "") -> list[str]:
    return textwrap.wrap(
        units.plain(text),
        width,
        initial_indent=prefix,
        subsequent_indent=" " * len(prefix),
        break_on_hyphens=False,
    )


def _hardware(board: Board) -> str:
    facts = [f"{board.sms} SMs"]
    if board.memory_gib is not None:
        facts.append(f"{board.memory_gib:g} GB")
    if board.memory_gb_per_second is not None:
        facts.append(f"{board.memory_gb_per_second:g} GB/s")
    if board.boost_mhz is not None:
        facts.append(f"{board.boost_mhz:g} MHz")
    return ", ".join(facts)


def _board(ceilings: events.Ceilings) -> Board | None:
    return boards().get(ceilings.board) if ceilings.board is not None else None


def _name(ceilings: events.Ceilings, device: events.Device | None) -> str:
    board = _board(ceilings)
    if device is not None:
        return device.name
    return board.names[0] if board is not None else ceilings.device


def _capability(board: Board | None, device: events.Device | None) -> str | None:
    if device is not None and device.compute_capability is not None:
        return device.compute_capability
    return board.cc if board is not None else None


def _sm_count(board: Board | None, device: events.Device | None) -> int | None:
    if device is not None and device.sm_count is not None:
        return device.sm_count
    return board.sms if board is not None else None

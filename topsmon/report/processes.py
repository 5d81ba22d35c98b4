"""Who uses the devices, as text: the largest users of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topsmon.report.columns import clip, pad, wrap
from topsmon.report.process_rows import Row, collect, unreadable
from topsmon.state import State
from topsmon.units import NOT_AVAILABLE, age, command_words, gibibytes, percent, plain

MOST = 3
"""Processes that are listed of each device."""
_COMMAND = 300


def lines(state: State, wall: float, width: int) -> list[str]:
    """Return the table, [] where nothing is known; `wall` is the time since the epoch, in s."""
    of_device: dict[int, list[Row]] = {}
    for row in collect(state):
        of_device.setdefault(row.order, []).append(row)
    everyone = [row for rows in of_device.values() for row in rows]
    device_width = max(len(label) for label in ("device", *(row.device for row in everyone)))
    table: list[str] = []
    for rows in of_device.values():
        rows.sort(key=_weight, reverse=True)
        table += [_line(row, wall, device_width, width) for row in rows[:MOST]]
        if len(rows) > MOST:
            label = rows[0].device.partition("/")[0]
            table.append(f"{pad(label, device_width)} and {len(rows) - MOST} more")
    notes = [f"N/A processes ({label}): {reason}" for label, reason in unreadable(state)]
    notes += [f"N/A ({labels}): {note}" for note, labels in _notes(of_device.values()).items()]
    strangers = sorted({row.key.pid for row in everyone if not row.entry.local})
    if strangers:
        pids = ", ".join(map(str, strangers[:8])) + (" ..." if len(strangers) > 8 else "")
        notes.append(f"not of this system (host, another container, or ended): PID {pids}")
    if table:
        cells = ("device", "PID", "user", "GPU GiB", "SM", "CPU", "RSS GiB", "age", "command")
        table.insert(0, _joined(cells, device_width, width))
    return table + [line for note in notes for line in wrap(note, width, rest=4)]


def _weight(row: Row) -> tuple[float, float]:
    entry = row.entry
    return entry.memory_bytes or 0, entry.cpu_cores or 0.0


def _notes(groups: Iterable[list[Row]]) -> dict[str, str]:
    """What the driver does not tell, and of which devices; equal reasons together."""
    found: dict[str, list[str]] = {}
    for rows in groups:
        if rows[0].note:
            label = rows[0].device.partition("/")[0]
            found.setdefault(plain(rows[0].note, 300), []).append(label)
    return {note: ", ".join(labels) for note, labels in found.items()}


def _joined(cells: Sequence[str], device_width: int, width: int) -> str:
    device, pid, user, memory, share, cpu, host, since, command = cells
    who = (pad(device, device_width), pid.rjust(7), pad(clip(user, 8), 8))
    what = (memory.rjust(7), share.rjust(4), cpu.rjust(5), host.rjust(7), since.rjust(7))
    return clip(" ".join((*who, *what, command)), width)


def _line(row: Row, wall: float, device_width: int, width: int) -> str:
    entry = row.entry
    command = command_words(entry.command or "", _COMMAND) or plain(
        entry.name or NOT_AVAILABLE, 100
    )
    return _joined(
        (
            row.device,
            str(entry.pid),
            plain(entry.user or NOT_AVAILABLE, 40),
            "" if row.cpu else gibibytes(entry.memory_bytes),
            "" if row.cpu else percent(entry.sm_ratio, 0),
            percent(entry.cpu_cores, 0),
            gibibytes(entry.host_memory_bytes),
            NOT_AVAILABLE if entry.started is None else age(wall - entry.started),
            f"{entry.state} {command}" if entry.state else command,
        ),
        device_width,
        width,
    )

"""The processes on a device as lines."""

from __future__ import annotations

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.tui.cells import Line, Span, clip, fit, left, right
from topsmon.units import NOT_AVAILABLE, command_words, gibibytes, plain, significant

HEAD = 9
PID, AMOUNT, USER = 8, 8, 9
SHORTEST = 24
"""Characters of a command, however narrow its column is."""


def command_text(entry: events.ProcessEntry, limit: int = 2000) -> str:
    """Program and arguments without the program's folder, in at most `limit` characters."""
    words = command_words(entry.command or "", max(limit, SHORTEST))
    return words or plain(entry.name or NOT_AVAILABLE, 200)


def process_lines(device: DeviceState, width: int, room: int, *, stale: bool = False) -> list[Line]:
    """Lines about the processes on a device, the last one counting those left out.

    `stale`: it does not answer now, so its last list is none.
    """
    processes = device.processes
    if processes is None or room <= 0:
        return []
    if stale or device.condition in {"lost", "error", "stalled"}:
        text = f"processes {NOT_AVAILABLE}: the device does not answer"
        return [fit((Span(text, "muted"),), width)]
    if processes.entries is None:
        reason = plain(processes.reason, 200) or "no reason given"
        return [fit((Span(f"processes {NOT_AVAILABLE}: {reason}", "muted"),), width)]
    others = [entry for entry in processes.entries if not entry.own]
    if not others:
        text = "no process is visible" if unseen_user(device) else "nobody else uses it"
        return [fit((Span(text, "muted"),), width)]
    if room < 1 + min(len(others), 2):
        return [_first(device, others, width)]
    unit = "cores" if _counts_cores(device) else "GiB"
    head = f"{right('PID', PID)}{right(unit, AMOUNT)}  {left('user', USER)} command"
    lines = [fit((Span(head, "muted"),), width)]
    shown = others if len(others) < room else others[: room - 2]
    lines += [_row(device, entry, width) for entry in shown]
    if len(shown) < len(others):
        lines.append(fit((Span(f"and {len(others) - len(shown)} more", "muted"),), width))
    return lines


def unseen_user(device: DeviceState) -> bool:
    """True for a GPU that is busy, or may be, while no process is listed, not even our own."""
    entries = device.processes.entries if device.processes is not None else None
    if entries is None or entries or device.identity.kind != "gpu":
        return False
    return device.sample is None or device.sample.busy_ratio != 0


def amount_text(device: DeviceState, entry: events.ProcessEntry, *, unit: bool = True) -> str:
    """What a process takes of a device: "0.98 cores" of a CPU, "41.0 GiB" of a GPU's memory."""
    if _counts_cores(device):
        number = significant(entry.cpu_cores, 2) if entry.cpu_cores is not None else NOT_AVAILABLE
        name = "cores"
    else:
        number, name = gibibytes(entry.memory_bytes), "GiB"
    return f"{number} {name}" if unit and number != NOT_AVAILABLE else number


def _counts_cores(device: DeviceState) -> bool:
    return device.identity.kind == "cpu"


def _first(device: DeviceState, entries: list[events.ProcessEntry], width: int) -> Line:
    """The largest user, and how many others there are."""
    first = max(entries, key=lambda entry: (entry.memory_bytes or 0, entry.cpu_cores or 0.0))
    if _counts_cores(device):
        first = max(entries, key=lambda entry: entry.cpu_cores or 0.0)
    more = f" +{len(entries) - 1} more" if len(entries) > 1 else ""
    head = left("used by", HEAD) + " "
    who = f"PID {first.pid}, {amount_text(device, first)}: "
    room = width - len(head) - len(more)
    text = clip(who + command_text(first, room - len(who)), room)
    return fit((Span(head, "muted"), Span(text), Span(more, "muted")), width)


def _row(device: DeviceState, entry: events.ProcessEntry, width: int) -> Line:
    amount = amount_text(device, entry, unit=False)
    room = width - PID - AMOUNT - USER - 3
    return fit(
        (
            Span(f"{right(str(entry.pid), PID)}{right(amount, AMOUNT)}  ", "text"),
            Span(left(plain(entry.user or "", 40), USER) + " ", "muted"),
            Span(command_text(entry, room), "text"),
        ),
        width,
    )

"""How findings say things: numbers with units, commands, times, names from outside.

A finding's own words are ASCII, so that they read the same on every terminal.
"""

from __future__ import annotations

import re
import time

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.state import State
from topsmon.units import PRECISIONS, command_words, plain, significant


def finding(
    evidence_of: events.Event,
    device: DeviceState | None,
    *,
    code: str,
    severity: events.Severity,
    word: str,
    title: str,
    **more: object,
) -> events.Finding:
    """Return a finding dated as the event it rests on, so that it stays equal while that does.

    `title` is prefixed with the device's label.
    """
    return events.Finding(
        time=evidence_of.time,
        monotonic=evidence_of.monotonic,
        source=evidence_of.source,
        device=device.key if device is not None else None,
        code=code,
        severity=severity,
        word=word,
        title=f"{device.label}  {title}" if device is not None else title,
        **more,  # type: ignore[arg-type]
    )


def of_ceiling(achieved: float, ceiling: float, precision: str) -> str:
    """Two rates in one unit, that of the ceiling: "412 of 989 TFLOPS", "61.2 of 83.1 GFLOPS"."""
    known = PRECISIONS.get(precision)
    unit, scale = (known.unit if known is not None else "TFLOPS"), 1e12
    if abs(ceiling) < 1e12:
        unit, scale = unit.replace("T", "G", 1), 1e9
    return f"{significant(achieved / scale)} of {significant(ceiling / scale)} {unit}"


def label(precision: str) -> str:
    """The precision's name on the screen."""
    known = PRECISIONS.get(precision)
    return known.label if known is not None else plain(precision, 20)


def number(value: float) -> str:
    """A quantity without trailing zeros: 700.0 -> "700", 115.5 -> "115.5"."""
    return f"{value:.10g}"


def time_of_day(seconds: float) -> str:
    """Local wall-clock time of an epoch time, "14:03:59"."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def board(device: DeviceState, limit: int = 40) -> str:
    """The board's name, safe to draw."""
    return plain(device.identity.name, limit)


def process(entry: events.ProcessEntry, limit: int = 40) -> str:
    """A process as people know it: "python train.py (PID 12)"."""
    name = command_words(entry.command or entry.name or "", limit) or "a process"
    where = "PID" if entry.local else "host PID"
    return f"{name} ({where} {entry.pid})"


def joined(items: list[str], limit: int = 3) -> str:
    """The first items and how many are left out: "a, b, c and 2 more"."""
    shown = ", ".join(items[:limit])
    return f"{shown} and {len(items) - limit} more" if len(items) > limit else shown


def nvidia_smi(state: State, device: DeviceState, arguments: str, *, changes: bool) -> str:
    """A command line for this very board; one that `changes` something needs root.

    In a container the indices are not the host's, so the board is named by its UUID.
    """
    host = state.host
    target = str(device.identity.index)
    if host is not None and host.container and device.identity.uuid is not None:
        target = plain(device.identity.uuid)
    windows = host is not None and host.wsl
    sudo = "sudo " if changes and not windows else ""
    return f"{sudo}nvidia-smi -i {target} {arguments}"


def where_needed(state: State, remedy: str) -> str:
    """A remedy that changes the driver's settings, with the place where that works if not here."""
    host = state.host
    if host is not None and host.wsl:
        return f"In an administrator shell of Windows, {remedy}"
    if host is not None and host.container:
        return f"On the host of this container, {remedy}"
    return remedy[:1].upper() + remedy[1:]


def lspci_address(bus_id: str) -> str | None:
    """NVML's PCI address as lspci takes it: "00000000:17:00.0" -> "0000:17:00.0"."""
    match = re.fullmatch(
        r"(?:0000)?([0-9A-Fa-f]{4}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", bus_id
    )
    return f"{match[1]}:{match[2]}" if match else None

"""The processes of all devices as rows: one for each process and device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.state import State
from topsmon.units import plain

_WORDS = re.compile(r"gpu\s*(\d+)(?!\S)|(\S+)")
HOST_FACTS = (
    "cpu_cores",
    "host_memory_bytes",
    "state",
    "parent_pid",
    "user",
    "name",
    "command",
    "ancestors",
)
"""What is the same on every device that a process is on."""


class RowKey(NamedTuple):
    """What the cursor stands on. `device` is "" for a process that is only shown as a parent."""

    device: str
    pid: int
    gpu_instance: int | None = None


@dataclass(frozen=True)
class Row:
    """A process on a device. `branch` is what is drawn before its command in the tree.

    `profile` is that of its MIG instance; `note` says what the driver does not tell.
    """

    key: RowKey
    device: str
    order: int
    entry: events.ProcessEntry
    cpu: bool = False
    profile: str | None = None
    note: str = ""
    branch: str = ""

    @property
    def is_parent(self) -> bool:
        """True for a process on no device: it is there to show whose children others are."""
        return not self.key.device


def collect(state: State) -> list[Row]:
    """Return all rows in the order of the devices.

    A process on several devices has one CPU use and one of everything else that the host tells:
    the newest. A GPU's process that is busy on the CPU too is not listed twice.
    """
    newest = _newest(state)
    rows: list[Row] = []
    on_gpus: set[int] = set()
    for order, device in enumerate(state.ordered()):
        cpu = device.identity.kind == "cpu"
        for entry in _entries(device):
            if cpu and entry.pid in on_gpus:
                continue
            if not cpu and entry.local:
                on_gpus.add(entry.pid)
            known = newest.get(entry.pid) if entry.local else None
            rows.append(_row(device, order, entry if known is None else _updated(entry, known)))
    return rows


def _entries(device: DeviceState) -> Sequence[events.ProcessEntry]:
    return (device.processes.entries or ()) if device.processes is not None else ()


def _newest(state: State) -> dict[int, events.ProcessEntry]:
    found: dict[int, tuple[float, events.ProcessEntry]] = {}
    for device in state.devices.values():
        if device.processes is None or device.identity.kind == "cpu":
            continue
        for entry in _entries(device):
            at = device.processes.monotonic
            if entry.local and (entry.pid not in found or at > found[entry.pid][0]):
                found[entry.pid] = at, entry
    return {pid: entry for pid, (_, entry) in found.items()}


def _updated(entry: events.ProcessEntry, newest: events.ProcessEntry) -> events.ProcessEntry:
    if entry is newest or entry.start_ticks != newest.start_ticks:
        return entry
    return msgspec.structs.replace(entry, **{name: getattr(newest, name) for name in HOST_FACTS})


def _row(device: DeviceState, order: int, entry: events.ProcessEntry) -> Row:
    slices = device.slices.slices if device.slices is not None else ()
    instance = entry.gpu_instance
    profiles = {one.gpu_instance: one.profile for one in slices}
    label = device.label if instance is None else f"{device.label}/gi{instance}"
    return Row(
        key=RowKey(device.key, entry.pid, instance),
        device=label,
        order=order,
        entry=entry,
        cpu=device.identity.kind == "cpu",
        profile=None if instance is None else profiles.get(instance),
        note=device.processes.reason if device.processes is not None else "",
    )


def unreadable(state: State) -> list[tuple[str, str]]:
    """Devices whose processes cannot be read, and why."""
    return [
        (device.label, plain(device.processes.reason, 200) or "no reason given")
        for device in state.ordered()
        if device.processes is not None and device.processes.entries is None
    ]


def chosen(rows: Iterable[Row], text: str) -> list[Row]:
    """Return the rows in which every word of `text` is found, in whatever case.

    "gpu 3" is one word and means that device.
    """
    words = _WORDS.findall(text.lower())
    return [row for row in rows if all(_has(row, gpu, word) for gpu, word in words)]


def _has(row: Row, gpu: str, word: str) -> bool:
    if gpu:
        return row.device.partition("/")[0] == f"GPU {gpu}"
    return word in _searched(row)


def _searched(row: Row) -> str:
    entry = row.entry
    parts = (entry.user, entry.command, entry.name, str(entry.pid), row.device, row.profile)
    return "\n".join(part for part in parts if part).lower()

"""The driver's lists of processes on a GPU, with what makes no sense taken out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from topsmon import events
from topsmon.devices import nvml
from topsmon.devices.nvml import Call, Unavailable
from topsmon.devices.text import valid_text

PID_MAX = 1 << 22
"""PID_MAX_LIMIT of a 64-bit Linux kernel (include/linux/threads.h)."""
_NAMES_KEPT = 1024


def _forms(kind: str) -> tuple[Call, ...]:
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    return (Call(f"{name}_v3"), Call(f"{name}_v2"), Call(name))


COMPUTE, MPS, GRAPHICS = _forms("Compute"), _forms("MPSCompute"), _forms("Graphics")


class ProcessLists:
    """Reads lists as device memory in bytes by PID; None where the driver does not tell.

    `memory_limit` is the device's memory: no process can hold more.
    """

    def __init__(self, driver: nvml.Driver, watch: nvml.Watch) -> None:
        self.memory_limit = 1 << 50
        self._driver = driver
        self._watch = watch
        self._names: dict[int, str | None] = {}
        self._older_tried = False

    def compute(
        self, capabilities: nvml.Capabilities, handle: object, now: float
    ) -> dict[int, int | None] | Unavailable:
        """Return the processes with a compute context, clients of MPS among them."""
        answer = capabilities.read("processes", COMPUTE, handle, now)
        if isinstance(answer, Unavailable):
            return answer
        found = self.sift(answer)
        if len(found) < len(answer) and not self._older_tried:
            # Early drivers of release 535 changed the newest struct: its rows read as garbage.
            self._older_tried = True
            older = self._driver.query(self._watch, COMPUTE[1:2], handle)
            if not isinstance(older, Unavailable):
                sane = self.sift(older)
                if sane and len(sane) == len(older):
                    capabilities.skip("processes", 1)
                    found = sane
        clients = capabilities.read("MPS processes", MPS, handle, now)
        return found if isinstance(clients, Unavailable) else self.sift(clients) | found

    def graphics(
        self, capabilities: nvml.Capabilities, handle: object, now: float
    ) -> dict[int, int | None]:
        """Return the processes with a graphics context; none where they cannot be read."""
        answer = capabilities.read("graphics processes", GRAPHICS, handle, now)
        return {} if isinstance(answer, Unavailable) else self.sift(answer)

    def sift(self, rows: Iterable[Any]) -> dict[int, int | None]:
        """Drop rows with an impossible PID; impossible memory is not told."""
        found: dict[int, int | None] = {}
        for row in rows:
            if not 0 < row.pid <= PID_MAX:
                continue
            used = row.usedGpuMemory
            if used is not None and not 0 <= used <= self.memory_limit:
                used = None
            before = found.get(row.pid)
            # A process in several MIG instances has a row for each.
            found[row.pid] = used if before is None or used is None else before + used
        return found

    def named(self, entry: events.ProcessEntry) -> events.ProcessEntry:
        """Ask the driver for the name of a process that we cannot see ourselves."""
        if entry.name is not None or entry.command is not None:
            return entry
        if entry.pid not in self._names:
            if len(self._names) >= _NAMES_KEPT:
                self._names.clear()
            answer = self._driver.call(self._watch, "nvmlSystemGetProcessName", entry.pid)
            path = valid_text(answer)
            self._names[entry.pid] = path.rpartition("/")[2] if path else None
        name = self._names[entry.pid]
        return entry if name is None else msgspec.structs.replace(entry, name=name)

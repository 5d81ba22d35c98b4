"""The driver's lists of processes on a GPU, with what makes no sense taken out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from topsmon import events
from topsmon.devices import nvml
from topsmon.devices.nvml import Call, Unavailable
from topsmon.devices.text import valid_text

PID_MAX = 1 << 22
"""PID_MAX_LIMIT of a 64-bit Linux kernel (include/linux/threads.h)."""
NO_INSTANCE = 0xFFFFFFFF
"""What the driver writes for a process that is in no MIG instance (nvml.h, nvmlProcessInfo_t)."""
_NAMES_KEPT = 1024


class Key(NamedTuple):
    """A process on a GPU: its PID, and the MIG instance that it is in."""

    pid: int
    gpu_instance: int | None = None


class Held(NamedTuple):
    """What a process holds: device memory in bytes (None: not told), and its kind of context."""

    memory_bytes: int | None = None
    kind: str = "compute"


def _forms(kind: str) -> tuple[Call, ...]:
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    return (Call(f"{name}_v3"), Call(f"{name}_v2"), Call(name))


COMPUTE, MPS, GRAPHICS = _forms("Compute"), _forms("MPSCompute"), _forms("Graphics")

Memory = dict[Key, int | None]


class ProcessLists:
    """Reads lists as device memory in bytes by process; None where the driver does not tell.

    `memory_limit` is the device's memory: no process can hold more.
    """

    def __init__(self, driver: nvml.Driver, watch: nvml.Watch) -> None:
        self.memory_limit = 1 << 50
        self._driver = driver
        self._watch = watch
        self._names: dict[int, str | None] = {}
        self._older_tried = False

    def read(
        self,
        capabilities: nvml.Capabilities,
        handle: object,
        now: float,
        instances: Mapping[int, object] | None = None,
    ) -> dict[Key, Held] | Unavailable:
        """Return all processes; `instances` are the handles of MIG instances by their number.

        Without privileges a GPU in MIG mode does not tell who is in its instances; they do.
        """
        compute = self.compute(capabilities, handle, now)
        inside: Memory = {}
        answered = False
        for number, instance in (instances or {}).items():
            answer = self._driver.query(self._watch, COMPUTE, instance)
            if not isinstance(answer, Unavailable):
                answered = True
                inside |= self.sift(answer, number)
        if isinstance(compute, Unavailable):
            if not answered:
                return compute
            compute = {}
        pids = {key.pid for key in inside}
        whole = {
            key: used
            for key, used in compute.items()
            if key.gpu_instance is not None or key.pid not in pids
        }
        return _joined(whole | inside, self.graphics(capabilities, handle, now))

    def compute(
        self, capabilities: nvml.Capabilities, handle: object, now: float
    ) -> Memory | Unavailable:
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

    def graphics(self, capabilities: nvml.Capabilities, handle: object, now: float) -> Memory:
        """Return the processes with a graphics context; none where they cannot be read."""
        answer = capabilities.read("graphics processes", GRAPHICS, handle, now)
        return {} if isinstance(answer, Unavailable) else self.sift(answer)

    def sift(self, rows: Iterable[Any], gpu_instance: int | None = None) -> Memory:
        """Drop rows with an impossible PID; impossible memory is not told.

        `gpu_instance` is that of the handle which was asked, where the rows do not tell theirs.
        """
        found: Memory = {}
        for row in rows:
            if not 0 < row.pid <= PID_MAX:
                continue
            used = row.usedGpuMemory
            if used is not None and not 0 <= used <= self.memory_limit:
                used = None
            told = getattr(row, "gpuInstanceId", None)
            key = Key(row.pid, gpu_instance if told in {None, NO_INSTANCE} else told)
            before = found.get(key)
            # A process in several compute instances of a GPU instance has a row for each.
            found[key] = used if before is None or used is None else before + used
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


def _joined(compute: Memory, graphics: Memory) -> dict[Key, Held]:
    """One row a process: one with both kinds of context is in both lists with all its memory."""
    found = {key: Held(used) for key, used in compute.items()}
    for key, used in graphics.items():
        twin = found.get(key)
        if twin is None:
            found[key] = Held(used, "graphics")
        else:
            told = [memory for memory in (used, twin.memory_bytes) if memory is not None]
            found[key] = Held(max(told, default=None), "both")
    return found

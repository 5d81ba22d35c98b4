"""Processes on a device: who they are, and which of them are topsmon's own.

What a process is called is looked up in a thread of its own: its command line may be locked by
a process that hangs, and its user's name may come from a slow directory service. Until the answer
is there, and wherever rights are missing, the entry holds what is known.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psutil

from topsmon import events
from topsmon.devices.text import valid_text

COMMAND_LIMIT = 1000
"""Characters of a command line that are kept; some programs have 100 kB of arguments."""
PATIENCE_SECONDS = 0.05
BUSY_CORES = 0.2
"""Share of one core from which on a process counts as using the CPU."""
SCAN_SECONDS = 2.0
FIRST_SCAN_SECONDS = 0.05
"""The same between the first two looks, where nothing is known yet."""
SCAN_SHARE = 0.005
"""Share of a core that looking through all processes may cost."""
USAGE_SECONDS = 0.5
"""CPU use over less than this is not worth telling: the kernel counts in ticks of 10 ms."""
_KTHREADD = 2
_ANCESTORS = 4
_GONE = (psutil.Error, OSError, ValueError)
_STATES = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DISK_SLEEP: "D"}

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Details:
    """What does not change about a process."""

    process: psutil.Process
    name: str | None
    user: str | None
    command: str | None
    own: bool
    kernel: bool
    uses_nvidia: bool


@dataclass(frozen=True)
class Family:
    """How to tell topsmon's own processes: this one, its screen, and the screen's probers."""

    pid: int
    parent: int | None = None

    def owns(self, process: psutil.Process) -> bool:
        """True for a member; another topsmon's processes are not ours."""
        current: psutil.Process | None = process
        for _ in range(_ANCESTORS):
            if current is None:
                return False
            if current.pid in {self.pid, self.parent}:
                return current is process or current.pid == self.pid
            command = attempt(current.cmdline) or []
            if (
                self.parent is not None
                and attempt(current.ppid) == self.parent
                and is_worker_command(command)
            ):
                return True
            current = attempt(current.parent)
        return False


def is_worker_command(command: Sequence[str]) -> bool:
    """True for the command lines of topsmon's children: `-m topsmon...` or .../topsmon/probes."""
    for position, word in enumerate(command[:6]):
        if word == "-m" and position + 1 < len(command):
            return command[position + 1].split(".")[0] == "topsmon"
        parts = word.rstrip("/").removesuffix("/__main__.py").split("/")
        if position > 0 and parts[-2:] == ["topsmon", "probes"]:
            return True
    return False


def attempt(read: Callable[[], _Value]) -> _Value | None:
    """Return what psutil tells, None where the process is gone or not ours to look at."""
    try:
        return read()
    except _GONE:
        return None


def describe(pid: int, family: Family) -> Details | None:
    """Look a process up, None if there is none that we may see."""
    process = attempt(lambda: psutil.Process(pid))
    if process is None:
        return None
    command = attempt(process.cmdline)
    return Details(
        process=process,
        name=valid_text(attempt(process.name), COMMAND_LIMIT),
        user=valid_text(attempt(process.username)) or _numeric_user(process),
        command=_command_line(command),
        own=family.owns(process),
        kernel=not command and attempt(process.ppid) in {0, _KTHREADD},
        uses_nvidia=_uses_nvidia(pid),
    )


def _command_line(arguments: Sequence[str] | None) -> str | None:
    if not arguments:
        return None
    text = valid_text(" ".join(arguments), COMMAND_LIMIT + 1)
    assert text is not None
    return text if len(text) <= COMMAND_LIMIT else f"{text[:COMMAND_LIMIT]}…"


def _numeric_user(process: psutil.Process) -> str | None:
    uids = attempt(process.uids)
    return None if uids is None else str(uids.real)


def _uses_nvidia(pid: int) -> bool:
    """True if a process has the NVIDIA driver mapped: proof that a PID from NVML is this one."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123 - binary lines of the kernel
        return any(b"/dev/nvidia" in line or b"libcuda" in line for line in file)
    return False


class Lookup:
    """Answers `describe` from a daemon thread, so that nobody waits for a process that hangs."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._known: dict[int, Details | None] = {}
        self._asked: set[int] = set()
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def details(self, pids: Iterable[int], patience: float) -> dict[int, Details | None]:
        """Return what is known of the processes, waiting `patience` seconds for the rest."""
        wanted = set(pids)
        deadline = time.monotonic() + patience
        with self._changed:
            self._forget_ended(wanted)
            for pid in wanted - self._known.keys() - self._asked:
                self._asked.add(pid)
                self._queue.put(pid)
            if self._thread is None and self._asked:
                self._thread = threading.Thread(target=self._run, name="processes", daemon=True)
                self._thread.start()
            while not wanted <= self._known.keys():
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    break
            return {pid: self._known.get(pid) for pid in wanted}

    def _forget_ended(self, pids: Iterable[int]) -> None:
        """A PID may have been given to another process; what was not found may be there now."""
        for pid in pids:
            details = self._known.get(pid)
            if details is None or not attempt(details.process.is_running):
                self._known.pop(pid, None)
        if len(self._known) > 4096:
            self._known.clear()

    def _run(self) -> None:
        while True:
            pid = self._queue.get()
            details = describe(pid, self._family)
            with self._changed:
                self._known[pid] = details
                self._asked.discard(pid)
                self._changed.notify_all()


class ProcessTable:
    """Processes by PID for all devices. Safe to use from several threads."""

    def __init__(
        self,
        family: Family,
        *,
        foreign_pids: bool = False,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`foreign_pids`: PIDs come from another namespace; only proof makes them local."""
        self._family = family
        self._lookup = Lookup(family)
        self._foreign = foreign_pids
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._usage: dict[psutil.Process, tuple[float, float, float | None]] = {}
        self._next_scan = 0.0
        self._scanned: dict[psutil.Process, tuple[float, float]] = {}

    def entries(self, memory: Mapping[int, int | None]) -> tuple[events.ProcessEntry, ...]:
        """Return one entry a PID, with the device memory in bytes that the driver tells."""
        details = self._lookup.details(memory, self._patience)
        return tuple(
            self._entry(pid, details[pid], bytes_used) for pid, bytes_used in memory.items()
        )

    def _entry(
        self, pid: int, details: Details | None, memory_bytes: int | None
    ) -> events.ProcessEntry:
        local = details is not None and (details.uses_nvidia or not self._foreign)
        if details is None or not local:
            return events.ProcessEntry(pid=pid, memory_bytes=memory_bytes, local=False)
        return events.ProcessEntry(
            pid=pid,
            name=details.name,
            user=details.user,
            memory_bytes=memory_bytes,
            cpu_cores=self._cpu_cores(details.process),
            command=details.command,
            own=details.own,
            state=_state(details.process),
        )

    def _cpu_cores(self, process: psutil.Process) -> float | None:
        """CPU time per wall time, measured once a refresh however many devices show the process."""
        now = self._clock()
        with self._lock:
            before = self._usage.get(process)
            if before is not None and now - before[0] < USAGE_SECONDS:
                return before[2]
            seconds = _cpu_seconds(process)
            if seconds is None:
                return None
            cores = None
            if before is not None:
                cores = max(seconds - before[1], 0.0) / (now - before[0])
            if len(self._usage) > 4096:
                self._usage.clear()
            self._usage[process] = now, seconds, cores
            return cores

    def busy_processes(self) -> tuple[events.ProcessEntry, ...] | None:
        """Return the processes that use more than `BUSY_CORES`, without topsmon's own.

        None while it is not time to look again, and after the first look.
        """
        started = self._clock()
        if started < self._next_scan:
            return None
        before, self._scanned = self._scanned, {}
        busy: dict[int, float] = {}
        for process in psutil.process_iter():
            seconds = _cpu_seconds(process)
            if seconds is None:
                continue
            self._scanned[process] = started, seconds
            earlier = before.get(process)
            if earlier is not None and started > earlier[0]:
                cores = (seconds - earlier[1]) / (started - earlier[0])
                if cores >= BUSY_CORES:
                    busy[process.pid] = cores
        cost = self._clock() - started
        if before:
            self._next_scan = started + max(SCAN_SECONDS, cost / SCAN_SHARE)
            return self._busy_entries(busy)
        self._next_scan = started + FIRST_SCAN_SECONDS
        return None

    def _busy_entries(self, busy: Mapping[int, float]) -> tuple[events.ProcessEntry, ...]:
        details = self._lookup.details(busy, self._patience)
        entries = []
        for pid, cores in sorted(busy.items(), key=lambda item: -item[1]):
            known = details[pid]
            if known is None:
                entries.append(events.ProcessEntry(pid=pid, cpu_cores=cores))
            elif not known.own and not known.kernel:
                entries.append(
                    events.ProcessEntry(
                        pid=pid,
                        name=known.name,
                        user=known.user,
                        cpu_cores=cores,
                        command=known.command,
                    )
                )
        return tuple(entries)


def _cpu_seconds(process: psutil.Process) -> float | None:
    times = attempt(process.cpu_times)
    return None if times is None else float(times.user + times.system)


def _state(process: psutil.Process) -> str | None:
    return _STATES.get(attempt(process.status) or "")


def own_family(*, child_of_screen: bool) -> Family:
    """Return the family of this process: with its parent where that is topsmon's screen."""
    return Family(os.getpid(), os.getppid() if child_of_screen else None)

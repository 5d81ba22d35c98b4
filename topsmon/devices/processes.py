"""Processes on a device as entries: who they are, what they take of the host, and since when.

Until a process has been looked up, and wherever rights are missing, its entry holds what is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import psutil

from topsmon import events
from topsmon.devices.process_lists import Held, Key
from topsmon.devices.process_lookup import Details, Family, Lookup, attempt
from topsmon.devices.process_shares import Share

PATIENCE_SECONDS = 0.05
BUSY_CORES = 0.2
"""Share of one core from which on a process counts as using the CPU."""
SCAN_SECONDS = 2.0
FIRST_SCAN_SECONDS = 0.05
"""The same between the first two looks, where nothing is known yet."""
SCAN_SHARE = 0.005
"""Share of a core that looking through all processes may cost."""
REFRESH_SECONDS = 1.8
"""A process is read once in this time, a little less than the pace of the lists: on however many
devices it is, it has one CPU use."""
_KEPT = 4096
_STATES = {
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "T",
}


class _Live(NamedTuple):
    """What changes about a process, at monotonic time `at`. CPU time in s, memory in bytes."""

    at: float
    cpu_seconds: float | None
    cpu_cores: float | None
    state: str | None
    parent_pid: int | None
    host_memory_bytes: int | None


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
        self._lookup = Lookup(family, foreign=foreign_pids)
        self._here = Lookup(family) if foreign_pids else self._lookup
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[psutil.Process, _Live] = {}
        self._next_scan = 0.0
        self._scanned: dict[psutil.Process, tuple[float, float]] = {}

    def entries(
        self, held: Mapping[Key, Held], shares: Mapping[int, Share] | None = None
    ) -> tuple[events.ProcessEntry, ...]:
        """Return one entry a process, with what the driver tells of it."""
        details = self._lookup.details({key.pid for key in held}, self._patience)
        users = self._users(details, self._lookup)
        found = []
        for key, one in held.items():
            share = (shares or {}).get(key.pid, Share())
            entry = self._entry(key.pid, details[key.pid], users, self._lookup)
            found.append(
                msgspec.structs.replace(
                    entry,
                    memory_bytes=one.memory_bytes,
                    kind=one.kind,
                    gpu_instance=key.gpu_instance,
                    sm_ratio=share.sm_ratio,
                    memory_busy_ratio=share.memory_busy_ratio,
                )
            )
        return tuple(found)

    def _users(self, details: Mapping[int, Details | None], lookup: Lookup) -> dict[int, str]:
        uids = {one.uid for one in details.values() if one is not None and one.uid is not None}
        return lookup.users(uids, self._patience)

    def _entry(
        self, pid: int, details: Details | None, users: Mapping[int, str], lookup: Lookup
    ) -> events.ProcessEntry:
        if details is None:
            return events.ProcessEntry(pid=pid, local=False)
        if details.process is None:
            return events.ProcessEntry(pid=pid)
        live = self._read(details.process)
        ancestors = details.ancestors
        if live.parent_pid is not None and ancestors and ancestors[0].pid != live.parent_pid:
            # Its parent has ended: another one has taken it over.
            lookup.forget(pid)
            ancestors = ()
        return events.ProcessEntry(
            pid=pid,
            name=details.name,
            user=None if details.uid is None else users[details.uid],
            cpu_cores=live.cpu_cores,
            command=details.command,
            own=details.own,
            state=live.state,
            parent_pid=live.parent_pid,
            host_memory_bytes=live.host_memory_bytes,
            started=details.started,
            start_ticks=details.start_ticks,
            ancestors=ancestors,
        )

    def _read(self, process: psutil.Process) -> _Live:
        """What the process does now, as it was read last if that was in this refresh."""
        now = self._clock()
        with self._lock:
            before = self._live.get(process)
            if before is not None and now - before.at < REFRESH_SECONDS:
                return before
            seconds = _cpu_seconds(process)
            state = _STATES.get(attempt(process.status) or "")
            parent = attempt(process.ppid)
            memory = attempt(process.memory_info)
            cores = None
            if before is not None and before.cpu_seconds is not None and seconds is not None:
                cores = max(seconds - before.cpu_seconds, 0.0) / (now - before.at)
            resident = None if memory is None else int(memory.rss)
            if len(self._live) >= _KEPT:
                self._live.clear()
            self._live[process] = _Live(now, seconds, cores, state, parent, resident)
            return self._live[process]

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
        """Entries of our own namespace's processes: their PIDs are never foreign."""
        details = self._here.details(busy, self._patience)
        users = self._users(details, self._here)
        entries = []
        for pid, cores in sorted(busy.items(), key=lambda item: -item[1]):
            known = details[pid]
            if known is None:
                entries.append(events.ProcessEntry(pid=pid, cpu_cores=cores))
            elif not known.own and not known.kernel:
                entry = self._entry(pid, known, users, self._here)
                entries.append(msgspec.structs.replace(entry, cpu_cores=cores))
        return tuple(entries)


def _cpu_seconds(process: psutil.Process) -> float | None:
    times = attempt(process.cpu_times)
    return None if times is None else float(times.user + times.system)

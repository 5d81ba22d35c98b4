"""The poller: everything that is read from this machine, written as events.

`run` is what `topsmon stream` does, as a child of the screen or by hand; `snapshot` reads
everything once. The main thread never calls the driver: a library that hangs while it starts, or
one GPU that hangs later, costs a daemon thread and is reported. A library that crashes costs the
process of `run`, but not that of `snapshot`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from topsmon import __version__, ceilings, events
from topsmon.devices import gpu_snapshot, host, pipes
from topsmon.devices.cpu import KEY as CPU
from topsmon.devices.cpu import CpuMonitor
from topsmon.devices.gpu_worker import Setting
from topsmon.devices.gpus import Gpus
from topsmon.devices.pace import Pace
from topsmon.devices.process_lookup import are_pids_foreign, own_family
from topsmon.devices.processes import ProcessTable
from topsmon.devices.selection import select
from topsmon.devices.stamp import stamp
from topsmon.training.following import Following

FIRST_WINDOW_SECONDS = 0.25
"""Time over which the first CPU load is measured, so that it need not wait a whole interval."""
SNAPSHOT_WINDOW_SECONDS = 0.06
"""The same for a snapshot: a few of the 10 ms ticks in which the kernel counts."""
WATCHDOG_SECONDS = 0.5
END_SECONDS = 0.05
"""Grace for threads at the end; one that is stuck in the driver is not waited for."""
INTERRUPTED = 130


class Poller:
    """All sources of one machine, as one stream of events."""

    def __init__(self, setting: Setting, *, gpu: bool = True) -> None:
        self._setting = setting
        self._wants_cpu = setting.selection.wants_cpu()
        facts = setting.facts
        self.host = events.Host(
            **stamp(facts.hostname),
            hostname=facts.hostname,
            system=facts.system,
            cpu_name=host.cpu_name(setting.root),
            memory_total_bytes=facts.memory_total_bytes,
            container=facts.container,
            wsl=facts.wsl,
            jetson=facts.jetson,
        )
        self._cpu = CpuMonitor(facts, setting.table, setting.root)
        wants_gpus = gpu and setting.selection.wants_gpus()
        self._gpus = Gpus(setting, self.host) if wants_gpus else None
        self._runs = Following(facts.hostname)

    def begin(self) -> None:
        """Say hello, start to look for GPUs, tell the CPU's identity."""
        emit, facts = self._setting.emit, self._setting.facts
        emit(
            events.Hello(
                **stamp(facts.hostname),
                version=__version__,
                schema=events.SCHEMA_VERSION,
                role="poller",
                pid=os.getpid(),
                simulated=os.environ.get("TOPSMON_SIMULATED"),
            )
        )
        emit(self.host)
        if self._gpus is not None:
            self._gpus.thread.start()
        if self._wants_cpu:
            identity = self._cpu.identity()
            emit(identity)
            emit(ceilings.for_cpu(identity))
            now = time.monotonic()
            status = stamp(identity.source)
            emit(events.DeviceStatus(**status, device=CPU, condition="ok", since=now))
            self._setting.table.busy_processes()
        # Only now, so that our own start does not count as load.
        self._cpu.prime()

    def tick(self) -> None:
        """Emit the CPU's and the host's readings, and what is new of training runs."""
        sample, machine = self._cpu.sample()
        self._setting.emit(machine)
        if self._wants_cpu:
            self._setting.emit(sample)
            processes = self._cpu.processes()
            if processes is not None:
                self._setting.emit(processes)
        for event in self._runs.poll():
            self._setting.emit(event)

    def serve(self) -> int:
        """Emit until the poller must end; return the exit code.

        ValueError where `only` names a device that is not here.
        """
        pace = self._setting.pace
        patience = min(WATCHDOG_SECONDS, self._setting.stall_seconds / 4)
        self.begin()
        if pace.sleep(FIRST_WINDOW_SECONDS) and not pace.paused:
            self.tick()
        last = time.monotonic()
        while not pace.ending:
            due = pace.next_tick(last, patience)
            if due is not None:
                last = due
                self.tick()
            if self._gpus is not None:
                self._gpus.check(self._setting.stall_seconds)
                self._gpus.check_selection()
        return pace.code or 0

    def read_once(self) -> None:
        """Emit the host's and the CPU's readings once."""
        self.begin()
        time.sleep(SNAPSHOT_WINDOW_SECONDS)
        self.tick()

    def end(self) -> bool:
        """Tell the threads to end; True if all have within a moment."""
        self._setting.pace.leave(0)
        if self._gpus is None:
            return True
        self._gpus.join(time.monotonic() + END_SECONDS)
        return not self._gpus.threads


def run(
    interval: float,
    only: tuple[str, ...] = (),
    only_visible: bool = False,
    until_stdin_closes: bool = False,
    write: Callable[[bytes], None] | None = None,
    *,
    gpu: bool = True,
) -> int:
    """Write the event stream until interrupted, or told to end; return the exit code.

    `until_stdin_closes`: we are a child of the screen, take commands and end with our input; GPM
    counters are read while it says so. By hand they are read at once.
    Where a thread is stuck in the driver the process ends here and now. ValueError where `only`
    names a device that is not here.
    """
    if until_stdin_closes:
        pipes.become_child()
    pace = Pace(interval, counters=not until_stdin_closes)
    writer = pipes.Writer(pace, write)
    setting = _setting(writer.emit, pace, only, only_visible=only_visible, child=until_stdin_closes)
    if until_stdin_closes:
        threading.Thread(target=pipes.obey, args=(pace,), name="commands", daemon=True).start()
    poller = Poller(setting, gpu=gpu)
    try:
        code = poller.serve()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if not poller.end() or until_stdin_closes:
        os._exit(code)
    return code


def snapshot(
    deadline_seconds: float,
    only: tuple[str, ...] = (),
    only_visible: bool = False,
    *,
    patience_seconds: float = 0.0,
) -> list[events.AnyEvent]:
    """Read everything once within `deadline_seconds`; return it as events, identities first.

    A driver that is slow, but answers, is given `patience_seconds` more. What does not answer in
    time is reported as stalled. The GPUs are read in a forked child: a driver library that crashes
    costs no more than what it had not told by then.
    ValueError where `only` names a device that is not here.
    """
    collected: list[events.AnyEvent] = []
    setting = _setting(
        collected.append, Pace(1.0), only, only_visible=only_visible, child=False, once=True
    )
    poller = Poller(setting, gpu=False)
    deadline = time.monotonic() + deadline_seconds
    if setting.selection.wants_gpus():
        # Before anything else, so that no thread of ours runs yet.
        with gpu_snapshot.reading(
            setting, poller.host, deadline, deadline + patience_seconds
        ) as gpus:
            poller.read_once()
            collected += gpus.collected()
    else:
        poller.read_once()
    return sorted(collected, key=_rank)


_FIRST: tuple[type[events.AnyEvent], ...] = (
    events.Hello,
    events.Host,
    events.Problem,
    events.HostSample,
    events.Device,
)


def _rank(event: events.AnyEvent) -> tuple[int, int]:
    index = event.index if isinstance(event, events.Device) and event.kind == "gpu" else -1
    return (_FIRST.index(type(event)) if type(event) in _FIRST else len(_FIRST)), index


def _setting(
    emit: Callable[[events.AnyEvent], None],
    pace: Pace,
    only: tuple[str, ...],
    *,
    only_visible: bool,
    child: bool,
    once: bool = False,
) -> Setting:
    facts = host.read_facts(host.shown_root())
    simulated = "TOPSMON_SIMULATED" in os.environ
    return Setting(
        emit=emit,
        pace=pace,
        selection=select(only, only_visible, os.environ),
        facts=facts,
        table=ProcessTable(
            own_family(child_of_screen=child),
            foreign_pids=are_pids_foreign(container=facts.container) and not simulated,
        ),
        once=once,
    )

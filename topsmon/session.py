"""A running session: the poller, the probers, and the state that their events are folded into.

Owned by the screen's event loop; every method returns at once. The session alone decides which
device may be measured: never unasked where others compute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from topsmon import events, interpreter, results
from topsmon.device_probers import ProberOptions, Probers
from topsmon.diagnosis import diagnose
from topsmon.diagnosis.observe import POLLER
from topsmon.foreign_use import mark_burst, mark_shared
from topsmon.state import State
from topsmon.units import PRECISIONS
from topsmon.workers import EXIT_USAGE, Worker

SAVE_SECONDS = 30.0
NO_BENCHMARKS = "benchmarks are switched off (--no-bench)"


@dataclass(frozen=True)
class SessionOptions:
    """What the command line asks of a session. `environment` is added to every child's."""

    interval: float = 1.0
    only: tuple[str, ...] = ()
    only_visible: bool = False
    simulated: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    benchmarks: bool = True
    precisions: tuple[str, ...] = tuple(PRECISIONS)
    remember: Path | None = None


class Session:
    """Start it, read `state` and `findings()`, stop it. It can be started again after a stop."""

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        self.state = State()
        self.interval = options.interval
        self.precisions = options.precisions
        self.paused = False
        self.counters = True
        self.listeners: list[Callable[[events.AnyEvent], None]] = []
        self.torch_problem: str | None = None if options.benchmarks else NO_BENCHMARKS
        self._poller: Worker | None = None
        self.probers = Probers(
            ProberOptions(
                benchmarks=options.benchmarks,
                only=options.only,
                simulated=options.simulated,
                environment=options.environment,
            ),
            self.state,
            options.precisions,
            self.receive,
            self._fold,
        )
        self._finding: asyncio.Task[None] | None = None
        self._remembered: dict[str, list[events.RateMeasured]] = {}
        self._save_due = False
        self._saved = 0.0
        self._findings: tuple[events.Finding, ...] = ()
        self._findings_key: tuple[int, int] = (-1, -1)

    # Life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the poller, and look for a Python with torch; probers follow by themselves."""
        self._load_remembered()
        self._expect_samples()
        self._start_poller()
        if self.options.benchmarks and self.options.simulated is None:
            self._finding = asyncio.create_task(self._find_interpreter())

    async def stop(self) -> None:
        """End all children within about 100 ms and keep the measured rates."""
        if self._finding is not None:
            self._finding.cancel()
            self._finding = None
        workers = [*self.probers.release(), *([self._poller] if self._poller else [])]
        self._poller = None
        await asyncio.gather(*(worker.stop() for worker in workers))
        self._save()

    def _expect_samples(self) -> None:
        """Tell the rules from when on, and how often, samples are due."""
        self.state.interval = self.interval
        self.state.sampling_since = None if self.paused else time.monotonic()

    def child_pids(self) -> list[int]:
        """PIDs of the running children."""
        workers = [*self.probers.running.values(), *([self._poller] if self._poller else [])]
        return [worker.pid for worker in workers if worker.pid is not None]

    # What the user does ---------------------------------------------------------------------------

    def set_interval(self, seconds: float) -> None:
        """Change the sampling interval of the poller."""
        self.interval = seconds
        self._expect_samples()
        if self._poller is not None:
            self._poller.send(command="interval", seconds=seconds)

    def pause(self, paused: bool) -> None:
        """Stop or resume sampling and measuring."""
        self.paused = paused
        self._expect_samples()
        if self._poller is not None:
            self._poller.send(command="pause" if paused else "resume")
        self.probers.pause(paused)

    def set_counters(self, on: bool) -> None:
        """Have the poller read the GPM counters while somebody looks at them."""
        self.counters = on
        if self._poller is not None:
            self._poller.send(command="counters", on=on)

    def benchmark(self, device_key: str | None, on: bool) -> None:
        """Measure more on a device (None: on all), also where others compute; or stop that."""
        self.probers.ask(device_key, on)

    def benchmarking(self, device_key: str) -> bool:
        """True while the user has asked for measurements on this device."""
        return self.probers.asked(device_key)

    def choose_precisions(self, keys: tuple[str, ...]) -> None:
        """Measure only these precisions from now on."""
        self.precisions = keys
        self.probers.choose_precisions(keys)

    def findings(self) -> tuple[events.Finding, ...]:
        """The diagnosis, worst first; computed at most twice a second and once per state."""
        now = time.monotonic()
        key = (self.state.version, int(now * 2))
        if key != self._findings_key and (key[1] != self._findings_key[1]):
            self._findings = diagnose(self.state, now)
            self._findings_key = key
        return self._findings

    # Events ---------------------------------------------------------------------------------------

    def receive(self, event: events.AnyEvent) -> None:
        """Fold an event of any child into the state and act on it."""
        now = time.monotonic()
        if isinstance(event, (events.RateMeasured, events.ProbeResult)):
            event = mark_shared(event, self.state.devices.get(event.device))
            self._save_due = True
        elif isinstance(event, events.Worker):
            self.probers.count_crash(event)
        elif isinstance(event, events.DeviceSample):
            ended = self.probers.burst_ends.get(event.device)
            event = mark_burst(event, self.state.devices.get(event.device), ended)
        self.probers.note_burst(event)
        self._fold(event)
        match event:
            case events.Device():
                self._recall(event.device)
                self.probers.review(event.device)
            case events.DeviceSample() | events.Processes() | events.DeviceStatus():
                self.probers.review(event.device)
            case events.Worker(worker=name, condition="failed"):
                self._worker_failed(name, event)
            case _:
                pass
        if self._save_due and now - self._saved > SAVE_SECONDS:
            self._save()

    def _fold(self, event: events.AnyEvent) -> None:
        """Fold an event into the state and hand it on as it was folded."""
        self.state.apply(event, time.monotonic())
        self._tell(event)

    def _tell(self, event: events.AnyEvent) -> None:
        for listener in self.listeners:
            listener(event)

    # The poller -----------------------------------------------------------------------------------

    def _start_poller(self) -> None:
        command = [sys.executable, "-m", "topsmon", "stream", "--until-stdin-closes"]
        command += ["--interval", str(self.interval)]
        for selection in self.options.only:
            command += ["--only", selection]
        if self.options.only_visible:
            command.append("--only-visible")
        if self.probers.without_driver:
            command.append("--no-gpu")
        self._poller = Worker(
            POLLER,
            command,
            self.receive,
            environment=self.options.environment,
            on_start=self._poller_started,
        )
        self._poller.start()

    def _poller_started(self) -> None:
        if self._poller is None:
            return
        self._poller.send(command="counters", on=self.counters)
        if self.paused:
            self._poller.send(command="pause")

    def _worker_failed(self, name: str, event: events.Worker) -> None:
        """A driver library that crashes the poller again and again must not cost the CPU's view."""
        refused = self._poller is not None and self._poller.exit_code == EXIT_USAGE
        if name != POLLER or self.probers.without_driver or refused:
            return
        self.probers.without_driver = True
        crashed = events.Problem(
            time=event.time,
            monotonic=event.monotonic,
            source=event.source,
            subject=POLLER,
            code="crashed",
            message=f"driver library crashed: {event.detail}",
            remedy="Update or reinstall the NVIDIA driver; the GPUs are not read any more.",
        )
        self._fold(crashed)
        self._start_poller()

    async def _find_interpreter(self) -> None:
        found = await interpreter.find(self.options.python, os.environ)
        self.probers.interpreter = found
        self.torch_problem = None if found.path is not None else found.problem
        self.probers.review_all()

    # Remembered rates -----------------------------------------------------------------------------

    def _load_remembered(self) -> None:
        if self.options.remember is None or self.options.simulated is not None:
            return
        for result in results.load(self.options.remember):
            self._remembered.setdefault(result.device, []).append(result)

    def _recall(self, key: str) -> None:
        for result in self._remembered.pop(key, []):
            self.state.remember(result)
            self._tell(msgspec.structs.replace(result, earlier_session=True))

    def _save(self) -> None:
        self._saved, self._save_due = time.monotonic(), False
        if self.options.remember is None:
            return
        with contextlib.suppress(OSError):  # a full or read-only disk must not end the screen
            results.save(self.options.remember, results.worth_keeping(self.state))

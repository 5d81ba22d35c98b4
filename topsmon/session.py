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
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from topsmon import events, interpreter, results
from topsmon.device_state import DeviceState
from topsmon.diagnosis import diagnose, sharing, xid
from topsmon.diagnosis.observe import other_processes
from topsmon.state import State
from topsmon.units import PRECISIONS, command_words, plain
from topsmon.workers import EXIT_USAGE, RestartPolicy, Worker

BACKGROUND_DUTY = 0.03
"""Share of time measured while nobody asked for more."""
ASKED_DUTY = 0.5
"""Share of time measured after `b`."""
BUSY_GPU_RATIO = 0.10
"""A GPU busier than this before we start is in use, even if no process can be seen."""
BUSY_CPU_SHARE = sharing.CPU_SHARE
"""The CPU counts as in use when others take more than this share of the usable cores."""
FREE_CPU_SHARE = 0.125
"""Once it counted as in use, it is free again below this share: no coming and going."""
CRASHES_TO_LEAVE_OUT = 2
SAVE_SECONDS = 30.0
NO_BENCHMARKS = "benchmarks are switched off (--no-bench)"
POLLER = "poller"
PROBES = Path(__file__).parent / "probes"
BURST_EVENTS = (
    events.ProbeStarted,
    events.RateMeasured,
    events.ProbeResult,
    events.ProbeUnsupported,
)
"""A prober computes from the first of these to one of the others, or to its own end."""


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
        self._burst_ends: dict[str, float] = {}
        self.torch_problem: str | None = None if options.benchmarks else NO_BENCHMARKS
        self._poller: Worker | None = None
        self._without_driver = False
        self._probers: dict[str, Worker] = {}
        self._asked: set[str] = set()
        self._held_back: dict[str, str] = {}
        self._crashes: Counter[tuple[str, str]] = Counter()
        self._told: dict[str, tuple[int | None, float]] = {}
        self._interpreter: interpreter.Interpreter | None = None
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
        workers = [*self._probers.values(), *([self._poller] if self._poller else [])]
        self._probers.clear()
        self._poller = None
        self._held_back.clear()
        await asyncio.gather(*(worker.stop() for worker in workers))
        self._save()

    def _expect_samples(self) -> None:
        """Tell the rules from when on, and how often, samples are due."""
        self.state.interval = self.interval
        self.state.sampling_since = None if self.paused else time.monotonic()

    def child_pids(self) -> list[int]:
        """PIDs of the running children."""
        workers = [*self._probers.values(), *([self._poller] if self._poller else [])]
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
        self._review_all()

    def set_counters(self, on: bool) -> None:
        """Have the poller read the GPM counters while somebody looks at them."""
        self.counters = on
        if self._poller is not None:
            self._poller.send(command="counters", on=on)

    def benchmark(self, device_key: str | None, on: bool) -> None:
        """Measure more on a device (None: on all), also where others compute; or stop that."""
        keys = [device_key] if device_key is not None else list(self.state.devices)
        if on:
            self._asked.update(keys)
        else:
            self._asked.difference_update(keys)
        self._review_all()

    def benchmarking(self, device_key: str) -> bool:
        """True while the user has asked for measurements on this device."""
        return device_key in self._asked

    def choose_precisions(self, keys: tuple[str, ...]) -> None:
        """Measure only these precisions from now on."""
        self.precisions = keys
        for key, worker in self._probers.items():
            worker.send(command="precisions", keys=self._wanted(key))

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
            self._count_crash(event)
        elif isinstance(event, events.DeviceSample):
            ended = self._burst_ends.get(event.device)
            event = mark_burst(event, self.state.devices.get(event.device), ended)
        if isinstance(event, BURST_EVENTS):
            self._burst_ends[event.device] = event.monotonic
        self._fold(event)
        match event:
            case events.Device():
                self._recall(event.device)
                self._review(event.device)
            case events.DeviceSample() | events.Processes() | events.DeviceStatus():
                self._review(event.device)
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

    def _count_crash(self, event: events.Worker) -> None:
        """Leave out a precision that ended its prober twice: it would do so for ever."""
        key = event.worker.removeprefix("prober ")
        device = self.state.devices.get(key)
        if event.condition not in {"restarted", "failed"} or device is None:
            return
        precision = device.prober.measuring
        if precision is None:
            return
        self._burst_ends[key] = event.monotonic
        self._crashes[key, precision] += 1
        if self._crashes[key, precision] >= CRASHES_TO_LEAVE_OUT:
            reason = f"left out: it ended the worker {CRASHES_TO_LEAVE_OUT} times ({event.detail})"
            refusal = events.ProbeUnsupported(
                time=event.time,
                monotonic=event.monotonic,
                source=event.source,
                device=key,
                precision=precision,
                reason=plain(reason, 200),
            )
            self._fold(refusal)

    def _wanted(self, key: str) -> list[str]:
        """The precisions to measure on a device: those chosen, less those that crash it."""
        return [
            precision
            for precision in self.precisions
            if self._crashes[key, precision] < CRASHES_TO_LEAVE_OUT
        ]

    # The poller -----------------------------------------------------------------------------------

    def _start_poller(self) -> None:
        command = [sys.executable, "-m", "topsmon", "stream", "--until-stdin-closes"]
        command += ["--interval", str(self.interval)]
        for selection in self.options.only:
            command += ["--only", selection]
        if self.options.only_visible:
            command.append("--only-visible")
        if self._without_driver:
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
        if name != POLLER or self._without_driver or refused:
            return
        self._without_driver = True
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

    # The probers ----------------------------------------------------------------------------------

    async def _find_interpreter(self) -> None:
        found = await interpreter.find(self.options.python, os.environ)
        self._interpreter = found
        self.torch_problem = None if found.path is not None else found.problem
        self._review_all()

    def _review_all(self) -> None:
        for key in list(self.state.devices):
            self._review(key)

    def _review(self, key: str) -> None:
        """Start, hold back or resume the prober of a device after anything about it changed."""
        device = self.state.devices.get(key)
        if device is None or not self._may_have_prober(device):
            return  # what is told of a device may come before the device itself
        reason = self._hold_back_reason(device)
        worker = self._probers.get(key)
        if worker is None:
            if reason is None:
                self._start_prober(device)
            else:
                self._note_idle(device, reason)
            return
        if reason != self._held_back.get(key):
            if reason is None:
                self._held_back.pop(key, None)
                worker.send(command="resume")
            else:
                self._held_back[key] = reason
                worker.send(command="pause", reason=reason)
        self._tell_duty(key, worker)

    def _may_have_prober(self, device: DeviceState) -> bool:
        """GPUs are measured; the CPU is where there is no GPU, or where it was asked for."""
        if not self.options.benchmarks or device.sample is None or device.processes is None:
            return False
        if device.identity.kind == "gpu":
            return True
        if self.options.simulated is not None:
            return False
        return not any(self.state.gpus()) or "cpu" in self.options.only or device.key in self._asked

    def _hold_back_reason(self, device: DeviceState) -> str | None:
        """Why this device must not be measured now, None where it may."""
        unfit = self._unfit(device)
        if unfit is not None or device.key in self._asked:
            return unfit
        if unseen := _users_unknown(device):
            return unseen
        busy = device.sample.busy_ratio if device.sample is not None else None
        idle_before = device.key in self._probers or busy is None or busy <= BUSY_GPU_RATIO
        real_gpu = device.identity.kind == "gpu" and self.options.simulated is None
        if real_gpu and not idle_before:
            return (
                foreign_use(device) or f"{device.label} is {busy:.0%} busy with work not seen here"
            )
        return foreign_use(device, held_back=device.prober.idle_reason is not None)

    def _unfit(self, device: DeviceState) -> str | None:
        """Why a device must not be measured even where the user asks for it, None where it may."""
        if self.paused:
            return "paused"
        if device.condition != "ok":
            return f"device is {device.condition}"
        if device.identity.kind == "gpu" and self._without_driver:
            return "the driver library crashed: the GPUs are not read any more"
        return xid.unusable(device)

    def _note_idle(self, device: DeviceState, reason: str) -> None:
        if device.prober.idle_reason != reason:
            self._fold(
                events.ProberIdle(
                    time=time.time(),
                    monotonic=time.monotonic(),
                    source=device.identity.source,
                    device=device.key,
                    reason=reason,
                )
            )

    def _duty(self, key: str) -> float:
        return ASKED_DUTY if key in self._asked else BACKGROUND_DUTY

    def _tell_duty(self, key: str, worker: Worker) -> None:
        """Send the duty cycle unless this very child has it already."""
        told = (worker.pid, self._duty(key))
        if told[0] is not None and self._told.get(key) != told:
            self._told[key] = told
            worker.send(command="duty", value=told[1])

    def _start_prober(self, device: DeviceState) -> None:
        command = self._prober_command(device)
        if command is None:
            return
        worker = Worker(
            f"prober {device.key}",
            command,
            lambda event: self._receive_from_prober(device.key, event),
            environment=self.options.environment,
            policy=RestartPolicy(limit=5, window_seconds=600.0),
            on_start=lambda: self._prober_started(device.key),
        )
        self._probers[device.key] = worker
        worker.start()

    def _prober_command(self, device: DeviceState) -> list[str] | None:
        identity = device.identity.uuid or device.key
        options = ["--device", identity, "--duty", str(self._duty(device.key))]
        if self.options.simulated is not None:
            return [sys.executable, "-m", "topsmon.simulated.prober", *options]
        if self._interpreter is None:
            return None
        if self._interpreter.path is None:
            self._note_idle(device, self._interpreter.problem)
            return None
        return [self._interpreter.path, str(PROBES), *options]

    def _receive_from_prober(self, key: str, event: events.AnyEvent) -> None:
        """Take a prober's event; a GPU that was asleep or lost at the start has another key."""
        if getattr(event, "device", key) != key:
            event = msgspec.structs.replace(event, device=key)
        self.receive(event)

    def _prober_started(self, key: str) -> None:
        """Tell a fresh child what its predecessor knew."""
        worker = self._probers.get(key)
        if worker is None:
            return
        self._tell_duty(key, worker)
        wanted = self._wanted(key)
        if len(wanted) < len(PRECISIONS):
            worker.send(command="precisions", keys=wanted)
        if key in self._held_back:
            worker.send(command="pause", reason=self._held_back[key])

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


def _users_unknown(device: DeviceState) -> str | None:
    """Say so where neither the processes of a GPU nor its load can be read."""
    processes, sample = device.processes, device.sample
    if device.identity.kind == "cpu" or processes is None or processes.entries is not None:
        return None
    if sample is None or sample.busy_ratio is not None:
        return None
    return f"cannot see who uses {device.label} ({processes.reason or 'processes not read'})"


def foreign_use(device: DeviceState, *, held_back: bool = False) -> str | None:
    """Who else computes on a device, in words; None where it is free.

    On the CPU others count only from `BUSY_CPU_SHARE` of the usable cores on, while `held_back`
    from `FREE_CPU_SHARE` on.
    """
    others = other_processes(device)
    if device.identity.kind == "cpu":
        taken = sum(entry.cpu_cores or 0.0 for entry in others)
        if taken < (FREE_CPU_SHARE if held_back else BUSY_CPU_SHARE) * usable_cpus():
            return None
    if not others:
        return None
    first = max(others, key=lambda entry: (entry.cpu_cores or 0.0, entry.memory_bytes or 0))
    name = command_words(first.command or first.name or "a process", 60)
    more = f" and {len(others) - 1} more use" if len(others) > 1 else " uses"
    return f"{name} (PID {first.pid}){more} {device.label}"


def mark_shared(
    event: events.RateMeasured | events.ProbeResult, device: DeviceState | None
) -> events.RateMeasured | events.ProbeResult:
    """What was measured while others use the device is kept, but not trusted."""
    users = foreign_use(device) if device is not None and event.valid else None
    if users is None:
        return event
    return msgspec.structs.replace(event, valid=False, invalid_reason=f"shared: {users}")


def mark_burst(
    sample: events.DeviceSample, device: DeviceState | None, ended: float | None
) -> events.DeviceSample:
    """Mark the counters of a time in which topsmon computed on the device itself.

    `ended`: when its last burst ended, by the monotonic clock that stamps the events.
    """
    counters = sample.counters
    if counters is None or device is None:
        return sample
    begun = sample.monotonic - counters.seconds
    if device.prober.measuring is None and (ended is None or ended < begun):
        return sample
    counters = msgspec.structs.replace(counters, during_burst=True)
    return msgspec.structs.replace(sample, counters=counters)


def usable_cpus() -> int:
    """Logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

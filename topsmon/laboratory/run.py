"""The run: one poller for readings under load, one prober per device that measures a plan.

Devices are measured at the same time, each by a child of its own. Whatever ends the run (all done,
the deadline, an interrupt), what is known by then is what is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from topsmon import events, interpreter
from topsmon.device_probers import PROBES
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import POLLER
from topsmon.foreign_use import BUSY_GPU_RATIO, foreign_use, mark_shared
from topsmon.laboratory import hasten
from topsmon.laboratory.observed import Observed
from topsmon.laboratory.progress import Pace, Progress
from topsmon.state import State
from topsmon.workers import EXIT_NO_TORCH, EXIT_USAGE, RestartPolicy, Worker

INTERVAL_SECONDS = 0.25
START_SECONDS = 8.0
"""Of the time limit, what starting the children and importing torch may take."""
LOOK_SAMPLES = 4
"""Samples in a row in which a GPU is busy before we start, so that its driver's own start is over;
also what a device is looked at for where nothing is measured."""
SETTLE_SECONDS = 1.0
"""No new device for this long: the driver has told them all."""
TICK_SECONDS = 0.25
NO_GPU_HERE = frozenset({"no-library", "no-device", "no-gpu"})
"""Problems of the driver after which the CPU is what there is to check."""


class UnknownDeviceError(ValueError):
    """A device was asked for that this machine does not have."""


@dataclass(frozen=True)
class RunOptions:
    """What to measure, where, and for how long at the most.

    `plan` gives for a kind of device what to measure there, in order: key and seconds. `sizes`
    replaces the GEMM shapes by squares.
    """

    plan: Callable[[events.Kind], dict[str, float]]
    sizes: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    only_visible: bool = False
    python: str | None = None
    force: bool = False
    limit_seconds: float = 30.0
    simulated: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a run has found: the state to judge, and what it saw of each device."""

    state: State
    seen: dict[str, Observed]
    devices: tuple[str, ...]
    interrupted: bool


@dataclass
class _Device:
    """One device of the run: its prober, its plan, what was seen of it.

    The reading of its newest sample began after the monotonic time `asked_after`.
    """

    plan: dict[str, float]
    prober: Worker | None = None
    finished: bool = False
    finished_at: float | None = None
    asked_after: float = float("-inf")
    refused: str = ""
    missing: str = ""
    samples: list[events.DeviceSample] = field(default_factory=list)
    loaded: list[events.DeviceSample] = field(default_factory=list)


class Run:
    """One run; `progress` is called after every change that a person may want to see."""

    def __init__(
        self, options: RunOptions, progress: Callable[[Progress], None] | None = None
    ) -> None:
        self.options = options
        self.state = State()
        self._tell = progress or (lambda _: None)
        self._pace = Pace()
        self._devices: dict[str, _Device] = {}
        self._over = asyncio.Event()
        self._interrupted = False
        self._refusal: str | None = None
        self._interpreter: interpreter.Interpreter | None = None
        self._newest = self._started = time.monotonic()
        self._environment, self._strike = options.environment, self._started
        if options.simulated is not None:
            self._environment, self._strike = hasten.environment(
                options.simulated, options.environment, self._started
            )
        self._poller = Worker(
            POLLER,
            self._poller_command(),
            self.receive,
            environment=self._environment,
            policy=RestartPolicy(never=(EXIT_USAGE,)),
        )

    async def run(self) -> Outcome:
        """Measure until all is done, time is out or SIGINT or SIGTERM comes.

        Raises UnknownDeviceError.
        """
        with self._interruptible():
            self._poller.start()
            ticker = asyncio.create_task(self._tick())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), self.options.limit_seconds)
            ticker.cancel()
            self._tell(self._progress())
            await self._stop()
        if self._refusal is not None:
            raise UnknownDeviceError(self._refusal)
        return self._outcome()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.interrupt)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def interrupt(self) -> None:
        """End the run now; what is known is kept."""
        self._interrupted = True
        self._over.set()

    async def _stop(self) -> None:
        probers = [one.prober for one in self._devices.values() if one.prober is not None]
        await asyncio.gather(*(worker.stop() for worker in (self._poller, *probers)))

    def _outcome(self) -> Outcome:
        limit = self.options.limit_seconds
        why = "interrupted" if self._interrupted else f"time ran out after {limit:.0f} s"
        seen = {
            key: Observed(
                samples=tuple(one.samples),
                loaded=tuple(one.loaded),
                refused=one.refused,
                missing=one.missing or ("" if one.finished else why),
                unanswered="" if self._answers(key, one) else f"no answer since then; {why}",
            )
            for key, one in self._devices.items()
        }
        keys = tuple(device.key for device in self.state.ordered() if device.key in seen)
        return Outcome(self.state, seen, keys, self._interrupted)

    # Events ---------------------------------------------------------------------------------------

    def receive(self, event: events.AnyEvent) -> None:
        """Fold an event in and do what it calls for."""
        now = time.monotonic()
        if isinstance(event, (events.RateMeasured, events.ProbeResult)):
            device = self.state.devices.get(event.device)
            # A CPU is always shared; its own share of the time tells whether that mattered.
            if device is not None and device.identity.kind == "gpu":
                event = mark_shared(event, device)
        self.state.apply(event, now)
        match event:
            case events.Device():
                self._newest = now
            case events.DeviceSample():
                self._keep(event)
            case events.Problem(subject="selection", code=str()):
                self._refusal = event.message
                self._over.set()
            case events.Worker(condition="failed"):
                self._worker_ended(event)
            case events.ProbeStarted() | events.ProbeResult() | events.RateMeasured():
                self._tell(self._progress())
            case _:
                pass
        self._review()

    def _keep(self, sample: events.DeviceSample) -> None:
        one, device = self._devices.get(sample.device), self.state.devices.get(sample.device)
        if one is None or device is None:
            return
        if one.samples:
            one.asked_after = one.samples[-1].monotonic
        one.samples.append(sample)
        if device.prober.measuring is not None:
            one.loaded.append(sample)

    def _worker_ended(self, event: events.Worker) -> None:
        """A prober that has done its plan ends with 0; any other end leaves something undone."""
        for one in self._devices.values():
            if one.prober is not None and one.prober.name == event.worker and not one.finished:
                process = one.prober.process
                done = process is not None and process.returncode == 0
                one.missing = "" if done else f"the benchmark ended early: {event.detail}"
                one.finished = True
        if event.worker == POLLER:
            self._over.set()

    # What to do next ------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Look for what only time changes: the interpreter, devices that settle, time left."""
        if self.options.simulated is None:
            self._interpreter = await interpreter.find(self.options.python, os.environ)
        while True:
            self._review()
            self._tell(self._progress())
            await asyncio.sleep(TICK_SECONDS)

    def _review(self) -> None:
        for device in self.state.ordered():
            if device.key not in self._devices and self._is_wanted(device):
                self._devices[device.key] = _Device(self.options.plan(device.identity.kind))
            one = self._devices.get(device.key)
            if one is not None and not one.finished:
                self._advance(device, one)
            if one is not None and one.finished and one.finished_at is None:
                one.finished_at = time.monotonic()
        if self._complete():
            self._over.set()

    def _is_wanted(self, device: DeviceState) -> bool:
        """GPUs are checked; the CPU where it was asked for or where there is no GPU."""
        if device.identity.kind == "gpu" or "cpu" in (
            word.lower() for word in self.options.devices
        ):
            return True
        return self._only_cpu() and not any(self.state.gpus())

    def _only_cpu(self) -> bool:
        """True where the driver says that there is no GPU; no CPU is simulated."""
        problem = self.state.problems.get("nvml")
        no_gpu = problem is not None and problem.code in NO_GPU_HERE
        return no_gpu and self.options.simulated is None

    def _advance(self, device: DeviceState, one: _Device) -> None:
        """Start a device's prober when it may be started, or see that it never will."""
        if device.condition != "ok":
            one.finished = True
            one.missing = f"the device is {device.condition}"
            self._end_prober(one)
            return
        if one.prober is not None or device.sample is None:
            return
        if not one.plan:
            one.finished = len(one.samples) >= LOOK_SAMPLES
            return
        if device.processes is None:
            return
        users = None if self.options.force else self._users(device, one)
        if users is not None:
            one.refused, one.finished = users, bool(users)
            return
        command = self._prober_command(device, one)
        if command is not None:
            self._start_prober(device, one, command)

    def _users(self, device: DeviceState, one: _Device) -> str | None:
        """Who uses a GPU; "" while that cannot be told yet, None where it is free.

        The CPU is never refused: the prober gives way to all others, and says if it was disturbed.
        """
        if device.identity.kind != "gpu":
            return None
        users = foreign_use(device)
        if users is not None or self.options.simulated is not None:
            return users
        latest = [sample.busy_ratio for sample in one.samples[-LOOK_SAMPLES:]]
        if not latest or any(busy is None or busy <= BUSY_GPU_RATIO for busy in latest):
            return None
        if len(latest) < LOOK_SAMPLES:
            return ""
        return f"{device.label} is {latest[-1]:.0%} busy with work not seen here"

    def _complete(self) -> bool:
        """True when nothing is left to do and no device can be expected any more."""
        if not all(one.finished and self._answers(key, one) for key, one in self._devices.items()):
            return False
        settled = time.monotonic() - self._newest >= SETTLE_SECONDS
        if self._devices:
            return settled
        return settled and "nvml" in self.state.problems and not self._only_cpu()

    def _answers(self, key: str, one: _Device) -> bool:
        """False while the driver was not asked for a device, and answered, since its work ended.

        A driver call that hangs shows only in the samples that do not come; one that was read
        before may come late.
        """
        device = self.state.devices.get(key)
        if device is None or device.condition != "ok" or not one.finished:
            return True
        return one.asked_after > max(one.finished_at or self._started, self._strike)

    def _progress(self) -> Progress:
        plans = {key: one.plan for key, one in self._devices.items() if not one.refused}
        finished = {key for key, one in self._devices.items() if one.finished}
        return self._pace.progress(self.state, plans, finished, time.monotonic())

    # Children -------------------------------------------------------------------------------------

    def _poller_command(self) -> Sequence[str]:
        command = [sys.executable, "-m", "topsmon", "stream", "--until-stdin-closes"]
        command += ["--interval", str(INTERVAL_SECONDS)]
        for word in self.options.devices:
            command += ["--only", word]
        if self.options.only_visible:
            command.append("--only-visible")
        return command

    def _prober_command(self, device: DeviceState, one: _Device) -> list[str] | None:
        """How to start the prober, None while or where that is not possible."""
        left = self.options.limit_seconds - (time.monotonic() - self._started) - START_SECONDS
        seconds = min(sum(one.plan.values()), max(left, 1.0))
        order = ["--device", device.key, "--plan", ",".join(one.plan)]
        order += ["--seconds", f"{seconds:.1f}"]
        order += [part for size in self.options.sizes for part in ("--size", str(size))]
        if self.options.simulated is not None:
            return [sys.executable, "-m", "topsmon.simulated.prober", *order]
        if self._interpreter is None:
            return None
        if self._interpreter.path is None:
            one.missing, one.finished = self._interpreter.problem, True
            return None
        return [self._interpreter.path, str(PROBES), *order]

    def _start_prober(self, device: DeviceState, one: _Device, command: list[str]) -> None:
        one.prober = Worker(
            f"prober {device.key}",
            command,
            self.receive,
            environment=self._environment,
            policy=RestartPolicy(limit=0, never=(0, EXIT_NO_TORCH)),
        )
        self._pace.begin(time.monotonic())
        one.prober.start()

    def _end_prober(self, one: _Device) -> None:
        """A device that is gone holds its prober in the driver: end it, without waiting."""
        if one.prober is not None and one.prober.process is not None:
            with contextlib.suppress(ProcessLookupError):
                one.prober.process.kill()

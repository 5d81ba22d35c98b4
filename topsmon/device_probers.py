"""The probers of a session: one child a device that measures it, held back where others compute.

Used from the session's event loop; every method returns at once.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import xid
from topsmon.foreign_use import BUSY_GPU_RATIO, foreign_use, users_unknown
from topsmon.interpreter import Interpreter
from topsmon.state import State
from topsmon.units import PRECISIONS, plain
from topsmon.workers import RestartPolicy, Worker

BACKGROUND_DUTY = 0.03
"""Share of time measured while nobody asked for more."""
ASKED_DUTY = 0.5
"""Share of time measured after `b`."""
CRASHES_TO_LEAVE_OUT = 2
PROBES = Path(__file__).parent / "probes"
BURST_EVENTS = (
    events.ProbeStarted,
    events.RateMeasured,
    events.ProbeResult,
    events.ProbeUnsupported,
)
"""A prober computes from the first of these to one of the others, or to its own end."""


@dataclass(frozen=True)
class ProberOptions:
    """Whether and how devices are measured. `environment` is added to that of every child.

    `only` names the devices that were asked for, `simulated` the scenario that is played.
    """

    benchmarks: bool = True
    only: tuple[str, ...] = ()
    simulated: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Probers:
    """The probers of all devices of `state`. `receive` takes their events, `fold` our own.

    `running` has the children by device, `burst_ends` when topsmon last computed on one (monotonic
    time in s).
    """

    def __init__(
        self,
        options: ProberOptions,
        state: State,
        precisions: tuple[str, ...],
        receive: Callable[[events.AnyEvent], None],
        fold: Callable[[events.AnyEvent], None],
    ) -> None:
        self.interpreter: Interpreter | None = None
        self.without_driver = False
        self.burst_ends: dict[str, float] = {}
        self.running: dict[str, Worker] = {}
        self._options = options
        self._state = state
        self._precisions = precisions
        self._receive = receive
        self._fold = fold
        self._paused = False
        self._asked: set[str] = set()
        self._held_back: dict[str, str] = {}
        self._crashes: Counter[tuple[str, str]] = Counter()
        self._told: dict[str, tuple[int | None, float]] = {}

    def release(self) -> list[Worker]:
        """Forget the children; return them, to be stopped."""
        released = list(self.running.values())
        self.running.clear()
        self._held_back.clear()
        return released

    # What the user does ---------------------------------------------------------------------------

    def pause(self, paused: bool) -> None:
        """Stop or resume measuring."""
        self._paused = paused
        self.review_all()

    def ask(self, device_key: str | None, on: bool) -> None:
        """Measure more on a device (None: on all), also where others compute; or stop that."""
        keys = [device_key] if device_key is not None else list(self._state.devices)
        if on:
            self._asked.update(keys)
        else:
            self._asked.difference_update(keys)
        self.review_all()

    def asked(self, device_key: str) -> bool:
        """True while the user has asked for measurements on this device."""
        return device_key in self._asked

    def choose_precisions(self, keys: tuple[str, ...]) -> None:
        """Measure only these precisions from now on."""
        self._precisions = keys
        for key, worker in self.running.items():
            worker.send(command="precisions", keys=self._wanted(key))

    # What happens ---------------------------------------------------------------------------------

    def note_burst(self, event: events.AnyEvent) -> None:
        """Take when a prober began or ended to compute."""
        if isinstance(event, BURST_EVENTS):
            self.burst_ends[event.device] = event.monotonic

    def count_crash(self, event: events.Worker) -> None:
        """Leave out a precision that ended its prober twice: it would do so for ever."""
        key = event.worker.removeprefix("prober ")
        device = self._state.devices.get(key)
        if event.condition not in {"restarted", "failed"} or device is None:
            return
        precision = device.prober.measuring
        if precision is None:
            return
        self.burst_ends[key] = event.monotonic
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
            for precision in self._precisions
            if self._crashes[key, precision] < CRASHES_TO_LEAVE_OUT
        ]

    # Whether to measure ---------------------------------------------------------------------------

    def review_all(self) -> None:
        """Review every device."""
        for key in list(self._state.devices):
            self.review(key)

    def review(self, key: str) -> None:
        """Start, hold back or resume the prober of a device after anything about it changed."""
        device = self._state.devices.get(key)
        if device is None or not self._may_have_prober(device):
            return  # what is told of a device may come before the device itself
        reason = self._hold_back_reason(device)
        worker = self.running.get(key)
        if worker is None:
            if reason is None:
                self._start(device)
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
        if not self._options.benchmarks or device.sample is None or device.processes is None:
            return False
        if device.identity.kind == "gpu":
            return True
        if self._options.simulated is not None:
            return False
        asked = "cpu" in self._options.only or device.key in self._asked
        return asked or not any(self._state.gpus())

    def _hold_back_reason(self, device: DeviceState) -> str | None:
        """Why this device must not be measured now, None where it may."""
        unfit = self._unfit(device)
        if unfit is not None or device.key in self._asked:
            return unfit
        if unseen := users_unknown(device):
            return unseen
        busy = device.sample.busy_ratio if device.sample is not None else None
        idle_before = device.key in self.running or busy is None or busy <= BUSY_GPU_RATIO
        real_gpu = device.identity.kind == "gpu" and self._options.simulated is None
        if real_gpu and not idle_before:
            return (
                foreign_use(device) or f"{device.label} is {busy:.0%} busy with work not seen here"
            )
        return foreign_use(device, held_back=device.prober.idle_reason is not None)

    def _unfit(self, device: DeviceState) -> str | None:
        """Why a device must not be measured even where the user asks for it, None where it may."""
        if self._paused:
            return "paused"
        if device.condition != "ok":
            return f"device is {device.condition}"
        if device.identity.kind == "gpu" and self.without_driver:
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

    # The children ---------------------------------------------------------------------------------

    def _duty(self, key: str) -> float:
        return ASKED_DUTY if key in self._asked else BACKGROUND_DUTY

    def _tell_duty(self, key: str, worker: Worker) -> None:
        """Send the duty cycle unless this very child has it already."""
        told = (worker.pid, self._duty(key))
        if told[0] is not None and self._told.get(key) != told:
            self._told[key] = told
            worker.send(command="duty", value=told[1])

    def _start(self, device: DeviceState) -> None:
        command = self._command(device)
        if command is None:
            return
        worker = Worker(
            f"prober {device.key}",
            command,
            lambda event: self._receive_from(device.key, event),
            environment=self._options.environment,
            policy=RestartPolicy(limit=5, window_seconds=600.0),
            on_start=lambda: self._started(device.key),
        )
        self.running[device.key] = worker
        worker.start()

    def _command(self, device: DeviceState) -> list[str] | None:
        identity = device.identity.uuid or device.key
        options = ["--device", identity, "--duty", str(self._duty(device.key))]
        if self._options.simulated is not None:
            return [sys.executable, "-m", "topsmon.simulated.prober", *options]
        if self.interpreter is None:
            return None
        if self.interpreter.path is None:
            self._note_idle(device, self.interpreter.problem)
            return None
        return [self.interpreter.path, str(PROBES), *options]

    def _receive_from(self, key: str, event: events.AnyEvent) -> None:
        """Take a prober's event; a GPU that was asleep or lost at the start has another key."""
        if getattr(event, "device", key) != key:
            event = msgspec.structs.replace(event, device=key)
        self._receive(event)

    def _started(self, key: str) -> None:
        """Tell a fresh child what its predecessor knew."""
        worker = self.running.get(key)
        if worker is None:
            return
        self._tell_duty(key, worker)
        wanted = self._wanted(key)
        if len(wanted) < len(PRECISIONS):
            worker.send(command="precisions", keys=wanted)
        if key in self._held_back:
            worker.send(command="pause", reason=self._held_back[key])

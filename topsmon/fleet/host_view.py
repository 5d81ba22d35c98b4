"""What is kept of each host of a fleet: how it is linked, its facts, its devices and runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from topsmon import events
from topsmon.fleet.boards import Board
from topsmon.fleet.device_view import DeviceView
from topsmon.run_state import AnyRunEvent, RunState

LinkCondition = Literal["connecting", "live", "stale", "gone", "refused"]
RUNS_KEPT = 64
"""Runs kept per host; those that ended first are forgotten first."""
WAITING_KEPT = 64
"""Events kept that came before their device's identity."""
HOST_EVENTS = (
    events.Hello,
    events.Host,
    events.HostSample,
    events.Problem,
    events.Worker,
    events.Finding,
)
AnyHostEvent = (
    events.Hello | events.Host | events.HostSample | events.Problem | events.Worker | events.Finding
)


@dataclass(slots=True)
class HostView:
    """One host by the name that the user gave it.

    `link` is the condition as it was last told and `since` when that began; `seen` is when its last
    event came. Both are our monotonic clock.
    """

    name: str
    link: LinkCondition = "connecting"
    detail: str = ""
    since: float | None = None
    seen: float | None = None
    hello: events.Hello | None = None
    host: events.Host | None = None
    host_sample: events.HostSample | None = None
    problems: dict[str, events.Problem] = field(default_factory=dict)
    workers: dict[str, events.Worker] = field(default_factory=dict)
    findings: dict[str, events.Finding] = field(default_factory=dict)
    devices: dict[str, DeviceView] = field(default_factory=dict)
    runs: dict[str, RunState] = field(default_factory=dict)
    runs_changed: bool = False
    shown: tuple[DeviceView, ...] = ()
    waiting: list[events.AnyEvent] = field(default_factory=list)

    def add(self, event: events.Device, board: Board) -> DeviceView:
        """Take a device's identity; what an earlier poller knew of its slot is dropped."""
        device = self.devices.get(event.device)
        if device is None:
            self.devices[event.device] = device = DeviceView(event, board)
        else:
            device.identity, device.board, device.reported = event, board, True
        slot = (event.kind, event.index)
        for key, other in list(self.devices.items()):
            same_slot = (other.identity.kind, other.identity.index) == slot
            if same_slot and key != event.device and not other.reported:
                del self.devices[key]
        self._choose_shown()
        return device

    def _choose_shown(self) -> None:
        """The devices that stand for the host: its GPUs, else its processor."""
        gpus = [device for device in self.devices.values() if device.identity.kind == "gpu"]
        chosen = gpus or list(self.devices.values())
        chosen.sort(key=lambda device: (device.identity.index, device.key))
        self.shown = tuple(chosen)

    def take(self, event: AnyHostEvent) -> None:
        """Keep what is about the host itself, and findings."""
        match event:
            case events.Hello():
                if self.hello is None or event.role == "poller":
                    self.hello = event
                if event.role == "poller":
                    self._begin_anew()
            case events.Host():
                self.host = event
            case events.HostSample():
                self.host_sample = event
            case events.Problem():
                self.problems.pop(event.subject, None)
                if event.code is not None:
                    self.problems[event.subject] = event
            case events.Worker():
                self.workers[event.worker] = event
            case events.Finding():
                self._take_finding(event)

    def _take_finding(self, event: events.Finding) -> None:
        device = self.devices.get(event.device) if event.device is not None else None
        kept = device.findings if device is not None else self.findings
        kept.pop(event.code, None)
        if not event.ended:
            kept[event.code] = event

    def take_run(self, event: events.Run | AnyRunEvent, now: float) -> None:
        """Keep the latest of a run; its history is large and belongs to the drill-down."""
        run = self.runs.get(event.run)
        if isinstance(event, events.Run):
            if run is None:
                self.runs[event.run] = RunState(event)
                self._forget_runs()
            else:
                run.identity = event
        elif run is not None and not isinstance(event, events.RunHistory):
            run.apply(event, now)
        self.runs_changed = True

    def hold(self, event: events.AnyEvent) -> None:
        """Keep a few events that came before their device's identity."""
        if len(self.waiting) < WAITING_KEPT:
            self.waiting.append(event)

    def take_waiting(self, key: str) -> list[events.AnyEvent]:
        """Give out the events that waited for a device."""
        due = [event for event in self.waiting if getattr(event, "device", None) == key]
        if due:
            self.waiting = [event for event in self.waiting if event not in due]
        return due

    def _begin_anew(self) -> None:
        """A new poller knows nothing of its predecessor's troubles and tells its own."""
        self.problems.pop("nvml", None)
        self.runs.clear()
        self.findings.clear()
        self.runs_changed = True
        for device in self.devices.values():
            device.status = device.status_seen = None
            device.reported = False
            device.findings.clear()

    def run_device(self, run: RunState) -> DeviceView | None:
        """The device that a run trains on, as far as its identity tells."""
        identity = run.identity
        if identity.device_uuid is not None:
            return self.devices.get(identity.device_uuid)
        if identity.torch_device is not None and identity.torch_device.startswith("cpu"):
            return self.devices.get("cpu")
        return None

    def _forget_runs(self) -> None:
        """Drop the runs that ended first where there are too many."""
        surplus = len(self.runs) - RUNS_KEPT
        for key in [key for key, run in self.runs.items() if run.ended][: max(0, surplus)]:
            del self.runs[key]

    def known(self) -> Iterator[tuple[events.AnyEvent, float | None]]:
        """Everything kept, in an order in which a state takes it, with the time it was seen."""
        for event in (self.hello, self.host, self.host_sample):
            if event is not None:
                yield event, None
        for problem in self.problems.values():
            yield problem, None
        for device in self.devices.values():
            yield from device.known()
        for worker in self.workers.values():
            yield worker, None
        for run in self.runs.values():
            yield run.identity, None
            for happened in run.happened:
                yield happened, None
            if run.sample is not None:
                yield run.sample, run.sample_seen
            if run.status is not None:
                yield run.status, run.status_seen

"""Events folded into what the views show. `State.apply` is the only writer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import HISTORY_LENGTH, DeviceState, apply_to_device, learn_clock
from topsmon.run_state import RUN_EVENTS, AnyRunEvent, RunState

ENDED_RUNS_KEPT = 32
"""The runs that ended last; a machine that trains for months must not fill the memory."""


class State:
    """Everything that is known now. Feed it events in order of arrival.

    `interval` is the sampling period asked of the poller in s, None where it is not known.
    `sampling_since` is the local monotonic time from which on samples are due (start, resume,
    change of the interval), None while sampling is paused; both tell late samples from wanted
    silence.
    """

    def __init__(self) -> None:
        self.hello: events.Hello | None = None
        self.host: events.Host | None = None
        self.host_sample: events.HostSample | None = None
        self.problems: dict[str, events.Problem] = {}
        self.devices: dict[str, DeviceState] = {}
        self.workers: dict[str, events.Worker] = {}
        self.runs: dict[str, RunState] = {}
        self.host_busy: deque[float | None] = deque(maxlen=HISTORY_LENGTH)
        self.version = 0
        self.interval: float | None = None
        self.sampling_since: float | None = 0.0
        self._waiting: dict[str, list[events.AnyEvent]] = {}

    @property
    def simulated(self) -> str | None:
        """Name of the scenario when the numbers come from the simulated driver."""
        return self.hello.simulated if self.hello is not None else None

    def ordered(self) -> list[DeviceState]:
        """Devices in the fixed order of the screen: GPUs by index, then the CPU."""
        return sorted(
            self.devices.values(),
            key=lambda device: (device.identity.kind == "cpu", device.identity.index, device.key),
        )

    def gpus(self) -> Iterator[DeviceState]:
        """The GPUs in order."""
        return (device for device in self.ordered() if device.identity.kind == "gpu")

    def device_of(self, run: RunState) -> DeviceState | None:
        """The device that a run trains on, None where that is not known."""
        identity = run.identity
        if identity.device_uuid is not None:
            return self.devices.get(identity.device_uuid)
        if identity.torch_device is not None and identity.torch_device.startswith("cpu"):
            return self.devices.get("cpu")
        if not identity.local:
            return None
        holders = [device for device in self.gpus() if _holds(device, identity.pid)]
        return holders[0] if len(holders) == 1 else None

    def ordered_runs(self) -> list[RunState]:
        """Runs with those alive first, then the newest; the ranks of a launch stay together."""
        groups: dict[str, list[RunState]] = {}
        for run in self.runs.values():
            groups.setdefault(run.group, []).append(run)

        def place(ranks: list[RunState]) -> tuple[bool, float]:
            newest = max(run.identity.started for run in ranks)
            return all(run.ended for run in ranks), -newest

        def rank(run: RunState) -> tuple[int, str]:
            return (-1 if run.identity.rank is None else run.identity.rank), run.key

        return [
            run for ranks in sorted(groups.values(), key=place) for run in sorted(ranks, key=rank)
        ]

    def remember(self, result: events.RateMeasured) -> None:
        """Take a result of an earlier session; it never replaces a measured one."""
        device = self.devices.get(result.device)
        if device is not None and result.precision in device.rates:
            device.rates[result.precision].remembered = result
            learn_clock(device, result)

    def apply(self, event: events.AnyEvent, now: float) -> None:
        """Fold one event in. `now` is this process's monotonic clock, in seconds."""
        self.version += 1
        if isinstance(event, events.Device):
            self._identify(event, now)
            return
        if isinstance(event, (events.Finding, events.CheckResult)):
            return  # drawn from the state, not part of it
        if isinstance(event, (events.Hello, events.Host, events.HostSample, events.Recording)):
            self._apply_host(event)
        elif isinstance(event, events.Problem):
            if event.code is None:
                self.problems.pop(event.subject, None)
            else:
                self.problems[event.subject] = event
        elif isinstance(event, events.Worker):
            self._apply_worker(event)
        elif isinstance(event, (events.Run, *RUN_EVENTS)):
            self._apply_run(event, now)
        else:
            device = self.devices.get(event.device)
            if device is None:
                self._hold(event)
            else:
                apply_to_device(device, event, now)

    def _apply_host(
        self, event: events.Hello | events.Host | events.HostSample | events.Recording
    ) -> None:
        if isinstance(event, events.Hello):
            if self.hello is None or event.role == "poller":
                self.hello = event
            if event.role == "poller":
                # A new poller knows nothing of its predecessor's troubles and tells its own.
                self.problems.pop("nvml", None)
                self.runs.clear()
                for device in self.devices.values():
                    device.status = device.status_seen = None
                    device.reported = False
        elif isinstance(event, events.Recording):
            self.interval, self.sampling_since = event.interval, event.sampling_since
        elif isinstance(event, events.Host):
            self.host = event
        elif isinstance(event, events.HostSample):
            self.host_sample = event
            self.host_busy.append(event.cpu_busy_ratio)

    def _apply_worker(self, event: events.Worker) -> None:
        self.workers[event.worker] = event
        for device in self.devices.values():
            if event.worker == f"prober {device.key}":
                device.prober.worker = event
                if event.condition != "running":
                    device.prober.measuring = None

    def _identify(self, event: events.Device, now: float) -> None:
        device = self.devices.get(event.device)
        if device is None:
            self.devices[event.device] = device = DeviceState(event)
            for waiting in self._waiting.pop(event.device, []):
                apply_to_device(device, waiting, now)
        else:
            device.identity = event
            device.reported = True
        self._drop_predecessors(event)

    def _drop_predecessors(self, event: events.Device) -> None:
        """Drop what an earlier poller knew of the same slot under another key."""
        for key, device in list(self.devices.items()):
            same_slot = (device.identity.kind, device.identity.index) == (event.kind, event.index)
            if same_slot and key != event.device and not device.reported:
                del self.devices[key]

    def _apply_run(self, event: events.Run | AnyRunEvent, now: float) -> None:
        run = self.runs.get(event.run)
        if isinstance(event, events.Run):
            if run is None:
                self.runs[event.run] = RunState(event)
            else:
                run.identity = event
        elif run is not None:
            run.apply(event, now)
            if isinstance(event, events.RunSample):
                self._meter(run, event)
            elif isinstance(event, events.RunStatus):
                self._forget_oldest_runs()

    def _meter(self, run: RunState, sample: events.RunSample) -> None:
        device = self.device_of(run)
        readings: list[tuple[float, float]] = []
        if device is not None and self._alone_on(device, run):
            readings = [
                (one.monotonic, one.energy_joules)
                for one in device.recent
                if one.energy_joules is not None
            ]
        run.energy.add(sample, readings)
        run.joules_per_step = run.energy.joules_per_step
        run.joules_per_token = run.energy.joules_per_token

    def _alone_on(self, device: DeviceState, run: RunState) -> bool:
        """True when nothing but this run uses a whole GPU: no other process, no benchmark.

        In a container the driver tells PIDs of the host, so one foreign process is the run.
        """
        known = device.processes.entries if device.processes is not None else None
        if device.identity.kind != "gpu" or device.identity.mig or not known:
            return False
        if device.prober.measuring is not None:
            return False
        users = [entry for entry in known if not entry.own and entry.kind != "graphics"]
        if len(users) != 1:
            return False
        local = users[0].local and run.identity.local
        return users[0].pid == run.identity.pid if local else run.identity.device_uuid is not None

    def _forget_oldest_runs(self) -> None:
        ended = [run for run in self.runs.values() if run.ended and run.status is not None]
        ended.sort(key=lambda run: run.status.since if run.status is not None else 0.0)
        for run in ended[: max(0, len(ended) - ENDED_RUNS_KEPT)]:
            del self.runs[run.key]

    def _hold(self, event: events.AnyEvent) -> None:
        """Keep a few events that came before their device's identity."""
        key = getattr(event, "device", None)
        if key is not None and len(self._waiting) < 64:
            queue = self._waiting.setdefault(key, [])
            if len(queue) < 32:
                queue.append(event)


def _holds(device: DeviceState, pid: int) -> bool:
    entries = device.processes.entries if device.processes is not None else None
    return any(entry.pid == pid and entry.local for entry in entries or ())

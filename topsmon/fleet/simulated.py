"""A fleet that a child plays: `topsmon stream --simulate nodes=...`, as a host behind ssh would."""

from __future__ import annotations

import sys
import time

from topsmon import events
from topsmon.fleet.session import FleetSession
from topsmon.fleet.state import FleetState
from topsmon.simulated.fleet import FleetPlan, SimulatedHost, Stamp
from topsmon.workers import Worker

NAME = "simulated fleet"


def played(plan: FleetPlan, seconds: tuple[float, ...] = (0.0, 1.0, 2.0)) -> FleetState:
    """The state of a simulated fleet at some seconds after its start, of which the last is now.

    Now is 0.0 by the monotonic clock of the returned state.
    """
    fleet = FleetState()
    for node in range(plan.nodes):
        host = SimulatedHost(plan, node)
        start = Stamp(time.time() - seconds[-1], -seconds[-1])
        for event in host.begin(start):
            fleet.receive(host.name, event, start.monotonic)
        for second in seconds:
            stamp = Stamp(start.wall + second, start.monotonic + second)
            for event in host.tick(second, stamp):
                fleet.receive(host.name, event, stamp.monotonic)
    return fleet


class SimulatedFleetSession(FleetSession):
    """Events of all hosts come on one pipe, each with its host in `source`."""

    def __init__(self, plan: str, interval: float = 1.0) -> None:
        super().__init__(interval)
        self._plan = plan
        self._worker: Worker | None = None

    async def start(self) -> None:
        """Start the child."""
        command = [sys.executable, "-m", "topsmon", "stream", "--simulate", self._plan]
        command += ["--interval", str(self.interval), "--until-stdin-closes"]
        self._worker = Worker(NAME, command, self._receive)
        self._worker.start()

    async def stop(self) -> None:
        """End the child."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    def set_interval(self, seconds: float) -> None:
        """Have the child send more or less often."""
        super().set_interval(seconds)
        if self._worker is not None:
            self._worker.send(command="interval", seconds=seconds)

    def _receive(self, event: events.AnyEvent) -> None:
        if not isinstance(event, events.Worker):
            self.receive(event.source.partition("/")[0], event)
        elif event.condition == "failed":
            self.link(NAME, "refused", event.detail)

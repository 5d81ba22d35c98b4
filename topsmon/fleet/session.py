"""A session over many hosts: the fleet, and the full state of the host that is looked at.

Subclasses bring the events: over ssh, from a server, from a simulation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.fleet.host_view import LinkCondition
from topsmon.fleet.state import FleetState
from topsmon.fleet.trouble import outage_finding
from topsmon.state import State
from topsmon.units import PRECISIONS

NO_PROBERS = "hosts of a fleet are only watched: run topsmon bench there"


class FleetSession:
    """What the screen needs of a session, and `fleet`; `state` is that of `host`.

    Listeners hear the events of the selected host alone, since a recording is of one machine.
    """

    several_hosts = True

    def __init__(self, interval: float = 1.0) -> None:
        self.fleet = FleetState(interval)
        self.host: str | None = None
        self.state = State()
        self.interval = interval
        self.precisions = tuple(PRECISIONS)
        self.paused = False
        self.listeners: list[Callable[[events.AnyEvent], None]] = []
        self.torch_problem: str | None = NO_PROBERS
        self._findings: tuple[events.Finding, ...] = ()
        self._findings_key: tuple[str | None, int, int] = (None, -1, -1)

    async def start(self) -> None:
        """Begin to receive."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End the children within about 100 ms."""
        raise NotImplementedError

    def receive(self, host: str, event: events.AnyEvent) -> None:
        """Take an event of a host; while paused what is shown stands still."""
        if self.paused:
            return
        self.fleet.receive(host, event, time.monotonic())
        if host == self.host:
            for listener in self.listeners:
                listener(event)

    def link(self, host: str, condition: LinkCondition, detail: str = "") -> None:
        """Take what is known of the connection to a host."""
        self.fleet.link(host, condition, detail, time.monotonic())

    def select(self, host: str | None) -> None:
        """Make `state` that of a host of the fleet, None: of none; the one before is let go."""
        if host == self.host:
            return
        if self.host is not None:
            self.fleet.release(self.host)
        self.host = host
        self.state = State() if host is None else self.fleet.state_of(host)

    def findings(self) -> tuple[events.Finding, ...]:
        """The diagnosis of the selected host, worst first; at most twice a second."""
        if self.host is None:
            return ()
        now = time.monotonic()
        if self.fleet.outage is not None:
            return (outage_finding(self.fleet, self.fleet.outage, now, time.time()),)
        key = (self.host, self.state.version, int(now * 2))
        before = self._findings_key
        if key != before and (key[0] != before[0] or key[2] != before[2]):
            self._findings, self._findings_key = diagnose(self.state, now), key
        return self._findings

    def set_interval(self, seconds: float) -> None:
        """Change the sampling interval."""
        self.interval = seconds
        if not self.paused:
            self.fleet.interval = seconds

    def pause(self, paused: bool) -> None:
        """Stop or resume to take events."""
        self.paused = paused
        self.fleet.interval = None if paused else self.interval

    def set_counters(self, on: bool) -> None:
        """Do nothing: what is read is not decided here."""

    def benchmark(self, device_key: str | None, on: bool) -> None:
        """Do nothing: nothing is measured from here."""

    def benchmarking(self, device_key: str) -> bool:
        """False: nothing is measured from here."""
        del device_key
        return False

    def choose_precisions(self, keys: tuple[str, ...]) -> None:
        """Show only these precisions from now on."""
        self.precisions = keys

"""A running session over other machines: their streams, folded into one fleet.

Owned by the screen's event loop; every method returns at once. It has what the screen uses of a
session of this machine; measuring is left to the machine itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
import time
from collections.abc import Callable, Sequence

import msgspec

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.fleet.state import FleetState
from topsmon.remote.condition import link_finding
from topsmon.remote.gate import Gate
from topsmon.remote.link import Condition, Link
from topsmon.remote.ssh import LinkOptions
from topsmon.state import State
from topsmon.units import PRECISIONS

FEW_HOSTS = 16
"""So many keep their histories while another one is looked at."""
NOT_OURS = (events.Worker, events.CheckResult, events.Recording)
"""What a machine may say about itself, but not about our children, verdicts and files."""


class HostsSession:
    """Start it, look at `fleet`, or `select` a host and look at `state`; stop it."""

    def __init__(
        self, hosts: Sequence[str], options: LinkOptions, fleet: FleetState | None = None
    ) -> None:
        self.hosts = tuple(hosts)
        self.options = options
        self.interval = options.interval
        self.precisions: tuple[str, ...] = tuple(PRECISIONS)
        self.paused = False
        self.counters = True
        self.listeners: list[Callable[[events.AnyEvent], None]] = []
        self.fleet = fleet if fleet is not None else FleetState(options.interval)
        self.state = State()
        self.host: str | None = None
        self.torch_problem: str | None = None
        self._links: dict[str, Link] = {}
        self._due_since: dict[str, float] = {}
        self._findings: tuple[events.Finding, ...] = ()
        self._findings_key: tuple[int, str | None] = (-1, None)
        for host in self.hosts:
            self.fleet.add(host)
            if len(self.hosts) <= FEW_HOSTS:
                self.fleet.state_of(host)
        self.select(self.hosts[0])

    # Life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to connect to all hosts."""
        gate = Gate()
        for host in self.hosts:
            self._links[host] = self._link(host, gate)
            self._links[host].start()

    async def stop(self) -> None:
        """End every stream, here and there, within about 100 ms."""
        links = list(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.stop() for link in links))

    def child_pids(self) -> list[int]:
        """PIDs of the running ssh processes."""
        return [link.pid for link in self._links.values() if link.pid is not None]

    def _link(self, host: str, gate: Gate) -> Link:
        return Link(
            host,
            dataclasses.replace(self.options, interval=self.interval),
            gate,
            lambda event: self.receive(host, event),
            lambda condition, detail: self.link(host, condition, detail),
        )

    # What the user does ---------------------------------------------------------------------------

    def select(self, host: str | None) -> None:
        """Have `state` be that of a host; None: of none."""
        before = self.host
        self.host = host
        self.state = self.fleet.state_of(host) if host is not None else State()
        if before is not None and before != host and len(self.hosts) > FEW_HOSTS:
            self.fleet.release(before)
        there = f"ssh -t {host or 'HOST'} {shlex.join(self.options.remote)}"
        self.torch_problem = f"rates are measured on the host itself: {there}"
        self._expect_samples()

    def set_interval(self, seconds: float) -> None:
        """Change the sampling interval of all hosts."""
        self.interval = seconds
        for link in self._links.values():
            link.options = dataclasses.replace(link.options, interval=seconds)
            link.send(command="interval", seconds=seconds)
        self._samples_due_from_now()

    def pause(self, paused: bool) -> None:
        """Stop or resume sampling on all hosts."""
        self.paused = paused
        for link in self._links.values():
            link.send(command="pause" if paused else "resume")
        self._samples_due_from_now()

    def set_counters(self, on: bool) -> None:
        """Have all hosts read the GPM counters while somebody looks at them."""
        self.counters = on
        for link in self._links.values():
            link.send(command="counters", on=on)

    def benchmark(self, device_key: str | None, on: bool) -> None:
        """Do nothing: `torch_problem` says where rates are measured."""

    def benchmarking(self, device_key: str) -> bool:
        """Tell that nothing is measured from here."""
        del device_key
        return False

    def choose_precisions(self, keys: tuple[str, ...]) -> None:
        """Show only these precisions from now on."""
        self.precisions = keys

    def findings(self) -> tuple[events.Finding, ...]:
        """What is wrong with the selected host's link, the host itself, then the other links.

        Computed at most twice a second.
        """
        now = time.monotonic()
        key = (int(now * 2), self.host)
        if key != self._findings_key:
            self._findings, self._findings_key = self._diagnose(now), key
        return self._findings

    def _diagnose(self, now: float) -> tuple[events.Finding, ...]:
        found = [link_finding(self.fleet, host, now) for host in self._selected_first()]
        links = [finding for finding in found if finding is not None]
        own = diagnose(self.state, now) if self.host is not None else ()
        first = 1 if found and found[0] is not None and self.host is not None else 0
        return (*links[:first], *own, *links[first:])

    def _selected_first(self) -> list[str]:
        chosen = [self.host] if self.host is not None else []
        return [*chosen, *(host for host in self.hosts if host != self.host)]

    # Events ---------------------------------------------------------------------------------------

    def receive(self, host: str, event: events.AnyEvent) -> None:
        """Fold an event of a host in."""
        if isinstance(event, NOT_OURS):
            return
        if isinstance(event, events.Processes):
            event = _untouchable(event)
        self.fleet.receive(host, event, time.monotonic())
        if host == self.host:
            for listener in self.listeners:
                listener(event)

    def link(self, host: str, condition: Condition, detail: str) -> None:
        """Take a change of a host's connection."""
        now = time.monotonic()
        if condition == "live":
            self._greet(host)
            self._due_since[host] = now
            if host == self.host:
                self._expect_samples()
        self.fleet.link(host, condition, detail, now)

    def _greet(self, host: str) -> None:
        """Tell a fresh stream what its predecessor knew."""
        link = self._links.get(host)
        if link is None:
            return
        link.send(command="counters", on=self.counters)
        if self.paused:
            link.send(command="pause")

    def _samples_due_from_now(self) -> None:
        now = time.monotonic()
        self._due_since = dict.fromkeys(self._due_since, now)
        self.fleet.interval = None if self.paused else self.interval
        self._expect_samples()

    def _expect_samples(self) -> None:
        """Tell the rules from when on, and how often, samples of the selected host are due."""
        self.state.interval = self.interval
        due = None if self.paused or self.host is None else self._due_since.get(self.host)
        self.state.sampling_since = due


def _untouchable(event: events.Processes) -> events.Processes:
    """Processes that cannot be taken for one of this machine, and so not be signalled here."""
    if event.entries is None:
        return event
    entries = tuple(msgspec.structs.replace(entry, start_ticks=None) for entry in event.entries)
    return msgspec.structs.replace(event, entries=entries)

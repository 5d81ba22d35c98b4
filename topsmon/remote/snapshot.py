"""One reading of each of several machines, for a text or a document."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.remote.gate import Gate
from topsmon.remote.link import Condition, Link
from topsmon.remote.ssh import LinkOptions
from topsmon.state import State

QUIET_SECONDS = 0.5
"""GPUs are told one after another; so long after the last, that was all."""
DRIVER_SECONDS = 2.5
"""A driver that has neither told a GPU nor a problem by then is not waited for."""
READING_SECONDS = 5.0
LOOK_SECONDS = 0.02


@dataclass
class HostReading:
    """What one host said. `state` None: nothing, because `problem`.

    `monotonic` is this process's clock at the end of the reading.
    """

    host: str
    state: State | None = None
    problem: str = ""
    findings: tuple[events.Finding, ...] = ()
    monotonic: float = 0.0


@dataclass
class _Reading:
    host: str
    state: State = field(default_factory=State)
    live_since: float | None = None
    newest_device: float = 0.0
    problem: str | None = None

    def receive(self, event: events.AnyEvent) -> None:
        now = time.monotonic()
        if isinstance(event, events.Device):
            self.newest_device = now
        self.state.apply(event, now)

    def tell(self, condition: Condition, detail: str) -> None:
        if condition == "live":
            self.live_since = time.monotonic()
        elif condition != "connecting" and self.problem is None:
            self.problem = f"{condition}: {detail}"

    def is_complete(self, now: float, gpus_expected: bool) -> bool:
        """True when everything has been read once, or will not be in reasonable time."""
        if self.problem is not None:
            return True
        if self.live_since is None:
            return False
        waited = now - self.live_since
        if waited > READING_SECONDS:
            return True
        listed = not gpus_expected or "nvml" in self.state.problems or any(self.state.gpus())
        if not listed and waited < DRIVER_SECONDS:
            return False
        devices = self.state.devices.values()
        return (
            bool(devices)
            and now - self.newest_device > QUIET_SECONDS
            and all(
                (device.sample is not None and device.processes is not None)
                or device.condition != "ok"
                for device in devices
            )
        )

    def result(self) -> HostReading:
        now = time.monotonic()
        if not self.state.devices:
            return HostReading(
                self.host, problem=self.problem or "no device was told", monotonic=now
            )
        return HostReading(self.host, self.state, "", diagnose(self.state, now), now)


async def read(hosts: Sequence[str], options: LinkOptions) -> list[HostReading]:
    """Read every host once, several at a time; one that cannot be reached is not tried again."""
    gate = Gate()
    return list(await asyncio.gather(*(_read_host(host, options, gate) for host in hosts)))


async def _read_host(host: str, options: LinkOptions, gate: Gate) -> HostReading:
    reading = _Reading(host)
    link = Link(host, options, gate, reading.receive, reading.tell)
    gpus = options.only != ("cpu",)
    link.start()
    try:
        while link.running and not reading.is_complete(time.monotonic(), gpus):  # noqa: ASYNC110  time completes a reading too
            await asyncio.sleep(LOOK_SECONDS)
        return reading.result()
    finally:
        await link.stop()

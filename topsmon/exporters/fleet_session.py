"""A fleet that a Prometheus server knows, as a session of the screen: a reading every few seconds.

A host without a new reading grows old on the screen as one whose connection is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

from topsmon import __version__, events
from topsmon.exporters.aside import aside
from topsmon.exporters.fleet_reading import Found, Gpu, Reading, read
from topsmon.exporters.query import QueryError, Server
from topsmon.fleet.session import FleetSession
from topsmon.fleet.state import Outage
from topsmon.units import PRECISIONS

LEAST_SECONDS = 5.0
"""Asking a server more often than it scrapes shows nothing new."""
SOURCE = "rated ceiling, as exported by topsmon"


class PrometheusSession(FleetSession):
    """Reads `server` every `interval` seconds and feeds `fleet`."""

    def __init__(self, server: Server, match: str, interval: float) -> None:
        super().__init__(max(interval, LEAST_SECONDS))
        self._server = server
        self._match = match
        self._known: dict[str, frozenset[str]] = {}
        self._reported: dict[tuple[str, str, str], Found] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read; at once the first time."""
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop reading; a query under way is not waited for."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _work(self) -> None:
        while True:
            try:
                reading = await aside(read, self._server.instant, self._match, time.time())
            except QueryError as error:
                self._lost(str(error))
            else:
                self.take(reading)
            await asyncio.sleep(self.interval)

    def _lost(self, problem: str) -> None:
        """The server is silent: of the hosts nothing new is known."""
        now = time.monotonic()
        before = self.fleet.outage
        words = problem.removeprefix(f"{self._server.url}: ")
        since = before.since if before is not None else now
        self.fleet.outage = Outage(self._server.url, words, since)
        self.fleet.version += 1

    def set_interval(self, seconds: float) -> None:
        """Change the time between two readings, down to `LEAST_SECONDS`."""
        super().set_interval(max(seconds, LEAST_SECONDS))

    def take(self, reading: Reading) -> None:
        """Feed one reading."""
        self.fleet.outage = None
        by_host: dict[str, list[Gpu]] = {host: [] for host in reading.hosts()}
        for gpu in reading.gpus.values():
            by_host[gpu.host].append(gpu)
        for host, gpus in by_host.items():
            self._take_host(reading.time, host, gpus)
        for host in set(self.fleet.hosts) - set(by_host):
            self.link(host, "gone", "the server has no series of it any more")
        self._take_findings(reading)

    def _take_host(self, at: float, host: str, gpus: list[Gpu]) -> None:
        self.link(host, "live")
        uuids = frozenset(gpu.uuid for gpu in gpus)
        if self._known.get(host) != uuids:
            self._known[host] = uuids
            for event in _introduction(at, host, gpus):
                self.receive(host, event)
        view = self.fleet.hosts[host]
        for gpu in gpus:
            for event in _numbers(at, host, gpu):
                self.receive(host, event)
            if gpu.uuid in view.devices:
                view.devices[gpu.uuid].mfu = gpu.numbers.get("mfu")

    def _take_findings(self, reading: Reading) -> None:
        now = {
            (one.host, one.gpu.uuid if one.gpu is not None else "", one.code): one
            for one in reading.findings
        }
        for place, one in now.items():
            if place not in self._reported:
                self.receive(one.host, _finding(reading.time, one))
        for place in self._reported.keys() - now.keys():
            self.receive(place[0], _finding(reading.time, self._reported[place], ended=True))
        self._reported = now


def _stamp(at: float, host: str) -> dict[str, Any]:
    return {"time": at, "monotonic": at, "source": host}


def _introduction(at: float, host: str, gpus: list[Gpu]) -> Iterator[events.AnyEvent]:
    """The events that begin a host: who speaks, and its devices with their ceilings."""
    stamp = _stamp(at, host)
    schema = events.SCHEMA_VERSION
    yield events.Hello(**stamp, version=__version__, schema=schema, role="prometheus", pid=0)
    yield events.Host(**stamp, hostname=host, system="")
    for place, gpu in enumerate(gpus):
        yield events.Device(
            **stamp,
            device=gpu.uuid,
            kind="cpu" if gpu.uuid == "cpu" else "gpu",
            index=place if gpu.index is None else gpu.index,
            name=gpu.name or "GPU",
            uuid=gpu.uuid,
        )
        if gpu.ceilings:
            yield events.Ceilings(
                **stamp,
                device=gpu.uuid,
                rates=tuple(_ceilings(gpu)),
                board=gpu.board or None,
                matched_by=SOURCE,
            )


def _ceilings(gpu: Gpu) -> Iterator[events.Ceiling]:
    for precision, rate in gpu.ceilings.items():
        yield events.Ceiling(
            precision=PRECISIONS[precision].ceilings[0],
            ops_per_second=rate,
            origin="published",
            source=SOURCE,
        )


def _numbers(at: float, host: str, gpu: Gpu) -> Iterator[events.AnyEvent]:
    """The readings of a device as a sample, and its measured rates."""
    stamp, known = _stamp(at, host), gpu.numbers
    used, total, clock = (known.get(key) for key in ("memory_used", "memory_total", "clock"))
    yield events.DeviceSample(
        **stamp,
        device=gpu.uuid,
        busy_ratio=known.get("busy"),
        memory_used_bytes=None if used is None else round(used),
        memory_total_bytes=None if total is None else round(total),
        sm_clock_mhz=None if clock is None else clock / 1e6,
        power_watts=known.get("power"),
        temperature_celsius=known.get("temperature"),
    )
    for precision, rate in gpu.rates.items():
        yield events.RateMeasured(
            **stamp, device=gpu.uuid, precision=precision, rate_ops_per_second=rate
        )


def _finding(at: float, one: Found, *, ended: bool = False) -> events.Finding:
    return events.Finding(
        **_stamp(at, one.host),
        code=one.code,
        severity=one.severity,
        word="FAIL" if one.severity == "fail" else "note",
        title=one.code.replace("-", " "),
        device=one.gpu.uuid if one.gpu is not None else None,
        ended=ended,
    )

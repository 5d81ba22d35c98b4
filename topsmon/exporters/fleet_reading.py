"""One reading of a whole fleet from a Prometheus server: devices with their latest numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from topsmon import events
from topsmon.exporters import fleet_queries as queries
from topsmon.exporters.query import Answer, QueryError, Sample
from topsmon.units import PRECISIONS, plain

Ask = Callable[[str], Answer]
"""Evaluates one query; raises QueryError."""

NAME_LENGTH = 100


@dataclass
class Gpu:
    """A device that the server knows. `numbers` are by the key of the quantity, in base units.

    `board` is its key in topsmon's table of boards, "" where none was told.
    """

    key: str
    host: str
    uuid: str
    index: int | None = None
    name: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    ceilings: dict[str, float] = field(default_factory=dict)
    board: str = ""

    @property
    def label(self) -> str:
        """How people call it: "GPU 3"; without an index by the beginning of its UUID."""
        if self.uuid == "cpu":
            return "CPU"
        return f"GPU {self.index}" if self.index is not None else self.uuid[:12]

    def ratio(self, precision: str) -> float | None:
        """Achieved / rated ceiling, never clamped."""
        rate, ceiling = self.rates.get(precision), self.ceilings.get(precision)
        return None if rate is None or not ceiling else rate / ceiling


@dataclass(frozen=True)
class Found:
    """A finding of topsmon's on a machine; `gpu` None: about the machine."""

    host: str
    code: str
    severity: events.Severity
    gpu: Gpu | None


@dataclass
class Reading:
    """What the server knows now. `problems` are queries that failed, by quantity."""

    time: float
    gpus: dict[str, Gpu] = field(default_factory=dict)
    findings: list[Found] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)

    def hosts(self) -> list[str]:
        """The machines, in the order of their names."""
        return sorted({gpu.host for gpu in self.gpus.values()} | {f.host for f in self.findings})


def read(ask: Ask, match: str, now: float) -> Reading:
    """Ask for everything. `now` is wall-clock time; QueryError: not even the first was answered."""
    reader = _Reader(ask, match, Reading(now))
    reader.identities()
    for quantity in queries.QUANTITIES:
        for gpu, sample in reader.gpus(quantity.key, quantity.query(match)):
            gpu.numbers[quantity.key] = sample.value
    for gpu, sample in reader.gpus("rates", queries.RATES):
        if sample.labels.get("precision") in PRECISIONS:
            gpu.rates[sample.labels["precision"]] = sample.value
    for gpu, sample in reader.gpus("ceilings", queries.CEILINGS):
        if sample.labels.get("precision") in PRECISIONS:
            gpu.ceilings[sample.labels["precision"]] = sample.value
    reader.findings()
    reader.reading.warnings = tuple(dict.fromkeys(reader.warnings))
    for gpu in reader.reading.gpus.values():
        used, total = gpu.numbers.get("memory_used"), gpu.numbers.get("memory_total")
        if used is not None and total:
            gpu.numbers["memory_fill"] = used / total
    return reader.reading


class _Reader:
    def __init__(self, ask: Ask, match: str, reading: Reading) -> None:
        self.reading = reading
        self.warnings: list[str] = []
        self._ask = ask
        self._match = match
        self._named: Mapping[str, str] = {}

    def identities(self) -> None:
        """Learn the machines and the GPUs. An error here is one of the whole reading."""
        self._named = _host_names(self._vector(queries.HOSTS))
        for gpu, sample in self._place(self._vector(queries.IDENTITY.query(self._match))):
            name = sample.labels.get("name") or sample.labels.get("modelName") or ""
            gpu.name = gpu.name or plain(name, NAME_LENGTH)
            gpu.board = gpu.board or plain(sample.labels.get("board", ""), NAME_LENGTH)

    def gpus(self, key: str, query: str) -> list[tuple[Gpu, Sample]]:
        """The series of a query with their GPUs; a failure is noted under `key`."""
        try:
            return list(self._place(self._vector(query)))
        except QueryError as error:
            self.reading.problems[key] = str(error)
            return []

    def findings(self) -> None:
        """Learn what topsmon has found on the machines."""
        try:
            samples = self._vector(queries.FINDINGS)
        except QueryError as error:
            self.reading.problems["findings"] = str(error)
            return
        for sample in samples:
            severity = sample.labels.get("severity")
            if severity not in {"warn", "fail"}:
                continue
            about = sample.labels.get("uuid")
            gpu = next(iter(self._place([sample])))[0] if about else None
            host = gpu.host if gpu is not None else self._host(sample.labels)
            code = plain(sample.labels.get("code", ""), NAME_LENGTH)
            self.reading.findings.append(
                Found(host, code, "fail" if severity == "fail" else "warn", gpu)
            )
        self.reading.findings.sort(key=lambda one: (one.severity, one.code, one.host))

    def _vector(self, query: str) -> tuple[Sample, ...]:
        answer = self._ask(query.replace("<m>", self._match))
        self.warnings += answer.warnings
        return answer.samples

    def _host(self, labels: Mapping[str, str]) -> str:
        """The machine of a series: as it calls itself, else the address that was scraped."""
        instance = labels.get("instance", "")
        told = labels.get("Hostname") or labels.get("hostname")
        name = self._named.get(instance) or told or re.sub(r"(?<=[^:]):\d+$", "", instance)
        return plain(name, NAME_LENGTH) or "unknown host"

    def _place(self, samples: Iterable[Sample]) -> Iterable[tuple[Gpu, Sample]]:
        for sample in samples:
            uuid = plain(sample.labels.get("uuid", ""), NAME_LENGTH)
            if not uuid:
                continue
            host = self._host(sample.labels)
            key = f"{host}/cpu" if uuid == "cpu" else uuid
            gpu = self.reading.gpus.get(key)
            if gpu is None:
                gpu = self.reading.gpus[key] = Gpu(key, host, uuid)
            index = sample.labels.get("gpu") or sample.labels.get("index") or ""
            if gpu.index is None and index.isascii() and index.isdecimal() and len(index) < 6:
                gpu.index = int(index)
            yield gpu, sample


def _host_names(samples: Iterable[Sample]) -> dict[str, str]:
    """The host name of each instance; those that share one keep their address beside it."""
    told = {
        sample.labels.get("instance", ""): sample.labels.get("hostname", "") for sample in samples
    }
    often = Counter(told.values())
    return {
        instance: hostname if often[hostname] == 1 else f"{hostname} ({instance})"
        for instance, hostname in told.items()
        if hostname
    }

"""The poller as a child process on the simulated driver, with its events read line by line."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from topsmon import events
from topsmon.simulated import scenario, table

PATIENCE = 60.0
"""Upper bound for what should take a moment; only a failing test waits this long."""

Kind = TypeVar("Kind", bound=events.Event)


@dataclass
class Poller:
    """A running poller. `history` holds every event that was read so far."""

    process: subprocess.Popen[bytes]
    folder: Path
    history: list[events.AnyEvent] = field(default_factory=list)
    _lines: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def next(self) -> events.AnyEvent:
        """The next event; an AssertionError at the end of the stream or of our patience."""
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"no event for {PATIENCE} s; got {self.history[-5:]}") from None
        if line is None:
            assert self.process.stderr is not None
            raise AssertionError(f"the poller ended: {self.process.stderr.read().decode()}")
        decoder = events.LineDecoder()
        event = decoder.decode(line)
        assert event is not None, decoder.last_error or line
        self.history.append(event)
        return event

    def wait(self, kind: type[Kind], accept: Callable[[Kind], bool] = lambda _: True) -> Kind:
        """Read on until an event of this kind is accepted."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            event = self.next()
            if isinstance(event, kind) and accept(event):
                return event
        raise AssertionError(f"no {kind.__name__} as wanted; the last: {self.history[-5:]}")

    def first(self, kind: type[Kind], accept: Callable[[Kind], bool] = lambda _: True) -> Kind:
        """As `wait`, but an event that was read already counts too."""
        for event in self.history:
            if isinstance(event, kind) and accept(event):
                return event
        return self.wait(kind, accept)

    def key(self, index: int) -> str:
        """The key of the GPU with this index."""
        return self.first(events.Device, lambda d: d.kind == "gpu" and d.index == index).device

    def sample(self, index: int = 0) -> events.DeviceSample:
        """The next sample of a GPU."""
        key = self.key(index)
        return self.wait(events.DeviceSample, lambda sample: sample.device == key)

    def first_sample(self, index: int = 0) -> events.DeviceSample:
        key = self.key(index)
        return self.first(events.DeviceSample, lambda sample: sample.device == key)

    def status(self, index: int, condition: str) -> events.DeviceStatus:
        """The next status of a GPU with this condition."""
        key = self.key(index)
        return self.wait(
            events.DeviceStatus, lambda s: s.device == key and s.condition == condition
        )

    def processes(self, index: int = 0) -> events.Processes:
        key = self.key(index)
        return self.first(events.Processes, lambda p: p.device == key)

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def close(self) -> int:
        """Close the poller's input; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def clock(self, seconds: float) -> None:
        """Set scenario time, which stands still."""
        table.set_clock(self.folder / "clock", seconds)

    def change(self, content: dict[str, Any]) -> None:
        """Replace the scenario while the driver runs."""
        table.write(scenario.parse(content, "changed"), self.folder / "table")

    def calls(self) -> list[tuple[str, int]]:
        """The driver calls so far: function and device index, -1 for none."""
        try:
            lines = (self.folder / "log").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(line.split()[1], int(line.split()[2])) for line in lines]


@dataclass(frozen=True)
class Reading:
    """What came of reading one GPU at some scenario times, and the driver calls it took."""

    events: list[events.AnyEvent]
    errors: str
    calls: list[tuple[float, str, int]]

    @classmethod
    def of(cls, lines: bytes, errors: str, folder: Path) -> Reading:
        decoder = events.LineDecoder()
        found = [decoder.decode(line) for line in lines.splitlines()]
        log = [line.split() for line in (folder / "log").read_text().splitlines()]
        calls = [(float(time), name, int(device)) for time, name, device in log]
        return cls([event for event in found if event is not None], errors, calls)

    @property
    def device(self) -> events.Device:
        return next(event for event in self.events if isinstance(event, events.Device))

    @property
    def samples(self) -> list[events.DeviceSample]:
        return [event for event in self.events if isinstance(event, events.DeviceSample)]

    @property
    def slices(self) -> list[events.Slices]:
        return [event for event in self.events if isinstance(event, events.Slices)]


Simulate = Callable[..., Poller]
Read = Callable[..., Reading]
Environment = Callable[..., tuple[Path, dict[str, str]]]


def one_gpu(**fields: Any) -> dict[str, Any]:
    """A scenario with a single GPU that has just these fields besides a name and memory."""
    return {
        "title": "one",
        "description": "one GPU",
        "expected": "ok",
        "count": 1,
        "device": {
            "name": "NVIDIA H100 80GB HBM3",
            "compute_capability": "9.0",
            "memory_total_mib": 81559,
            "memory_used_mib": 1024,
            "memory_reserved_mib": 551,
            **fields,
        },
    }

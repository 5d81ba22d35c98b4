"""Counters and marks in the trace format of Chrome and Perfetto, beside a torch.profiler trace.

Time stamps are microseconds after `baseTimeNanoseconds`, which is the one that torch.profiler uses
(libkineto's ChromeTraceBaseTime: whole quarters of a year since the epoch), so that the events of
both may stand in one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from topsmon import events
from topsmon.state import State
from topsmon.units import PRECISIONS, plain

QUARTER_SECONDS = 7_889_238
GIBIBYTE = 2.0**30
TRACE_PID = 0x746F70
"""A process of our own beside those that were traced."""
COUNTERS: tuple[tuple[str, str, float], ...] = (
    ("busy_ratio", "busy %", 100.0),
    ("memory_busy_ratio", "memory busy %", 100.0),
    ("memory_used_bytes", "memory GiB", 1 / GIBIBYTE),
    ("power_watts", "power W", 1.0),
    ("temperature_celsius", "temperature C", 1.0),
    ("sm_clock_mhz", "clock MHz", 1.0),
    ("memory_clock_mhz", "memory clock MHz", 1.0),
    ("pcie_transmit_bytes_per_second", "PCIe transmit GB/s", 1e-9),
    ("pcie_receive_bytes_per_second", "PCIe receive GB/s", 1e-9),
    ("nvlink_transmit_bytes_per_second", "NVLink transmit GB/s", 1e-9),
    ("nvlink_receive_bytes_per_second", "NVLink receive GB/s", 1e-9),
)
GPM: tuple[tuple[str, str], ...] = (
    ("sm_active_ratio", "SM active %"),
    ("sm_occupancy_ratio", "SM occupancy %"),
    ("tensor_active_ratio", "tensor active %"),
    ("dram_active_ratio", "DRAM active %"),
)
Entry = dict[str, Any]


def write_trace(found: Iterable[events.AnyEvent], file: BinaryIO) -> int:
    """Write the trace as one JSON document; return how many events it has."""
    count = 0
    base: int | None = None
    encode = msgspec.json.encode
    for event in found:
        if base is None:
            base = int(event.time // QUARTER_SECONDS) * QUARTER_SECONDS
            head = {
                "schemaVersion": 1,
                "displayTimeUnit": "ms",
                "baseTimeNanoseconds": base * 10**9,
            }
            file.write(encode(head)[:-1] + b',"traceEvents":[\n')
            file.write(encode(_meta("process_name", {"name": "topsmon"})))
            tracer = _Tracer(base)
        for entry in tracer.entries(event):
            file.write(b",\n" + encode(entry))
            count += 1
    file.write(b"\n]}\n" if base is not None else b'{"traceEvents":[]}\n')
    return count


def _meta(name: str, arguments: Entry, thread: int = 0) -> Entry:
    return {"ph": "M", "pid": TRACE_PID, "tid": thread, "name": name, "args": arguments}


class _Tracer:
    """Turns events into entries; a state tells which device is which."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._state = State()
        self._threads: dict[str, int] = {}

    def entries(self, event: events.AnyEvent) -> Iterator[Entry]:
        self._state.apply(event, event.monotonic)
        match event:
            case events.Device():
                yield from self._named(event.device)
            case events.DeviceSample():
                yield from self._sample(event)
            case events.RateMeasured() if not event.earlier_session:
                yield from self._rate(event)
            case events.Finding():
                text = f"{plain(event.word, 8)} {'over: ' if event.ended else ''}{event.title}"
                yield self._mark(event, event.device, plain(text, 200), event.severity)
            case events.RunEvent():
                text = f"{self._run(event.run)} step {event.step}: {event.kind} {event.message}"
                yield self._mark(event, None, plain(text, 200), "run")
            case events.RunSample():
                yield from self._run_sample(event)
            case events.HostSample():
                if event.cpu_busy_ratio is not None:
                    yield self._counter(event, "host CPU busy %", event.cpu_busy_ratio * 100)

    def _moment(self, event: events.AnyEvent) -> float:
        return (event.time - self._base) * 1e6

    def _label(self, key: str) -> str:
        device = self._state.devices.get(key)
        return device.label if device is not None else plain(key, 40)

    def _run(self, key: str) -> str:
        run = self._state.runs.get(key)
        return run.label if run is not None else plain(key, 40)

    def _named(self, key: str) -> Iterator[Entry]:
        if key not in self._threads:
            self._threads[key] = len(self._threads) + 1
            yield _meta("thread_name", {"name": self._label(key)}, self._threads[key])

    def _counter(self, event: events.AnyEvent, name: str, value: float) -> Entry:
        unit = name.rsplit(" ", 1)[-1]
        moment = self._moment(event)
        return {"ph": "C", "pid": TRACE_PID, "ts": moment, "name": name, "args": {unit: value}}

    def _mark(self, event: events.AnyEvent, device: str | None, text: str, kind: str) -> Entry:
        return {
            "ph": "i",
            "s": "p",
            "pid": TRACE_PID,
            "tid": self._threads.get(device or "", 0),
            "ts": self._moment(event),
            "cat": kind,
            "name": text,
        }

    def _sample(self, sample: events.DeviceSample) -> Iterator[Entry]:
        label = self._label(sample.device)
        for field, name, factor in COUNTERS:
            value = getattr(sample, field)
            if value is not None:
                yield self._counter(sample, f"{label} {name}", value * factor)
        for field, name in GPM:
            value = getattr(sample.counters, field, None)
            if value is not None:
                yield self._counter(sample, f"{label} {name}", value * 100)

    def _rate(self, result: events.RateMeasured) -> Iterator[Entry]:
        if result.rate_ops_per_second is None or result.precision not in PRECISIONS:
            return
        label, precision = self._label(result.device), PRECISIONS[result.precision]
        if result.valid and result.correct is not False:
            name = f"{label} {precision.label} {precision.unit}"
            yield self._counter(result, name, result.rate_ops_per_second / 1e12)
        seconds = result.burst_seconds or 0.0
        yield {
            "ph": "X",
            "pid": TRACE_PID,
            "tid": self._threads.get(result.device, 0),
            "ts": self._moment(result) - seconds * 1e6,
            "dur": seconds * 1e6,
            "cat": "burst",
            "name": f"{precision.label} burst",
            "args": {"valid": result.valid, "correct": result.correct},
        }

    def _run_sample(self, sample: events.RunSample) -> Iterator[Entry]:
        name = self._run(sample.run)
        for value, what in (
            (float(sample.step), "step"),
            (sample.loss, "loss"),
            (sample.scale, "scale"),
            (sample.gradient_norm, "gradient norm"),
        ):
            if value is not None:
                yield self._counter(sample, f"{name} {what}", value)

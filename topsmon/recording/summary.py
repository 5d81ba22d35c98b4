"""A recording in numbers: what was reached, how long which finding lasted, what is missing."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from topsmon import events
from topsmon.diagnosis import clock_events, diagnose
from topsmon.recording.clock import Moment, after
from topsmon.recording.index import Index
from topsmon.recording.reader import RecordingReader
from topsmon.recording.series import Series
from topsmon.run_state import RunState
from topsmon.state import State

QUANTITIES = (
    "busy_ratio",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_mhz",
)
"""Fields of a sample that are kept over time."""
GAP_SECONDS = 5.0
GAP_INTERVALS = 3.0
"""No reading for longer than both is a gap."""
LOOKS = 1800
"""How often a recording without findings of its own is diagnosed."""
RATES_KEPT = 4096
DIRECT = frozenset({"power", "fault"})
"""Kinds of clock reasons that hold a GPU down; the others are settings or idleness."""


@dataclass
class Span:
    """A finding from `begin` to `end`, s from the recording's beginning; it may come again."""

    finding: events.Finding
    begin: float
    end: float
    lasting: bool = True
    """It was still there at the end of the recording."""


@dataclass
class Gap:
    """A time without readings in s from the beginning, and why."""

    begin: float
    end: float
    reason: str


@dataclass
class RateStatistics:
    """The valid results of one precision on one device, in ops/s, and how many were not."""

    valid: deque[float] = field(default_factory=lambda: deque(maxlen=RATES_KEPT))
    invalid: int = 0
    wrong: int = 0

    def median(self) -> float | None:
        """The median of the valid results, None without any."""
        return statistics.median(self.valid) if self.valid else None


@dataclass
class DeviceSummary:
    """One device: its quantities over time, rates, and how long its clocks were held down."""

    series: dict[str, Series] = field(default_factory=lambda: {one: Series() for one in QUANTITIES})
    rates: dict[str, RateStatistics] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)
    """Seconds held down by reason, as the driver itself counted them."""
    estimated: dict[str, float] = field(default_factory=dict)
    """The same from the reasons in single readings, for a driver that does not count."""
    last: events.DeviceSample | None = None


@dataclass
class Summary:
    """Everything that a report says. Times are s from the beginning."""

    index: Index
    files: tuple[str, ...]
    state: State = field(default_factory=State)
    devices: dict[str, DeviceSummary] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    runs: dict[str, RunState] = field(default_factory=dict)
    happened: dict[str, Counter[str]] = field(default_factory=dict)


class Summariser:
    """Folds a recording into a summary, event by event."""

    def __init__(self, reader: RecordingReader, index: Index) -> None:
        self.summary = Summary(index, tuple(file.name for file in reader.files))
        self._begin = index.begin.now
        self._moment: Moment | None = None
        self._open: dict[tuple[str | None, ...], Span] = {}
        self._numbers: dict[str, int] = {}
        self._read_at: float | None = None
        self._paused_at: float | None = None
        self._look = max(1.0, index.seconds / LOOKS)
        self._looked = float("-inf")

    def take(self, event: events.AnyEvent) -> None:
        """Take the next event."""
        remembered = isinstance(event, events.RateMeasured) and event.earlier_session
        self._moment = moment = after(self._moment, event, remembered=remembered)
        seconds = moment.now - self._begin
        summary = self.summary
        summary.state.apply(event, min(event.monotonic, moment.now))
        match event:
            case events.DeviceSample():
                self._sample(event, seconds)
            case events.HostSample():
                self._reading(seconds)
            case events.RateMeasured() if not remembered:
                self._rate(event)
            case events.Finding():
                self._finding(event, seconds)
            case events.Recording():
                self._about_itself(event, seconds)
            case events.Run():
                summary.runs[event.run] = summary.state.runs[event.run]
            case events.RunEvent() if event.number > self._numbers.get(event.run, 0):
                self._numbers[event.run] = event.number
                summary.happened.setdefault(event.run, Counter())[event.kind] += 1
            case _:
                pass
        if not summary.index.knows_findings and seconds - self._looked >= self._look:
            self._looked = seconds
            self._diagnose(moment.now, seconds)

    def finish(self) -> Summary:
        """Close what is open at the end; return the summary."""
        end = self.summary.index.seconds
        for span in self._open.values():
            span.end = end
        if self._paused_at is not None:
            self.summary.gaps.append(Gap(self._paused_at, end, "paused"))
        self.summary.spans.sort(key=lambda span: span.begin)
        return self.summary

    def _device(self, key: str) -> DeviceSummary:
        return self.summary.devices.setdefault(key, DeviceSummary())

    def _sample(self, sample: events.DeviceSample, seconds: float) -> None:
        self._reading(seconds)
        device = self._device(sample.device)
        for name in QUANTITIES:
            device.series[name].add(seconds, getattr(sample, name))
        if device.last is not None:
            self._held_down(device, sample, sample.monotonic - device.last.monotonic)
        device.last = sample

    def _held_down(self, device: DeviceSummary, sample: events.DeviceSample, passed: float) -> None:
        interval = self.summary.state.interval or 1.0
        if not 0 < passed <= max(GAP_SECONDS, GAP_INTERVALS * interval):
            return
        if sample.throttle_ratios:
            for reason, ratio in sample.throttle_ratios.items():
                _add(device.counted, reason.replace("_", " "), min(ratio, 1.0) * passed)
        elif sample.clock_event_mask is not None:
            for one in clock_events.decode(sample.clock_event_mask):
                if one.treatment in DIRECT:
                    _add(device.estimated, one.name, passed)

    def _rate(self, result: events.RateMeasured) -> None:
        rates = self._device(result.device).rates.setdefault(result.precision, RateStatistics())
        if result.correct is False:
            rates.wrong += 1
        elif not result.valid or result.rate_ops_per_second is None:
            rates.invalid += 1
        else:
            rates.valid.append(result.rate_ops_per_second)

    def _reading(self, seconds: float) -> None:
        """Note a gap where nothing was read for long though it should have been."""
        allowed = max(GAP_SECONDS, GAP_INTERVALS * (self.summary.state.interval or 1.0))
        before, self._read_at = self._read_at, seconds
        if before is not None and self._paused_at is None and seconds - before > allowed:
            self.summary.gaps.append(Gap(before, seconds, "nothing was read"))

    def _about_itself(self, event: events.Recording, seconds: float) -> None:
        if event.lost_lines:
            reason = f"{event.lost_lines:,} lines were not written: {event.lost_reason}"
            self.summary.gaps.append(Gap(seconds, seconds, reason))
        if event.ended:
            return
        if event.sampling_since is None and event.interval is not None:
            self._paused_at = seconds if self._paused_at is None else self._paused_at
        elif self._paused_at is not None:
            self.summary.gaps.append(Gap(self._paused_at, seconds, "paused"))
            self._paused_at, self._read_at = None, seconds

    def _finding(self, finding: events.Finding, seconds: float) -> None:
        key = (finding.code, finding.device, finding.run)
        span = self._open.get(key)
        if span is None:
            span = Span(finding, 0.0 if finding.ended else seconds, seconds)
            self.summary.spans.append(span)
            self._open[key] = span
        if finding.ended:
            span.end, span.lasting = seconds, False
            del self._open[key]
        elif _graver(finding, span.finding):
            span.finding = finding

    def _diagnose(self, now: float, seconds: float) -> None:
        found = {(one.code, one.device, one.run): one for one in diagnose(self.summary.state, now)}
        for finding in found.values():
            self._finding(finding, seconds)
        for key in [key for key in self._open if key not in found]:
            span = self._open.pop(key)
            span.end, span.lasting = seconds, False


def _add(seconds: dict[str, float], reason: str, passed: float) -> None:
    seconds[reason] = seconds.get(reason, 0.0) + passed


def _graver(finding: events.Finding, other: events.Finding) -> bool:
    order = {"info": 0, "warn": 1, "fail": 2}
    return order[finding.severity] > order[other.severity]


def summarise(
    reader: RecordingReader,
    index: Index,
    change: Callable[[events.AnyEvent], events.AnyEvent] = lambda event: event,
) -> Summary:
    """Summarise a recording; `change` sees every event before it is taken (a redactor does).

    Raises RecordingError.
    """
    summariser = Summariser(reader, index)
    for event in reader.read():
        summariser.take(change(event))
    return summariser.finish()

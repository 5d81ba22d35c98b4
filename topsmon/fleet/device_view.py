"""What is kept of each device of a fleet: the latest of everything, no histories."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from topsmon import events
from topsmon.device_state import PrecisionState
from topsmon.fleet.boards import Board, SharedCeilings
from topsmon.units import PRECISIONS

Occasional = (
    events.Processes
    | events.Slices
    | events.ProberReady
    | events.ProbeStarted
    | events.ProberIdle
    | events.ProbeResult
    | events.ProbeUnsupported
)
"""Events of which the latest is kept for a drill-down and nothing is computed."""


@dataclass(slots=True)
class DeviceView:
    """One device. `seen` is our monotonic clock at its last sample, None before the first.

    `mask_before` are the clock event reasons of the sample before the last. `achieved` has the best
    trusted rate of each precision in ops/s. `slow_for` counts the looks in a row at which its clock
    stood below that of its equals. `wrong` is a wrong result of any precision, which a later right
    one does not undo.
    """

    identity: events.Device
    board: Board
    ceilings: SharedCeilings | None = None
    sample: events.DeviceSample | None = None
    seen: float | None = None
    mask_before: int | None = None
    status: events.DeviceStatus | None = None
    status_seen: float | None = None
    xids: tuple[events.Xid, ...] = ()
    rates: dict[str, PrecisionState] = field(default_factory=dict)
    achieved: dict[str, float] = field(default_factory=dict)
    findings: dict[str, events.Finding] = field(default_factory=dict)
    occasional: dict[tuple[str, str], Occasional] = field(default_factory=dict)
    reported: bool = True
    slow_for: int = 0
    mfu: float | None = None
    wrong: events.RateMeasured | None = None

    @property
    def key(self) -> str:
        """The device's key in events."""
        return self.identity.device

    @property
    def label(self) -> str:
        """How people call it: "GPU 3" or "CPU"."""
        return "CPU" if self.identity.kind == "cpu" else f"GPU {self.identity.index}"

    @property
    def condition(self) -> events.DeviceCondition:
        """The condition last reported by its poller."""
        return self.status.condition if self.status is not None else "ok"

    def ceiling(self, precision: str) -> events.Ceiling | None:
        """The ceiling to hold a measured precision against, None where none is known."""
        return self.ceilings.by_precision.get(precision) if self.ceilings is not None else None

    def absence(self, precision: str) -> str | None:
        """Why a precision has no ceiling on this device, None where it has one or nobody knows."""
        return self.ceilings.absences.get(precision) if self.ceilings is not None else None

    def ratio(self, precision: str) -> float | None:
        """Best trusted rate / rated ceiling, never clamped; None without either."""
        achieved, ceiling = self.achieved.get(precision), self.ceiling(precision)
        if achieved is None or ceiling is None or ceiling.ops_per_second <= 0:
            return None
        return achieved / ceiling.ops_per_second

    def take_sample(self, sample: events.DeviceSample, now: float) -> None:
        """Keep a sample."""
        if self.sample is not None:
            self.mask_before = self.sample.clock_event_mask
        self.sample, self.seen = sample, now

    def take_rate(self, result: events.RateMeasured) -> None:
        """Keep a rate as the state of a single host does, without its history."""
        precision = self.rates.get(result.precision)
        if precision is None:
            if result.precision not in PRECISIONS:
                return
            precision = PrecisionState(result.precision, history=deque(maxlen=1))
            self.rates[result.precision] = precision
        precision.take(result)
        self._burst_ended()
        self.occasional.pop(("refused", result.precision), None)
        if precision.wrong is not None:
            self.wrong = precision.wrong
        best = precision.best
        trusted = (
            best is not None
            and not precision.is_remembered
            and best.valid
            and best.correct is not False
            and not best.emulated
        )
        if best is not None and trusted and best.rate_ops_per_second:
            self.achieved[result.precision] = best.rate_ops_per_second
        else:
            self.achieved.pop(result.precision, None)

    def take_occasional(self, event: Occasional) -> None:
        """Keep the latest of its kind, in order of arrival."""
        match event:
            case events.ProbeStarted() | events.ProberIdle():
                kind = ("activity", "")
            case events.ProbeResult():
                kind = ("probe", event.probe)
                self._burst_ended()
            case events.ProbeUnsupported():
                kind = ("refused", event.precision)
                self._burst_ended()
            case _:
                kind = (type(event).__name__, "")
        self.occasional.pop(kind, None)
        self.occasional[kind] = event

    def _burst_ended(self) -> None:
        if isinstance(self.occasional.get(("activity", "")), events.ProbeStarted):
            del self.occasional["activity", ""]

    def known(self) -> Iterator[tuple[events.AnyEvent, float | None]]:
        """Everything kept, in an order in which a state takes it, with the time it was seen."""
        yield self.identity, None
        if self.ceilings is not None:
            yield self.ceilings.of(self.identity), None
        if self.status is not None:
            yield self.status, self.status_seen
        if self.sample is not None:
            yield self.sample, self.seen
        for xid in self.xids:
            yield xid, None
        for rates in self.rates.values():
            for result in _results(rates):
                yield result, None
        for event in self.occasional.values():
            yield event, None


def _results(rates: PrecisionState) -> Iterator[events.RateMeasured]:
    """The results of a precision so that folding them gives the same again: the latest last."""
    if rates.remembered is not None:
        yield msgspec.structs.replace(rates.remembered, earlier_session=True)
    if rates.wrong is not None and rates.wrong is not rates.latest:
        yield rates.wrong
    for result in rates.by_shape.values():
        if result is not rates.latest and result is not rates.wrong:
            yield result
    if rates.latest is not None:
        yield rates.latest

"""Events of one device folded into what the views show: histories of fixed size, the latest of all.

Times named `seen` are this process's monotonic clock at the moment an event arrived, so that ages
are right whatever clock the source has.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from topsmon import events
from topsmon.ceilings.measured import at_measured_clock
from topsmon.growth import Growth
from topsmon.units import PRECISIONS

HISTORY_LENGTH = 480
"""Samples kept per device and quantity: 4 min at 2 Hz."""
RECENT_LENGTH = 24
"""Whole samples kept per device, for rules that look back a few seconds."""
SLICES_RECENT_LENGTH = 12
"""Readings of the MIG instances kept per device; they come about once a second."""
RATE_HISTORY_LENGTH = 120
XIDS_KEPT = 32
GROWING = ("pcie_replays", "nvlink_errors", "ecc_corrected_volatile", "ecc_uncorrected_aggregate")
"""Counts of errors in a sample that tell something only by their growth."""


@dataclass
class PrecisionState:
    """What is known of one precision on one device.

    `by_shape` holds the latest result per GEMM shape. `remembered` is a result of an earlier
    session, shown with its age until this session has measured. `wrong` is this session's last
    wrong result: a right one after it does not clear it, since corruption may come and go.
    """

    key: str
    by_shape: dict[tuple[int, int, int], events.RateMeasured] = field(default_factory=dict)
    latest: events.RateMeasured | None = None
    remembered: events.RateMeasured | None = None
    unsupported: str | None = None
    wrong: events.RateMeasured | None = None
    history: deque[float] = field(default_factory=lambda: deque(maxlen=RATE_HISTORY_LENGTH))

    @property
    def best(self) -> events.RateMeasured | None:
        """The result to show: the fastest valid one, else the fastest, else the remembered one.

        A burst that others disturbed never replaces a valid one; `latest` tells of it.

        A wrong result outranks all: it is a failure that must not hide behind a good one.
        """
        if self.latest is not None and self.latest.correct is False:
            return self.latest
        results = list(self.by_shape.values())
        valid = [result for result in results if result.valid and result.correct is not False]
        alike = valid or [result for result in results if result.correct is not False]
        if alike:
            return max(alike, key=lambda result: result.rate_ops_per_second or 0.0)
        return self.latest or self.remembered

    def take(self, result: events.RateMeasured) -> None:
        """Fold one result in; the history is the caller's, who knows the ceiling."""
        if result.earlier_session:
            self.remembered = msgspec.structs.replace(result, earlier_session=False)
            return
        self.latest = result
        self.unsupported = None
        if result.correct is False:
            self.wrong = result
        if result.shape is not None and result.rate_ops_per_second is not None:
            before = self.by_shape.get(result.shape)
            if _much_slower(result, before):
                self.by_shape.clear()
            if result.valid or before is None or not before.valid:
                self.by_shape[result.shape] = result

    @property
    def is_remembered(self) -> bool:
        """True when the result to show was measured by an earlier session."""
        return self.latest is None and self.remembered is not None


@dataclass
class ProberState:
    """The benchmark worker of a device, as far as its events tell."""

    ready: events.ProberReady | None = None
    measuring: str | None = None
    idle_reason: str | None = None
    worker: events.Worker | None = None


@dataclass
class DeviceState:
    """One device: identity, ceilings, the latest of each kind of event, histories.

    `refused` says why a laboratory probe cannot run on it. `busy`, `memory_busy`, `power_watts`,
    `clock_mhz` hold one value a sample, None where it was not measured. `growth` has the counts of
    errors that have grown since the first sample, `most_links_up` the most NVLinks seen up.
    """

    identity: events.Device
    ceilings: events.Ceilings | None = None
    sample: events.DeviceSample | None = None
    sample_seen: float | None = None
    status: events.DeviceStatus | None = None
    status_seen: float | None = None
    processes: events.Processes | None = None
    slices: events.Slices | None = None
    recent_slices: deque[events.Slices] = field(
        default_factory=lambda: deque(maxlen=SLICES_RECENT_LENGTH)
    )
    xids: deque[events.Xid] = field(default_factory=lambda: deque(maxlen=XIDS_KEPT))
    prober: ProberState = field(default_factory=ProberState)
    highest_clock_mhz: float | None = None
    reported: bool = True
    rates: dict[str, PrecisionState] = field(
        default_factory=lambda: {key: PrecisionState(key) for key in PRECISIONS}
    )
    probes: dict[str, events.ProbeResult] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    recent: deque[events.DeviceSample] = field(default_factory=lambda: deque(maxlen=RECENT_LENGTH))
    busy: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY_LENGTH))
    memory_busy: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY_LENGTH))
    power_watts: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY_LENGTH))
    clock_mhz: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY_LENGTH))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY_LENGTH))
    growth: dict[str, Growth] = field(default_factory=lambda: {name: Growth() for name in GROWING})
    most_links_up: int | None = None

    @property
    def key(self) -> str:
        """The device's key in events: a GPU's UUID, or "cpu"."""
        return self.identity.device

    @property
    def label(self) -> str:
        """How people call it: "GPU 3" or "CPU"."""
        return "CPU" if self.identity.kind == "cpu" else f"GPU {self.identity.index}"

    @property
    def condition(self) -> events.DeviceCondition:
        """The condition last reported by the poller; "ok" when it never complained."""
        return self.status.condition if self.status is not None else "ok"

    def age(self, now: float) -> float | None:
        """Seconds since the last sample arrived, None before the first."""
        return None if self.sample_seen is None else now - self.sample_seen

    def ceiling(self, precision: str) -> events.Ceiling | None:
        """The ceiling to hold a measured precision against, None where none is known."""
        if self.ceilings is None:
            return None
        by_key = {ceiling.precision: ceiling for ceiling in self.ceilings.rates}
        for key in PRECISIONS[precision].ceilings:
            if key in by_key:
                return by_key[key]
        return None

    def absence(self, precision: str) -> str | None:
        """Why a precision has no ceiling on this device, None where it has one or nobody knows."""
        if self.ceilings is None or self.ceiling(precision) is not None:
            return None
        for key in PRECISIONS[precision].ceilings:
            if key in self.ceilings.absent:
                return self.ceilings.absent[key]
        return self.ceilings.unknown

    def ratio(self, precision: str) -> float | None:
        """Achieved / rated ceiling, never clamped; None without a rate or a ceiling."""
        result, ceiling = self.rates[precision].best, self.ceiling(precision)
        if result is None or result.rate_ops_per_second is None or ceiling is None:
            return None
        return result.rate_ops_per_second / ceiling.ops_per_second

    def held_ceiling(self, precision: str) -> float | None:
        """Ceiling in ops/s at the clock held during the best burst: ops per clock x held clock."""
        result, ceiling = self.rates[precision].best, self.ceiling(precision)
        if result is None or result.held_clock_mhz is None or ceiling is None:
            return None
        if ceiling.ops_per_clock is not None:
            return ceiling.ops_per_clock * result.held_clock_mhz * 1e6
        if ceiling.rated_clock_mhz:
            return ceiling.ops_per_second * result.held_clock_mhz / ceiling.rated_clock_mhz
        return None

    def held_ratio(self, precision: str) -> float | None:
        """Achieved / ceiling at held clock, never clamped."""
        result, held = self.rates[precision].best, self.held_ceiling(precision)
        if result is None or result.rate_ops_per_second is None or not held:
            return None
        return result.rate_ops_per_second / held

    def sampled_span(self) -> float:
        """Seconds that the histories cover."""
        return self.times[-1] - self.times[0] if len(self.times) > 1 else 0.0


def apply_to_device(device: DeviceState, event: events.AnyEvent, now: float) -> None:
    """Fold an event about a device in. `now` is this process's monotonic clock, in seconds."""
    match event:
        case events.DeviceSample():
            _apply_sample(device, event, now)
        case events.Ceilings():
            device.ceilings = event
            _raise_ceilings(device)
        case events.DeviceStatus():
            device.status, device.status_seen = event, now
        case events.Processes():
            device.processes = event
        case events.Slices() | events.Xid():
            _apply_report(device, event)
        case events.RateMeasured():
            _apply_rate(device, event)
        case events.ProbeResult():
            device.prober.measuring = None
            device.probes[event.probe] = event
        case events.ProbeUnsupported():
            _apply_refusal(device, event)
        case events.ProberReady():
            device.prober.ready = event
        case events.ProbeStarted():
            device.prober.measuring = event.precision
            device.prober.idle_reason = None
        case events.ProberIdle():
            device.prober.measuring = None
            device.prober.idle_reason = event.reason
        case _:
            pass


def _apply_report(device: DeviceState, event: events.Slices | events.Xid) -> None:
    if isinstance(event, events.Xid):
        device.xids.append(event)
    else:
        device.slices = event
        device.recent_slices.append(event)


def _apply_refusal(device: DeviceState, event: events.ProbeUnsupported) -> None:
    device.prober.measuring = None
    if event.precision in device.rates:
        device.rates[event.precision].unsupported = event.reason
    else:
        device.refused[event.precision] = event.reason


def _apply_sample(device: DeviceState, sample: events.DeviceSample, now: float) -> None:
    device.sample, device.sample_seen = sample, now
    device.recent.append(sample)
    device.busy.append(sample.busy_ratio)
    device.memory_busy.append(sample.memory_busy_ratio)
    device.power_watts.append(sample.power_watts)
    device.clock_mhz.append(sample.sm_clock_mhz)
    device.times.append(sample.monotonic)
    for name, growth in device.growth.items():
        count = getattr(sample, name)
        if count is not None:
            growth.add(sample.monotonic, count)
    if sample.nvlink_links_up is not None:
        device.most_links_up = max(device.most_links_up or 0, sample.nvlink_links_up)


def _apply_rate(device: DeviceState, result: events.RateMeasured) -> None:
    device.prober.measuring = None
    precision = device.rates.get(result.precision)
    if precision is None:
        return
    learn_clock(device, result)
    precision.take(result)
    if result.earlier_session:
        return
    ratio = device.ratio(result.precision)
    if ratio is not None and result.valid:
        precision.history.append(ratio)


def learn_clock(device: DeviceState, result: events.RateMeasured) -> None:
    """Keep the highest clock measured on a CPU: virtual machines tell only a nominal one."""
    clock = result.held_clock_mhz
    if device.identity.kind == "cpu" and clock and clock > (device.highest_clock_mhz or 0.0):
        device.highest_clock_mhz = clock
        _raise_ceilings(device)


def _raise_ceilings(device: DeviceState) -> None:
    if device.ceilings is not None and device.highest_clock_mhz is not None:
        device.ceilings = at_measured_clock(device.ceilings, device.highest_clock_mhz)


def _much_slower(result: events.RateMeasured, before: events.RateMeasured | None) -> bool:
    """True when a shape lost a tenth of its rate: then the other shapes' rates are history too.

    The quartiles are compared, so that noise is no loss.
    """
    if before is None or not before.valid or not result.valid:
        return False
    now = result.rate_high_ops_per_second or result.rate_ops_per_second or 0.0
    then = before.rate_low_ops_per_second or before.rate_ops_per_second or 0.0
    return now < 0.9 * then

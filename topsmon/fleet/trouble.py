"""What is wrong in a fleet, from the latest values alone: a sieve that says where to look first.

It finds what stands out at once over thousands of devices; the whole diagnosis of a device, with
evidence and remedy, is that of its host's full state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from topsmon import events
from topsmon.diagnosis import SEVERITIES, WORDS, clock_events, xid
from topsmon.diagnosis.peers import SPREAD
from topsmon.fleet.aggregate import quantile
from topsmon.fleet.boards import Board
from topsmon.fleet.device_view import DeviceView
from topsmon.fleet.host_view import HostView, LinkCondition
from topsmon.fleet.state import FleetState, Outage
from topsmon.fleet.words import counted
from topsmon.units import PRECISIONS, duration, percent, plain

SECONDS = 1.0
"""Least time between two looks over the whole fleet."""
REFERENCE_LOOKS = 5
"""What equals reach is computed anew after so many looks: it changes slowly."""
REFERENCE = 0.95
"""Equal boards are held against this quantile of their rates: the best where they are under 20."""
BUSY = 0.9
"""Clocks are compared among devices that are busier than this."""
SLOW_LOOKS = 5
"""So many looks in a row a clock must stand low: phases of a job pass."""
CONNECTING_SECONDS = 10.0
ASKED_AGAIN = "It is the server that is silent, not the hosts; topsmon goes on asking it."


class Trouble(NamedTuple):
    """One thing that is wrong with a device, or with a host where `device` is None."""

    host: str
    device: DeviceView | None
    severity: events.Severity
    word: str
    text: str

    @property
    def label(self) -> str:
        """The device's name on its host, "" for the host."""
        return self.device.label if self.device is not None else ""


class References(NamedTuple):
    """What equal boards reach: ops/s by board and precision, MHz of busy ones by board."""

    rates: dict[tuple[Board, str], float]
    clocks: dict[Board, float]


class Sieve:
    """Looks over the fleet at most once a second, however often it is asked."""

    def __init__(self) -> None:
        self.troubles: tuple[Trouble, ...] = ()
        self.worst: dict[tuple[str, str], Trouble] = {}
        self.references = References({}, {})
        self._version: int | None = None
        self._at = 0.0
        self._looks = 0

    def update(self, fleet: FleetState, now: float) -> tuple[Trouble, ...]:
        """Return all troubles, worst first. `now` is our monotonic clock, in s."""
        if self._version is not None and abs(now - self._at) < SECONDS:
            return self.troubles
        self._version, self._at = fleet.version, now
        hosts = [(view, fleet.condition_of(view, now)) for view in fleet.hosts.values()]
        live = [view for view, condition in hosts if condition == "live"]
        if self._looks % REFERENCE_LOOKS == 0 or not self.references.clocks:
            self.references = references(live)
        self._looks += 1
        known = self.references
        found = [
            trouble
            for view, condition in hosts
            if fleet.outage is None or condition != "stale"
            for trouble in _host(view, condition, now)
        ]
        found += [outage_trouble(fleet, fleet.outage, now)] if fleet.outage is not None else []
        for view in live:
            for device in view.shown:
                if not _is_quiet(device, known):
                    found += device_troubles(view, device, known)
        found.sort(key=badness)
        self.troubles = tuple(found)
        self.worst = {}
        for trouble in found:
            key = trouble.device.key if trouble.device is not None else ""
            self.worst.setdefault((trouble.host, key), trouble)
        return self.troubles

    def of(self, host: str, device: DeviceView) -> Trouble | None:
        """The worst of one device, else of its host."""
        return self.worst.get((host, device.key)) or self.worst.get((host, ""))


def outage_trouble(fleet: FleetState, outage: Outage, now: float) -> Trouble:
    """The one trouble of a fleet whose server does not answer, with the age of what is shown."""
    seen = [view.seen for view in fleet.hosts.values() if view.seen is not None]
    age = f"; all numbers are {duration(now - max(seen))} old" if seen else "; nothing is known yet"
    return Trouble(outage.server, None, "fail", "STALE", plain(outage.problem, 200) + age)


def outage_finding(fleet: FleetState, outage: Outage, now: float, wall: float) -> events.Finding:
    """The same as a finding. `wall` is epoch time in s."""
    trouble = outage_trouble(fleet, outage, now)
    return events.Finding(
        time=wall,
        monotonic=now,
        source=outage.server,
        code="fleet-server",
        severity=trouble.severity,
        word=trouble.word,
        title=f"{outage.server} does not answer",
        cause=trouble.text,
        remedy=ASKED_AGAIN,
    )


def badness(trouble: Trouble) -> tuple[int, int]:
    """Sort key: worst first."""
    word = WORDS.index(trouble.word) if trouble.word in WORDS else len(WORDS)
    return SEVERITIES.index(trouble.severity), word


def references(hosts: Iterable[HostView]) -> References:
    """What the good ones among equal boards reach, where there are at least two."""
    rates: dict[tuple[Board, str], list[float]] = {}
    clocks: dict[Board, list[float]] = {}
    for host in hosts:
        for device in host.shown:
            for precision, achieved in device.achieved.items():
                rates.setdefault((device.board, precision), []).append(achieved)
            sample = device.sample
            if sample is None or sample.sm_clock_mhz is None:
                continue
            if sample.busy_ratio is not None and sample.busy_ratio >= BUSY:
                clocks.setdefault(device.board, []).append(sample.sm_clock_mhz)
    return References(
        {key: quantile(sorted(known), REFERENCE) for key, known in rates.items() if len(known) > 1},
        {
            key: quantile(sorted(known), REFERENCE)
            for key, known in clocks.items()
            if len(known) > 1
        },
    )


def _host(view: HostView, condition: LinkCondition, now: float) -> Iterator[Trouble]:
    detail = f": {plain(view.detail, 200)}" if view.detail else ""
    seen = view.seen if view.seen is not None else view.since
    age = duration(now - seen) if seen is not None else ""
    if condition == "refused":
        yield Trouble(view.name, None, "fail", "LOST", f"refused{detail}")
    elif condition == "gone":
        last = f", last heard of {age} ago" if view.seen is not None else ""
        yield Trouble(view.name, None, "fail", "LOST", f"host gone{detail}{last}")
    elif condition == "stale":
        yield Trouble(view.name, None, "warn", "STALE", f"silent for {age}{detail}")
    elif condition == "connecting":
        since = view.since
        if since is not None and now - since > CONNECTING_SECONDS:
            yield Trouble(view.name, None, "warn", "N/A", f"still connecting{detail}")
    if condition != "live":
        return
    for problem in view.problems.values():
        yield Trouble(view.name, None, "warn", "N/A", plain(problem.message, 200))
    for finding in view.findings.values():
        if finding.severity != "info":
            yield _told(view, None, finding)


def _is_quiet(device: DeviceView, known: References) -> bool:
    """True where nothing can stand out: most devices, so that a look is cheap."""
    sample, status = device.sample, device.status
    if (
        sample is None
        or device.xids
        or device.findings
        or device.wrong is not None
        or device.slow_for
        or (status is not None and status.condition != "ok")
        or sample.ecc_uncorrected_volatile
        or sample.row_remap_failed
        or (sample.clock_event_mask and device.mask_before)
    ):
        return False
    board = device.board
    for precision, achieved in device.achieved.items():
        if achieved < (1.0 - SPREAD) * known.rates.get((board, precision), 0.0):
            return False
    clock = sample.sm_clock_mhz
    return clock is None or clock >= (1.0 - SPREAD) * known.clocks.get(board, 0.0)


def device_troubles(view: HostView, device: DeviceView, known: References) -> Iterator[Trouble]:
    """What stands out in the latest values of a device of a live host."""
    condition = device.condition
    if condition == "lost":
        yield _of(view, device, "fail", "LOST", _with_xid(device, "not on the bus any more"))
        return
    if condition != "ok" and device.status is not None:
        detail = plain(device.status.detail, 200)
        if condition == "stalled":
            yield _of(view, device, "fail", "STALE", f"driver does not answer: {detail}")
        elif condition == "error":
            yield _of(view, device, "warn", "N/A", detail)
    if device.xids or device.findings or device.rates:
        yield from _reported(view, device, known)
    sample = device.sample
    if sample is None:
        return
    if sample.ecc_uncorrected_volatile or sample.row_remap_failed:
        yield _of(view, device, "fail", "FAIL", _memory_words(sample))
    mask = sample.clock_event_mask
    if mask and device.mask_before:
        yield from _throttled(view, device, mask & device.mask_before & clock_events.FAULTS)
    if sample.sm_clock_mhz is not None:
        yield from _low_clock(view, device, sample.sm_clock_mhz, known)


def _of(
    view: HostView, device: DeviceView, severity: events.Severity, word: str, text: str
) -> Trouble:
    return Trouble(view.name, device, severity, word, text)


def _told(view: HostView, device: DeviceView | None, finding: events.Finding) -> Trouble:
    title = plain(finding.title, 200)
    if device is not None:
        title = title.removeprefix(device.label).strip()
    cause = f": {plain(finding.cause, 200)}" if finding.cause else ""
    return Trouble(view.name, device, finding.severity, plain(finding.word, 6), title + cause)


def _with_xid(device: DeviceView, text: str) -> str:
    return f"{text}; XID {device.xids[-1].code}" if device.xids else text


def _memory_words(sample: events.DeviceSample) -> str:
    if sample.ecc_uncorrected_volatile:
        return counted(sample.ecc_uncorrected_volatile, "uncorrectable memory error")
    return "a memory row could not be remapped"


def _reported(view: HostView, device: DeviceView, known: References) -> Iterator[Trouble]:
    """What the device, its host or a measurement has said in so many words."""
    for event in device.xids[::-1]:
        meaning = xid.meaning(event.code)
        if meaning is not None and meaning.weight in {"hardware", "reset"}:
            severity: events.Severity = "fail" if meaning.weight == "hardware" else "warn"
            yield _of(view, device, severity, "FAIL", f"XID {event.code}: {meaning.meaning}")
            break
    for finding in device.findings.values():
        if finding.severity != "info":
            yield _told(view, device, finding)
    if device.wrong is not None:
        label = _label(device.wrong.precision)
        yield _of(view, device, "fail", "FAIL", f"{label} gave a wrong result")
    for precision, achieved in device.achieved.items():
        reference = known.rates.get((device.board, precision))
        if reference and achieved < (1.0 - SPREAD) * reference:
            below = percent(1.0 - achieved / reference, 0)
            rated = device.ratio(precision)
            share = f" {percent(rated)} of rated," if rated is not None else ""
            text = f"{_label(precision)}{share} {below} below equals"
            yield _of(view, device, "fail", "SLOW", text + _limited(device))


def _label(precision: str) -> str:
    return PRECISIONS[precision].label if precision in PRECISIONS else plain(precision, 20)


def _limited(device: DeviceView) -> str:
    """Why its clock is held down, as far as the driver says."""
    mask = device.sample.clock_event_mask if device.sample is not None else None
    reasons = [event.name for event in clock_events.decode(mask or 0) if event.treatment != "quiet"]
    return f" ({', '.join(reasons)})" if reasons else ""


def _throttled(view: HostView, device: DeviceView, mask: int) -> Iterator[Trouble]:
    if not mask:
        return
    sample = device.sample
    heat = sample.temperature_celsius if sample is not None else None
    degrees = f" at {heat:.0f} °C" if heat is not None else ""
    word = "HOT" if mask & clock_events.THERMAL else "SLOW"
    yield _of(view, device, "fail", word, clock_events.names(mask) + degrees)


def _low_clock(
    view: HostView, device: DeviceView, clock: float, known: References
) -> Iterator[Trouble]:
    """A busy device whose clock stays below that of equal busy ones."""
    reference = known.clocks.get(device.board)
    busy = device.sample.busy_ratio if device.sample is not None else None
    if not reference or busy is None or busy < BUSY or clock >= (1.0 - SPREAD) * reference:
        device.slow_for = 0
        return
    device.slow_for += 1
    if device.slow_for >= SLOW_LOOKS:
        text = f"SM clock {clock:.0f} MHz, equal busy GPUs hold {reference:.0f}{_limited(device)}"
        yield _of(view, device, "warn", "SLOW", text)

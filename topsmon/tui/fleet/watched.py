"""What the hosts tab shows: numbers taken at most twice a second, and the user's choices."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from topsmon import events
from topsmon.fleet.aggregate import Aggregate, Totals
from topsmon.fleet.device_view import DeviceView
from topsmon.fleet.host_view import HostView, LinkCondition
from topsmon.fleet.metrics import METRICS, Metric
from topsmon.fleet.state import FleetState
from topsmon.fleet.trouble import Sieve, Trouble, badness

SECONDS = 0.45
"""Least time between two looks at the numbers; keys are answered at once."""
WORST_KEPT = 60
AT_ONCE = 1000
"""Up to so many devices all metrics are taken anew at each look."""
SORTS = ("by name", "worst first", "by metric")
"""The first keeps every host in its place, whatever happens."""
FILTER_MOST = 60
DRILL_DOWN = "Enter shows the host: cause, evidence, what to do"
SILENT = "Is it up, and reached? Enter shows what was last heard of it."


class HostRow(NamedTuple):
    """One host as the tab shows it; `trouble` is its worst, or that of its devices."""

    view: HostView
    condition: LinkCondition
    trouble: Trouble | None


@dataclass(frozen=True)
class Hosts:
    """Everything that the tab draws. `rows` are the hosts that pass the filter, in order.

    `selected` is the host under the cursor and `shown` the one that the other tabs are about.
    `aggregates` holds the other metrics' distributions as of some seconds ago. `marks` has the
    worst trouble of a host and device key. `folded`: one cell a host instead of one a device, None:
    as it fits.
    """

    rows: tuple[HostRow, ...]
    all_hosts: int
    selected: str | None
    shown: str | None
    metric: Metric
    aggregate: Aggregate
    aggregates: Mapping[str, Aggregate]
    totals: Totals
    troubles: tuple[Trouble, ...]
    marks: Mapping[tuple[str, str], Trouble]
    boards: Mapping[str, int]
    simulated: str | None = None
    sort: str = SORTS[0]
    filter: str = ""
    asking: bool = False
    folded: bool | None = None

    @property
    def place(self) -> int:
        """The row under the cursor, 0 where there is none."""
        names = (place for place, row in enumerate(self.rows) if row.view.name == self.selected)
        return next(names, 0)

    @property
    def row(self) -> HostRow | None:
        """The host under the cursor."""
        return self.rows[self.place] if self.rows else None

    def trouble_of(self, host: str, device: DeviceView) -> Trouble | None:
        """What is wrong with a device itself."""
        return self.marks.get((host, device.key))


class Watch:
    """Keeps the cursor and the choices, and looks at the fleet when it is time to."""

    def __init__(self, fleet: FleetState) -> None:
        self.fleet = fleet
        self.sort = SORTS[0]
        self.metric = next(iter(METRICS))
        self.filter = ""
        self.asking = False
        self.folded: bool | None = None
        self.hosts: Hosts | None = None
        self._sieve = Sieve()
        self._aggregates: dict[str, Aggregate] = {}
        self._turn = 0
        self._moved_to: str | None = None
        self._at: float | None = None
        self._choices: tuple[str, str, str] = ("", "", "")

    def update(self, shown: str | None, now: float) -> Hosts:
        """Return what to draw. `shown` is the host of the other tabs, `now` our clock in s."""
        choices = (self.sort, self.metric, self.filter)
        old = self.hosts
        fresh = self._at is not None and abs(now - self._at) < SECONDS and choices == self._choices
        if old is None or not fresh:
            self._at, self._choices = now, choices
            old = self._look(now)
        self.hosts = Hosts(
            rows=old.rows,
            all_hosts=old.all_hosts,
            selected=self._selected(old),
            shown=shown,
            metric=old.metric,
            aggregate=old.aggregate,
            aggregates=old.aggregates,
            totals=old.totals,
            troubles=old.troubles,
            marks=old.marks,
            boards=old.boards,
            simulated=old.simulated,
            sort=self.sort,
            filter=self.filter,
            asking=self.asking,
            folded=self.folded,
        )
        return self.hosts

    def _selected(self, hosts: Hosts) -> str | None:
        """Where the cursor was put, else the host with the worst trouble, else the first."""
        if any(row.view.name == self._moved_to for row in hosts.rows):
            return self._moved_to
        names = {row.view.name for row in hosts.rows}
        for trouble in hosts.troubles:
            if trouble.host in names:
                return trouble.host
        return hosts.rows[0].view.name if hosts.rows else None

    def _look(self, now: float) -> Hosts:
        fleet, metric = self.fleet, METRICS[self.metric]
        troubles = self._sieve.update(fleet, now)
        wanted = self.filter.casefold()
        only = {name for name in fleet.hosts if wanted in name.casefold()} if wanted else None
        if only is not None:
            server = fleet.outage.server if fleet.outage is not None else None
            troubles = tuple(one for one in troubles if one.host in only or one.host == server)
        worst_of: dict[str, Trouble] = {}
        for trouble in troubles:
            worst_of.setdefault(trouble.host, trouble)
        conditions = fleet.conditions(now, only)
        rows = [HostRow(view, condition, worst_of.get(view.name)) for view, condition in conditions]
        precision = fleet.default_precision()
        aggregate = fleet.aggregate(
            self.metric, now, precision=precision, worst=WORST_KEPT, only=only
        )
        self._aggregates[self.metric] = aggregate
        self._refresh_others(now, precision, only)
        boards: dict[str, int] = {}
        for view, _ in conditions:
            for device in view.shown:
                boards[device.board.name] = boards.get(device.board.name, 0) + 1
        return Hosts(
            rows=tuple(self._sorted(rows, metric, precision)),
            all_hosts=len(fleet.hosts),
            selected=None,
            shown=None,
            metric=metric,
            aggregate=aggregate,
            aggregates=dict(self._aggregates),
            totals=fleet.totals(now, precision, only=only),
            troubles=troubles,
            marks=self._sieve.worst,
            boards=boards,
            simulated=_simulated(rows),
        )

    def _refresh_others(self, now: float, precision: str, only: set[str] | None) -> None:
        """Take the other metrics anew; one at a time, in turn, where all would cost too much."""
        others = [key for key in METRICS if key != self.metric]
        if sum(len(view.shown) for view in self.fleet.hosts.values()) > AT_ONCE:
            missing = [key for key in others if key not in self._aggregates]
            self._turn = (self._turn + 1) % len(others)
            others = missing[:1] or [others[self._turn]]
        for key in others:
            self._aggregates[key] = self.fleet.aggregate(
                key, now, precision=precision, worst=0, only=only
            )

    def _sorted(self, rows: list[HostRow], metric: Metric, precision: str) -> list[HostRow]:
        if self.sort == SORTS[1]:
            last = (9, 0)
            return sorted(rows, key=lambda row: badness(row.trouble) if row.trouble else last)
        if self.sort == SORTS[2]:
            sign = 1.0 if metric.worse == "low" else -1.0
            return sorted(rows, key=lambda row: _extreme(row, metric, precision, sign))
        return sorted(rows, key=lambda row: _natural(row.view.name))

    # Choices --------------------------------------------------------------------------------------

    def move(self, step: int) -> None:
        """Put the cursor `step` hosts on."""
        hosts = self.hosts
        if hosts is not None and hosts.rows:
            place = min(max(hosts.place + step, 0), len(hosts.rows) - 1)
            self._moved_to = hosts.rows[place].view.name

    def select(self, host: str) -> None:
        """Put the cursor on a host."""
        self._moved_to = host

    def move_metric(self, step: int) -> None:
        """Choose the next metric, or the one before."""
        keys = list(METRICS)
        self.metric = keys[(keys.index(self.metric) + step) % len(keys)]

    def sort_next(self) -> None:
        """Use the next order."""
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]

    def set_filter(self, text: str) -> None:
        """Show only hosts with this in their names."""
        if text != self.filter:
            self.filter = text[:FILTER_MOST]
            self._aggregates.clear()


def finding_of(trouble: Trouble, now: float, wall: float) -> events.Finding:
    """A trouble as a finding, for the line under the header."""
    where = f"{trouble.host}  {trouble.label}".rstrip()
    return events.Finding(
        time=wall,
        monotonic=now,
        source=trouble.host,
        code="fleet",
        severity=trouble.severity,
        word=trouble.word,
        title=f"{where}  {trouble.text}",
        device=trouble.device.key if trouble.device is not None else None,
        remedy=SILENT if trouble.device is None and trouble.word == "LOST" else DRILL_DOWN,
    )


def _simulated(rows: list[HostRow]) -> str | None:
    for row in rows[:1]:
        return row.view.hello.simulated if row.view.hello is not None else None
    return None


def _extreme(row: HostRow, metric: Metric, precision: str, sign: float) -> float:
    """The worst value of a host as a sort key; hosts without one come last."""
    if row.condition != "live":
        return float("inf")
    values = (metric.read(device, precision) for device in row.view.shown)
    return min((sign * value for value in values if value is not None), default=float("inf"))


@functools.lru_cache(maxsize=1 << 15)
def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which node9 comes before node10."""
    parts: list[tuple[int, int, str]] = []
    digits = text = ""
    for char in name:
        if char.isascii() and char.isdigit():
            if text:
                parts.append((1, 0, text))
                text = ""
            digits += char
        else:
            if digits:
                parts.append((0, int(digits[:18]), digits))
                digits = ""
            text += char
    if text:
        parts.append((1, 0, text))
    if digits:
        parts.append((0, int(digits[:18]), digits))
    return tuple(parts)

"""The state of a fleet: events of many hosts folded into the latest values, nothing else.

One event costs a look-up and an assignment, whatever the number of devices. Histories exist only
for a host that somebody looks at: `state_of` builds its full state, which is then fed as well.
Times are this process's monotonic clock, so that ages are right whatever clock a host has.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from topsmon import events
from topsmon.device_state import XIDS_KEPT
from topsmon.fleet import aggregate as aggregates
from topsmon.fleet import metrics
from topsmon.fleet.boards import BoardPool, CeilingsPool
from topsmon.fleet.device_view import DeviceView, Occasional
from topsmon.fleet.host_view import HOST_EVENTS, HostView, LinkCondition
from topsmon.run_state import RUN_EVENTS
from topsmon.state import State

STALE_INTERVALS = 3
"""A live host is stale after so many intervals without a word, and at the least `STALE_SECONDS`."""
STALE_SECONDS = 2.5
GONE_INTERVALS = 30
"""And gone, whatever its link says, after so many, at the least `GONE_SECONDS`."""
GONE_SECONDS = 15.0


class Outage(NamedTuple):
    """What all hosts are known from does not answer: nothing is said about the hosts themselves.

    `since` is our monotonic clock.
    """

    server: str
    problem: str
    since: float


class FleetState:
    """Everything that is known of many hosts now.

    `interval` is the sampling period asked of the hosts in s; None while they are paused, so that
    none of them counts as silent.
    """

    def __init__(self, interval: float | None = 1.0) -> None:
        self.hosts: dict[str, HostView] = {}
        self.version = 0
        self.boards = BoardPool()
        self.ceilings = CeilingsPool()
        self.outage: Outage | None = None
        self._open: dict[str, State] = {}
        self._latest = 0.0
        self._interval = interval

    @property
    def interval(self) -> float | None:
        """The sampling period in s, None while nothing is due."""
        return self._interval

    @interval.setter
    def interval(self, seconds: float | None) -> None:
        self._interval = seconds
        for state in self._open.values():
            state.interval = seconds
            state.sampling_since = None if seconds is None else self._latest

    # Hosts ----------------------------------------------------------------------------------------

    def add(self, host: str) -> HostView:
        """Return a host's view; a new name is "connecting"."""
        view = self.hosts.get(host)
        if view is None:
            view = self.hosts[host] = HostView(host)
            self.version += 1
        return view

    def remove(self, host: str) -> None:
        """Forget a host."""
        if self.hosts.pop(host, None) is not None:
            self.version += 1
        self._open.pop(host, None)

    def link(self, host: str, condition: LinkCondition, detail: str, now: float) -> None:
        """Take what is known of the connection; `detail` is for people ("Connection refused")."""
        view = self.add(host)
        if condition != view.link or view.since is None:
            view.since = now
        if condition == "live" and view.link != "live":
            view.seen = now  # silence counts from the connection on
        view.link, view.detail = condition, detail
        self._latest = max(self._latest, now)
        self.version += 1

    def condition(self, host: str, now: float) -> LinkCondition:
        """How a host stands now: what was told of it, or that it is silent though it is live."""
        return self.condition_of(self.hosts[host], now)

    def condition_of(self, view: HostView, now: float) -> LinkCondition:
        """The same for a host's view."""
        if view.link not in {"live", "stale"}:
            return view.link
        if self.outage is not None:
            return "stale"
        interval = self.interval
        if interval is None or view.seen is None:
            return view.link
        silent = now - view.seen
        if silent > max(GONE_SECONDS, GONE_INTERVALS * interval):
            return "gone"
        if silent > max(STALE_SECONDS, STALE_INTERVALS * interval):
            return "stale"
        return view.link

    # Drill-down -----------------------------------------------------------------------------------

    def state_of(self, host: str) -> State:
        """Return the full state of a host, and feed it from now on until `release`.

        It begins with the latest of everything that is kept, so without histories. KeyError for a
        host that is not known.
        """
        state = self._open.get(host)
        if state is None:
            view = self.hosts[host]
            state = State()
            state.interval = self.interval
            for event, seen in view.known():
                state.apply(event, self._latest if seen is None else seen)
            self._open[host] = state
        return state

    def release(self, host: str) -> None:
        """Stop feeding a host's full state."""
        self._open.pop(host, None)

    # Events ---------------------------------------------------------------------------------------

    def receive(self, host: str, event: events.AnyEvent, now: float) -> None:
        """Fold one event of a host in. `now` is this process's monotonic clock, in s."""
        view = self.hosts.get(host)
        if view is None:
            view = self.add(host)
        if view.link == "connecting":
            view.link, view.since = "live", now
        view.seen = self._latest = now
        self.version += 1
        if type(event) is events.DeviceSample:
            device = view.devices.get(event.device)
            if device is not None:
                device.take_sample(event, now)
            else:
                view.hold(event)
        else:
            self._apply(view, event, now)
        if self._open:
            state = self._open.get(host)
            if state is not None:
                state.apply(event, now)

    def _apply(self, view: HostView, event: events.AnyEvent, now: float) -> None:
        if isinstance(event, HOST_EVENTS):
            view.take(event)
        elif isinstance(event, events.Device):
            device = view.add(event, self.boards.of(event))
            for waiting in view.take_waiting(event.device):
                self._apply_device(device, waiting, now)
        elif isinstance(event, (events.Run, *RUN_EVENTS)):
            view.take_run(event, now)
        elif not isinstance(event, (events.CheckResult, events.Recording)):
            known = view.devices.get(event.device)
            if known is None:
                view.hold(event)
            else:
                self._apply_device(known, event, now)

    def _apply_device(self, device: DeviceView, event: events.AnyEvent, now: float) -> None:
        match event:
            case events.DeviceSample():
                device.take_sample(event, now)
            case events.Ceilings():
                device.ceilings = self.ceilings.share(device.identity, event)
            case events.DeviceStatus():
                device.status, device.status_seen = event, now
            case events.Xid():
                device.xids = (*device.xids, event)[-XIDS_KEPT:]
            case events.RateMeasured():
                device.take_rate(event)
            case (
                events.Processes()
                | events.Slices()
                | events.ProberReady()
                | events.ProbeStarted()
                | events.ProberIdle()
                | events.ProbeResult()
                | events.ProbeUnsupported()
            ):
                occasional: Occasional = event
                device.take_occasional(occasional)
            case _:
                pass

    # Numbers --------------------------------------------------------------------------------------

    def aggregate(
        self,
        metric: str,
        now: float | None = None,
        *,
        precision: str | None = None,
        worst: int = 10,
        only: Container[str] | None = None,
    ) -> aggregates.Aggregate:
        """Distribution of a metric (a key of `METRICS`) over the devices of all live hosts.

        `now` is our monotonic clock, by default that of the last event. `precision` is that of the
        ratio; by default `default_precision`. `only` names the hosts to look at, None: all.
        KeyError for an unknown metric.
        """
        now = self._latest if now is None else now
        chosen = metrics.METRICS[metric]
        if metric == "mfu":
            metrics.update_mfu(self.hosts.values())
        live, others = [], 0
        for view, condition in self.conditions(now, only):
            if condition == "live":
                live.append(view)
            else:
                others += len(view.shown)
        key = precision or self.default_precision()
        return aggregates.over(live, chosen, key, worst=worst, others=others)

    def totals(
        self, now: float, precision: str | None = None, *, only: Container[str] | None = None
    ) -> aggregates.Totals:
        """Sums over the fleet: hosts by condition, devices, power, achieved and rated rates."""
        key = precision or self.default_precision()
        return aggregates.totals(self.conditions(now, only), key)

    def conditions(
        self, now: float, only: Container[str] | None = None
    ) -> list[tuple[HostView, LinkCondition]]:
        """All hosts, or those that `only` names, with how they stand now."""
        return [
            (view, self.condition_of(view, now))
            for name, view in self.hosts.items()
            if only is None or name in only
        ]

    def default_precision(self) -> str:
        """The precision that says most: the first of the usual ones that any board has."""
        known = self.ceilings.precisions()
        return next((key for key in metrics.USUAL_PRECISIONS if key in known), "bf16")

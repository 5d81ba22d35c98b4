"""What is wrong with the connection to a host, as a finding."""

from __future__ import annotations

import time

from topsmon import events
from topsmon.fleet.state import FleetState
from topsmon.units import duration, plain


def link_finding(fleet: FleetState, host: str, now: float) -> events.Finding | None:
    """Say that a host cannot be read now; None where it is. `now` is our monotonic clock.

    Never a failure: what cannot be seen is not known to be broken.
    """
    view = fleet.hosts[host]
    condition = fleet.condition(host, now)
    name, detail = plain(host, 60), plain(view.detail, 300)
    age = f", last heard {duration(now - view.seen)} ago" if view.seen is not None else ""
    if condition == "live":
        return None
    if condition == "connecting":
        return _finding(host, "connecting", "info", "note", f"connecting to {name}", "", "")
    if condition == "refused":
        return _finding(host, "refused", "warn", "N/A", f"{name} cannot be read{age}", detail, "")
    if condition == "stale":
        title = f"{name} is silent{age}"
        cause = "the connection stands; the machine or the network is slow"
        return _finding(host, "stale", "warn", "STALE", title, cause, "")
    since = f" for {duration(now - view.since)}" if view.since is not None else ""
    title = f"no connection to {name}{since}{age}"
    return _finding(
        host, "gone", "warn", "LOST", title, detail, "topsmon connects again by itself."
    )


def _finding(
    host: str,
    code: str,
    severity: events.Severity,
    word: str,
    title: str,
    cause: str,
    remedy: str,
) -> events.Finding:
    return events.Finding(
        time=time.time(),
        monotonic=time.monotonic(),
        source=host,
        code=f"host-{code}",
        severity=severity,
        word=word,
        title=title,
        cause=cause,
        remedy=remedy,
    )

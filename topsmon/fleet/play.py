"""`topsmon stream --simulate nodes=...`: the lines of all hosts of a simulated fleet."""

from __future__ import annotations

import threading
import time

from topsmon import events
from topsmon.devices import pipes
from topsmon.devices.pace import Pace
from topsmon.simulated.fleet import FleetPlan, SimulatedHost, Stamp

SLICES = 10
"""Hosts do not speak all at once: each interval has so many groups of them."""


def play(plan: FleetPlan, interval: float, *, until_stdin_closes: bool) -> int:
    """Write the stream until interrupted or told to end; return the exit code."""
    pace = Pace(interval)
    if until_stdin_closes:
        pipes.become_child()
        threading.Thread(target=pipes.obey, args=(pace,), name="commands", daemon=True).start()
    start = time.monotonic()
    hosts = [SimulatedHost(plan, node) for node in range(plan.nodes)]
    try:
        for host in hosts:
            _write(list(host.begin(_stamp())), pace)
        while pace.sleep(0.0):
            _round(hosts, start, pace)
    except KeyboardInterrupt:
        return 130
    return pace.code or 0


def _round(hosts: list[SimulatedHost], start: float, pace: Pace) -> None:
    """One interval: every host speaks once, group after group."""
    groups = min(SLICES, len(hosts))
    begin = time.monotonic()
    for group in range(groups):
        stamp = _stamp()
        if not pace.paused:
            seconds = stamp.monotonic - start
            found = [event for host in hosts[group::groups] for event in host.tick(seconds, stamp)]
            _write(found, pace)
        due = begin + pace.interval * (group + 1) / groups
        if not pace.sleep(max(0.0, due - time.monotonic())):
            return


def _stamp() -> Stamp:
    return Stamp(time.time(), time.monotonic())


def _write(found: list[events.AnyEvent], pace: Pace) -> None:
    """Write many lines at once. A reader that is gone ends us quietly."""
    try:
        pipes.write_to_stdout(b"".join([events.encode(event) for event in found]))
    except (OSError, ValueError):
        pace.leave(0)

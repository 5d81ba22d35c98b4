"""The bare command: the live screen, or one snapshot."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from topsmon.cli.common import (
    Common,
    exit_code,
    fleet_plan,
    prepare_simulation,
    remembering_state,
    write_bytes,
    write_text,
)

if TYPE_CHECKING:
    from topsmon.cli.hosts import Hosts
    from topsmon.simulated.fleet import FleetPlan
    from topsmon.tui.options import SessionLike


def snapshot(common: Common, *, as_json: bool) -> int:
    """Print one snapshot; the exit code follows the worst finding about what lives now."""
    plan = fleet_plan(common.simulate)
    if plan is not None:
        return _fleet_snapshot(common, plan, as_json=as_json)
    state = remembering_state(common)
    from topsmon import diagnosis
    from topsmon.report import once

    now = time.monotonic()
    findings = diagnosis.diagnose(state, now)
    if as_json:
        write_bytes(once.to_json(state, findings, now))
    else:
        write_text(once.text(state, findings, now, ascii_only=common.ascii_for(sys.stdout)))
    ended = {run.key for run in state.runs.values() if run.ended}
    return exit_code([finding.severity for finding in findings if finding.run not in ended])


def screen(
    common: Common,
    hosts: Hosts | None = None,
    *,
    bench: bool,
    theme: str | None,
    mouse: bool,
    readonly: bool = False,
) -> int:
    """Show the live screen, of this machine or of other hosts, until the user leaves it."""
    session = _own_session(common, bench=bench) if hosts is None else hosts.session()
    from topsmon.tui import ScreenOptions, run

    options = ScreenOptions(
        theme=theme,
        ascii_only=common.ascii_for(sys.__stderr__),
        color=common.color,
        mouse=mouse,
        readonly=readonly,
        debug=common.debug,
    )
    return run(session, options)


def _fleet_snapshot(common: Common, plan: FleetPlan, *, as_json: bool) -> int:
    from topsmon.fleet import summary
    from topsmon.fleet.simulated import played
    from topsmon.fleet.state import GONE_INTERVALS
    from topsmon.fleet.trouble import Sieve
    from topsmon.simulated.fleet import GONE_SECONDS, LOST_SECONDS

    kinds = {fault.kind for fault in plan.faults}
    seconds = [0.0, 1.0, 2.0]
    if "lost" in kinds:
        seconds.append(LOST_SECONDS + 1.0)
    if "gone" in kinds:  # until its silence is taken for an end
        seconds += [GONE_SECONDS - 1.0, GONE_SECONDS + GONE_INTERVALS * 1.0]
    fleet, now = played(plan, tuple(seconds)), 0.0
    if as_json:
        write_bytes(summary.to_json(fleet, now))
    else:
        write_text(summary.text(fleet, now, ascii_only=common.ascii_for(sys.stdout)))
    return exit_code([trouble.severity for trouble in Sieve().update(fleet, now)])


def _own_session(common: Common, *, bench: bool) -> SessionLike:
    if common.simulate is not None and fleet_plan(common.simulate) is not None:
        from topsmon.fleet.simulated import SimulatedFleetSession

        return SimulatedFleetSession(common.simulate, common.interval)
    environment = prepare_simulation(common.simulate)
    from topsmon import results
    from topsmon.session import Session, SessionOptions

    return Session(
        SessionOptions(
            interval=common.interval,
            only=common.only,
            only_visible=common.only_visible,
            simulated=common.simulate,
            environment=environment,
            python=common.python,
            benchmarks=bench,
            remember=results.default_path(),
        )
    )

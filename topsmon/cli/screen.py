"""The bare command: the live screen, or one snapshot."""

from __future__ import annotations

import sys
import time

from topsmon.cli.common import (
    Common,
    exit_code,
    prepare_simulation,
    remembering_state,
    write_bytes,
    write_text,
)


def snapshot(common: Common, *, as_json: bool) -> int:
    """Print one snapshot; the exit code follows the worst finding about what lives now."""
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


def screen(common: Common, *, bench: bool, theme: str | None, mouse: bool) -> int:
    """Show the live screen until the user leaves it."""
    environment = prepare_simulation(common.simulate)
    from topsmon import results
    from topsmon.session import Session, SessionOptions
    from topsmon.tui import ScreenOptions, run

    session = Session(
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
    options = ScreenOptions(
        theme=theme,
        ascii_only=common.ascii_for(sys.__stderr__),
        color=common.color,
        mouse=mouse,
        debug=common.debug,
    )
    return run(session, options)

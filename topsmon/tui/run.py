"""Run the screen to its end, and say what ended it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from topsmon.tui.app import TopsmonApp
from topsmon.tui.options import ScreenOptions, SessionLike

if TYPE_CHECKING:
    from topsmon.recording.replay import ReplaySession
    from topsmon.tui.fleet_app import FleetSessionLike

INTERNAL_ERROR = 3
"""The exit code for "could not be measured"."""


def run_app(session: SessionLike, options: ScreenOptions) -> int:
    """Run the screen to its end; the session is stopped whatever happens."""
    return _run(session, options, lambda: create_app(session, options))


def create_app(session: SessionLike, options: ScreenOptions) -> TopsmonApp:
    """The screen for a session: one of many hosts has a tab of its own for them."""
    fleet = getattr(session, "fleet", None)
    if not getattr(session, "several_hosts", fleet is not None and len(fleet.hosts) > 1):
        return TopsmonApp(session, options)
    from topsmon.tui.fleet_app import FleetApp

    many: FleetSessionLike = session  # type: ignore[assignment]
    return FleetApp(many, options)


def run_replay(session: ReplaySession, options: ScreenOptions) -> int:
    """Run the screen of a recording to its end."""
    from topsmon.tui.replay_app import ReplayApp

    return _run(session, options, lambda: ReplayApp(session, options))


def _run(session: SessionLike, options: ScreenOptions, create: Callable[[], TopsmonApp]) -> int:
    async def run() -> int:
        try:
            app = create()
            await app.run_async(mouse=options.mouse)
        finally:
            await session.stop()
        if app.failure is None:
            return app.return_code or 0
        print(
            f"topsmon: internal error: {type(app.failure).__name__}: {app.failure}"
            " (--debug shows where)",
            file=sys.stderr,
        )
        return INTERNAL_ERROR

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT

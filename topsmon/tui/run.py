"""Run the screen to its end, and say what ended it."""

from __future__ import annotations

import asyncio
import signal
import sys

from topsmon.tui.app import TopsmonApp
from topsmon.tui.options import ScreenOptions, SessionLike

INTERNAL_ERROR = 3
"""The exit code for "could not be measured"."""


def run_app(session: SessionLike, options: ScreenOptions) -> int:
    """Run the screen to its end; the session is stopped whatever happens."""

    async def run() -> int:
        try:
            app = TopsmonApp(session, options)
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

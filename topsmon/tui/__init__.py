"""The live screen: the only package that draws with Textual. Importing it loads no Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topsmon.tui.options import ScreenOptions, SessionLike

if TYPE_CHECKING:
    from topsmon.recording.replay import ReplaySession

__all__ = ["ScreenOptions", "SessionLike", "replay", "run"]


def run(session: SessionLike, options: ScreenOptions) -> int:
    """Show the screen until the user leaves it; return the exit code.

    The session is started and stopped by the screen's event loop. Whatever ends the screen (a key,
    SIGTERM, SIGHUP, an exception), the terminal is restored and the session is stopped.
    """
    from topsmon.tui.run import run_app

    return run_app(session, options)


def replay(session: ReplaySession, options: ScreenOptions) -> int:
    """Show a recording until the user leaves it; return the exit code."""
    from topsmon.tui.run import run_replay

    return run_replay(session, options)

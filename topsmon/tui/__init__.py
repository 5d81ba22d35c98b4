"""The live screen: the only package that draws with Textual. Importing it loads no Textual."""

from __future__ import annotations

from topsmon.tui.options import ScreenOptions, SessionLike

__all__ = ["ScreenOptions", "SessionLike", "run"]


def run(session: SessionLike, options: ScreenOptions) -> int:
    """Show the screen until the user leaves it; return the exit code.

    The session is started and stopped by the screen's event loop. Whatever ends the screen (a key,
    SIGTERM, SIGHUP, an exception), the terminal is restored and the session is stopped.
    """
    from topsmon.tui.run import run_app

    return run_app(session, options)

"""What the panels of the hosts tab need of the application."""

from __future__ import annotations

from typing import Protocol

from topsmon.tui.fleet.watched import Watch
from topsmon.tui.view import View


class FleetApp(Protocol):
    """The application that shows many hosts."""

    view: View
    watching: Watch

    def redraw(self) -> None:
        """Draw what has changed."""

    def drill_down(self, host: str) -> None:
        """Show a host in the other tabs."""

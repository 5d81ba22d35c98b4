"""The screen of a recording: the same, with keys to move in time instead of keys to measure."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from topsmon.recording.replay import ReplaySession
from topsmon.tui.app import TopsmonApp
from topsmon.tui.options import ScreenOptions

REDRAW_SECONDS = 0.2
SEEK_SECONDS = 10
NOT_HERE = frozenset({"benchmark", "interval", "record"})
"""Actions of the live screen that mean nothing in a replay."""


class ReplayApp(TopsmonApp):
    """Draws a replay. Time is the recording's: ages are as they were."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("less_than_sign,comma", "speed(-1)", "slower"),
        Binding("greater_than_sign,full_stop", "speed(1)", "faster"),
        Binding("left", f"seek(-{SEEK_SECONDS})", "back"),
        Binding("right", f"seek({SEEK_SECONDS})", "on"),
        Binding("home", "begin", "begin", show=False),
        Binding("end", "end", "end", show=False),
        Binding("n", "next_finding", "next finding"),
    ]

    def __init__(self, session: ReplaySession, options: ScreenOptions) -> None:
        self.replayed = session
        super().__init__(session, options, clock=session.clock)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out what is for running machines."""
        return action not in NOT_HERE and super().check_action(action, parameters)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(REDRAW_SECONDS, self.redraw)

    def _tell_restarts(self) -> None:
        """Say nothing: what was restarted then is of no concern now."""

    def action_help(self) -> None:
        """Show the keys of a replay, then those of the screen."""
        from topsmon.tui.dialogs import replay_help

        self._open(replay_help())

    def action_pause(self) -> None:
        """Stand still, or go on."""
        self.replayed.pause(not self.replayed.paused)
        self.redraw()

    def action_speed(self, step: int) -> None:
        """Play faster (1) or slower (-1)."""
        self.replayed.change_speed(step)
        self.redraw()

    def action_seek(self, seconds: int) -> None:
        """Go on, or back."""
        self.replayed.seek(seconds)
        self.redraw()

    def action_begin(self) -> None:
        """Go to the beginning."""
        self.replayed.seek_to(self.replayed.index.begin.now)
        self.redraw()

    def action_end(self) -> None:
        """Go to the end."""
        self.replayed.seek_to(self.replayed.index.end.now)
        self.redraw()

    def action_next_finding(self) -> None:
        """Go to where the next finding begins, and stand still there."""
        if not self.replayed.next_finding():
            self.notify("no finding begins after this", timeout=4, markup=False)
        self.redraw()

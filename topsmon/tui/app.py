"""The application: what each key does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from topsmon.tui.drawn_app import CHECKS, DrawnApp
from topsmon.tui.header import TABS
from topsmon.tui.plan import is_tiny
from topsmon.tui.view import shown_devices
from topsmon.units import PRECISIONS, plain

INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between two samples that the + and - keys go through."""
TRAINING = "training"
"""The tab in which the keys move among runs and ranks."""


class TopsmonApp(DrawnApp):
    """The screen of a session with its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True, show=False),
        Binding("ctrl+z", "to_shell", "back to the shell", priority=True, show=False),
        Binding("question_mark", "help", "help"),
        *(Binding(tab.key, f"tab('{tab.name}')", tab.name, show=False) for tab in TABS),
        Binding("up,k", "move_device(-1)", "device above", show=False),
        Binding("down,j", "move_device(1)", "device below", show=False),
        Binding("left,h", "move_precision(-1)", "precision before", show=False),
        Binding("right,l", "move_precision(1)", "precision after", show=False),
        Binding("left_square_bracket", "move_rank(-1)", "rank before", show=False),
        Binding("right_square_bracket", "move_rank(1)", "rank after", show=False),
        Binding("t", "fold_ranks", "ranks", show=False),
        Binding("enter", "details", "details"),
        Binding("b", "benchmark", "measure"),
        Binding("B", "choose_precisions", "precisions"),
        Binding("space", "pause", "pause"),
        Binding("plus", "interval(1)", "longer interval", show=False),
        Binding("minus", "interval(-1)", "shorter interval", show=False),
        Binding("S", "snapshot", "snapshot"),
        Binding("R", "record", "record", show=False),
        Binding("m", "next_theme", "theme"),
    ]

    def action_tab(self, name: str) -> None:
        """Show a tab."""
        self._tab = name
        self.redraw()

    def action_help(self) -> None:
        """Show keys and words."""
        from topsmon.tui.dialogs import help_dialog

        self._open(help_dialog())

    def action_move_device(self, step: int) -> None:
        """Select the next device in the order of the rows, or the next check or run."""
        if self._tab == CHECKS:
            self._show_checks_of(self._judged.move(self.view.selected, step))
            return
        if self._tab == TRAINING:
            self._watched.move(step)
            self.redraw()
            return
        keys = [device.key for device in shown_devices(self.session.state)]
        if keys:
            place = keys.index(self.view.selected) if self.view.selected in keys else 0
            self.select_device(keys[min(max(place + step, 0), len(keys) - 1)])

    def action_move_precision(self, step: int) -> None:
        """Select the next precision in the order of the table; the next device, the next rank."""
        if self._tab == CHECKS:
            self._show_checks_of(self._judged.move_device(self.view.selected, step))
            return
        if self._tab == TRAINING:
            self.action_move_rank(step)
            return
        keys = [key for key in PRECISIONS if key in self.session.precisions]
        place = keys.index(self.view.precision) if self.view.precision in keys else 0
        self._chosen_precision = keys[min(max(place + step, 0), len(keys) - 1)]
        self.redraw()

    def action_move_rank(self, step: int) -> None:
        """Select the next rank of the selected launch."""
        self._watched.move_rank(step)
        self.redraw()

    def action_fold_ranks(self) -> None:
        """List every rank, or one row a launch again."""
        self._watched.fold()
        self.redraw()

    def select_run_row(self, place: int) -> None:
        """Select the run of a row of the list."""
        self._watched.select_row(place)
        self.redraw()

    def _show_checks_of(self, device: str | None) -> None:
        """Select the device of the check under the cursor; the machine's checks have none."""
        self._moved_to = device or self.view.selected
        self.redraw()

    def action_details(self) -> None:
        """Show everything about the selected device, check or run."""
        from topsmon.tui.dialogs import check_dialog, details_dialog, run_dialog

        device, run = self.view.device, self.view.training.selected
        if self._tab == TRAINING:
            if run is not None:
                self._open(run_dialog(self.view, run))
            return
        if self._tab == CHECKS and self.view.checks:
            self._open(check_dialog(self.view.checks[self.view.check]))
        elif device is not None:
            self._open(details_dialog(self.view, device))

    def _open(self, dialog: Screen[None]) -> None:
        """Show a dialog, except on a terminal that has no room for one."""
        if is_tiny(self._terminal.width, self._terminal.height):
            return

        def closed(_: None) -> None:
            self.call_later(self.redraw)

        self.push_screen(dialog, closed)

    def action_benchmark(self) -> None:
        """Measure the selected device half of the time, or stop that; or say why not."""
        self.view = self._look()
        device, prevented = self.view.device, self.view.prevented
        if device is not None and prevented is not None:
            message = plain(f"no benchmarks: {prevented}", 400)
            self.notify(message, severity="warning", markup=False, timeout=10)
        elif device is not None:
            self.session.benchmark(device.key, not self.session.benchmarking(device.key))
            self.redraw()

    def action_choose_precisions(self) -> None:
        """Let the user choose what is measured."""
        from topsmon.tui.dialogs import PrecisionChoice

        if is_tiny(self._terminal.width, self._terminal.height):
            return

        def take(keys: tuple[str, ...] | None) -> None:
            if keys:
                self.session.choose_precisions(keys)
            self.call_later(self.redraw)

        self.push_screen(PrecisionChoice(self.session.precisions), take)

    def action_pause(self) -> None:
        """Freeze the screen with its ages, and stop sampling; or go on."""
        paused = not self.session.paused
        self._frozen = (self.view.now, self.view.wall) if paused else None
        self.session.pause(paused)
        self.redraw()

    def action_interval(self, step: int) -> None:
        """Sample less often (1) or more often (-1)."""
        nearest = min(INTERVALS, key=lambda value: abs(value - self.session.interval))
        place = min(max(INTERVALS.index(nearest) + step, 0), len(INTERVALS) - 1)
        self.session.set_interval(INTERVALS[place])
        self._set_timer()
        self.redraw()

    def action_snapshot(self) -> None:
        """Save a picture of the screen and the numbers behind it."""
        from topsmon.tui import snapshot

        def done(message: str, good: bool) -> None:
            severity: Any = "information" if good else "error"
            self.call_from_thread(self.notify, message, severity=severity, markup=False)

        numbers = self.numbers()
        picture = self.export_screenshot(title="topsmon")
        snapshot.save(snapshot.default_directory(), self._clock()[1], picture, numbers, done)

    def numbers(self) -> bytes:
        """The numbers behind the screen, as JSON."""
        from topsmon.report import once

        return once.to_json(self.session.state, self.view.findings, self.view.now)

    def action_record(self) -> None:
        """Begin to record into the state directory, or end the recording."""
        self._tell_recording(self._tape.toggle(self.session))
        self.redraw()

    def select_device(self, key: str) -> None:
        """Show this device until the user selects another one."""
        self._moved_to = key
        self.redraw()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Return the commands of the palette: all keys of the help by name, and the themes."""
        del screen
        yield SystemCommand("Theme", "Choose the colours", self.action_change_theme)
        yield SystemCommand("Help", "Keys and words", self.action_help)
        yield SystemCommand("Details", "All about the selected device", self.action_details)
        yield SystemCommand("Measure", "Measure the selected device more", self.action_benchmark)
        yield SystemCommand("Precisions", "What is measured", self.action_choose_precisions)
        yield SystemCommand("Pause", "Stop sampling, or go on", self.action_pause)
        yield SystemCommand("Snapshot", "Save picture and numbers", self.action_snapshot)
        yield SystemCommand("Record", "Begin or end a recording", self.action_record)
        yield SystemCommand("Quit", "Leave topsmon", self.action_quit)

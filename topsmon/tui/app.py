"""The application: keys, the tick that draws, and how it all ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.screen import Screen
from textual.theme import Theme
from textual.timer import Timer

from topsmon.tui import benchmarks, glyphs, themes
from topsmon.tui.all_panels import all_panels, content
from topsmon.tui.ascii_filter import AsciiFilter
from topsmon.tui.header import TABS
from topsmon.tui.judged import Judged
from topsmon.tui.options import ScreenOptions, SessionLike
from topsmon.tui.palette import Palette, derived_variables
from topsmon.tui.panel import Panel
from topsmon.tui.plan import is_tiny, plan
from topsmon.tui.stack import Place
from topsmon.tui.tape import Tape
from topsmon.tui.training.watched import Watched
from topsmon.tui.view import View, default_precision, shown_devices
from topsmon.units import PRECISIONS, plain

INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between two samples that the + and - keys go through."""
STANDARD_COLORS = "standard"
LIVE = "live"
"""The tab that shows what each device does."""
CHECKS = "checks"
"""The tab in which the keys move among verdicts."""
TRAINING = "training"
"""The tab in which they move among runs and ranks."""
Clock = Callable[[], tuple[float, float]]
"""Gives the monotonic time and the time since the epoch, in s."""


def real_clock() -> tuple[float, float]:
    """The clock of all screens but that of a replay."""
    return time.monotonic(), time.time()


class TopsmonApp(App[int]):
    """The screen of a session. It draws what the session knows and never waits for anything."""

    CSS_PATH = "screen.tcss"
    TITLE = "topsmon"
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

    def __init__(
        self, session: SessionLike, options: ScreenOptions, clock: Clock = real_clock
    ) -> None:
        if not options.color:
            os.environ.setdefault("NO_COLOR", "1")
        super().__init__()
        self.session = session
        self.options = options
        self._clock = clock
        self.animation_level = "none"
        self.glyphs = glyphs.choose(
            ascii_only=options.ascii_only,
            encoding=getattr(sys.__stderr__, "encoding", None),
            terminal=os.environ.get("TERM", ""),
        )
        self._ascii_filter = AsciiFilter()
        self._moved_to: str | None = None
        self._chosen_precision: str | None = None
        self._frozen: tuple[float, float] | None = None
        self._tab = TABS[0].name
        self._timer: Timer | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._places: list[Place] = []
        self._terminal = Size(0, 0)
        self._panels: dict[str, Panel] = {}
        self._told_restarts: dict[str, int] = {}
        self._judged = Judged()
        self._watched = Watched()
        self._tape = Tape()
        self._counters: bool | None = None
        self.loaded_themes = themes.load([themes.packaged_directory(), themes.user_directory()])
        for theme in self.loaded_themes.themes:
            self.register_theme(theme)
        self._theme_problems = list(self.loaded_themes.problems)
        self.theme = self._first_theme(options.theme)
        self.palette = Palette(self.get_css_variables())
        self.view = self._look()

    # Looks ----------------------------------------------------------------------------------------

    def _first_theme(self, wanted: str | None) -> str:
        if wanted is not None:
            if wanted in self.available_themes:
                return wanted
            known = ", ".join(theme.name for theme in self.loaded_themes.themes)
            self._theme_problems.append(f"no theme {wanted!r}; there are: {known}")
        default = themes.DEFAULT_THEME
        if self.console.color_system == STANDARD_COLORS:
            default = themes.TERMINAL_THEME
        return default if default in self.available_themes else self.theme

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return our own variables for themes that do not set them (Textual's own, a user's)."""
        return derived_variables(self.current_theme.to_color_system().generate())

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters, and ours on a terminal without Unicode."""
        filters = super().get_line_filters()
        return [*filters, self._ascii_filter] if self.glyphs.ascii_only else filters

    def _theme_changed(self, theme: Theme) -> None:
        del theme
        self.palette = Palette(self.get_css_variables())
        for panel in self._panels.values():
            panel.refresh()

    # Life -----------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Create all panels once; the plan says which are shown, and where."""
        panels = all_panels()
        for panel in panels:
            panel.display = False
            self._panels[str(panel.id)] = panel
        return panels

    def on_mount(self) -> None:
        """Draw what is known, then let the session start."""
        self.set_class(self.glyphs.ascii_only, "-ascii")
        self.theme_changed_signal.subscribe(self, self._theme_changed)
        self.app_resume_signal.subscribe(self, self._resumed)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._end_by_signal, number)
        self._terminal = self.size
        self._arrange()
        self._ask_for_counters()
        self._set_timer()
        for problem in self._theme_problems:
            self.notify(problem, severity="warning", markup=False)
        self.run_worker(self.session.start(), exit_on_error=True)

    def _resumed(self, app: App[Any]) -> None:
        """Paint everything: the shell has written over the terminal."""
        app.screen.refresh()

    async def on_unmount(self) -> None:
        """End the children, whatever ended the screen."""
        if self._timer is not None:
            self._timer.stop()
        await self._stop_session()
        await asyncio.to_thread(self._tape.close)

    def _stop_session(self) -> asyncio.Task[None]:
        """Begin to end the children, once; the screen closes meanwhile."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self.session.stop())
        return self._stopping

    def _end_by_signal(self, number: int) -> None:
        self._stop_session()
        self.exit(return_code=128 + number)

    async def action_to_shell(self) -> None:
        """End the children, suspend; start them again when the shell brings us back."""
        await self.session.stop()
        self.action_suspend_process()
        await self.session.start()

    def _fatal_error(self) -> None:
        """Leave after an exception; the traceback is for --debug alone."""
        if self.options.debug:
            super()._fatal_error()
        else:
            self._close_messages_no_wait()

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the screen."""
        return self._exception

    async def action_quit(self) -> None:
        """Leave."""
        self._stop_session()
        self.exit(return_code=0)

    # Drawing --------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(self.session.interval, self.redraw)

    def _look(self) -> View:
        """Collect what is to be drawn now."""
        state, findings = self.session.state, self.session.findings()
        now, wall = self._frozen or self._clock()
        devices = shown_devices(state)
        keys = [device.key for device in devices]
        selected = self._moved_to if self._moved_to in keys else None
        if selected is None:
            worst = (finding.device for finding in findings if finding.device in keys)
            selected = next(worst, keys[0] if keys else None)
        precisions = self.session.precisions
        precision = self._chosen_precision or default_precision(devices[0] if devices else None)
        if precision not in precisions:
            precision = precisions[0]
        asked = frozenset(key for key in keys if self.session.benchmarking(key))
        problem = self.session.torch_problem
        prevented = [
            device.key for device in devices if benchmarks.obstacle(state, device, problem)
        ]
        if self._tab == CHECKS:
            self._judged.update(state, now, wall)
        return View(
            state=state,
            findings=benchmarks.as_asked(findings, asked, prevented),
            now=now,
            wall=wall,
            interval=self.session.interval,
            selected=selected,
            precision=precision,
            precisions=precisions,
            glyphs=self.glyphs,
            paused=self.session.paused,
            benchmarking=asked,
            tab=self._tab,
            torch_problem=problem,
            checks=self._judged.results,
            check=self._judged.place(selected),
            training=self._watched.update(state, now),
            recording=self._tape.words,
            replay=getattr(self.session, "progress", None),
        )

    def redraw(self) -> None:
        """Draw what has changed; under a dialog nothing, since that would repaint all of it."""
        self._tell_restarts()
        self._tell_recording(self._tape.look(self.session.findings()))
        self.view = self._look()
        self._ask_for_counters()
        if any(screen.is_modal for screen in self.screen_stack):
            return
        self._arrange()
        for place in self._places:
            self._panels[place.panel].show(self.view)

    def _ask_for_counters(self) -> None:
        """Have the performance counters read only while the live tab, or a recording, uses them."""
        wanted = self._tab == LIVE or bool(self._tape.words)
        if wanted != self._counters:
            self._counters = wanted
            self.session.set_counters(wanted)

    def _tell_restarts(self) -> None:
        """Say that one of our own processes was started again, whatever else is wrong."""
        for name, worker in self.session.state.workers.items():
            if worker.restarts > self._told_restarts.get(name, 0):
                self._told_restarts[name] = worker.restarts
                message = plain(f"{name}: worker restarted ({worker.detail})", 200)
                self.notify(message, severity="warning", markup=False)

    def _arrange(self) -> None:
        """Put the panels where the plan wants them, if that is not where they are."""
        places = plan(
            self._terminal.width,
            self._terminal.height,
            content(self.view, self._terminal.width),
            self.view.tab,
        )
        if places == self._places:
            return
        self._places = places
        shown = {place.panel: place for place in places}
        for name, panel in self._panels.items():
            place = shown.get(name)
            panel.display = place is not None
            if place is not None:
                panel.framed = place.framed
                panel.styles.offset = (place.x, place.y)
                panel.styles.width = place.width
                panel.styles.height = place.height

    def on_resize(self, event: Resize) -> None:
        """Plan anew."""
        self._terminal = event.size
        self._arrange()

    # Keys -----------------------------------------------------------------------------------------

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

    def action_next_theme(self) -> None:
        """Use the next of the loaded themes."""
        names = [theme.name for theme in self.loaded_themes.themes]
        if names:
            place = names.index(self.theme) + 1 if self.theme in names else 0
            self.theme = names[place % len(names)]
            self.notify(f"theme {self.theme}", timeout=2, markup=False)

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

    def _tell_recording(self, said: tuple[str, bool] | None) -> None:
        if said is not None:
            message, good = said
            severity: Any = "information" if good else "error"
            self.notify(plain(message, 300), severity=severity, markup=False, timeout=8)

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

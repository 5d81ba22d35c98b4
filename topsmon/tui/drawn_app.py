"""The application without its keys: the tick that draws, where panels stand, how it all ends."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

from textual.app import App, ComposeResult
from textual.events import Resize
from textual.geometry import Size
from textual.theme import Theme
from textual.timer import Timer

from topsmon.tui import benchmarks
from topsmon.tui.all_panels import all_panels, content
from topsmon.tui.header import TABS
from topsmon.tui.judged import Judged
from topsmon.tui.options import ScreenOptions, SessionLike
from topsmon.tui.palette import Palette
from topsmon.tui.panel import Panel
from topsmon.tui.plan import plan
from topsmon.tui.stack import Place
from topsmon.tui.tape import Tape
from topsmon.tui.themed_app import ThemedApp
from topsmon.tui.training.watched import Watched
from topsmon.tui.view import View, default_precision, shown_devices
from topsmon.units import plain

LIVE = "live"
"""The tab that shows what each device does."""
CHECKS = "checks"
"""The tab in which the keys move among verdicts."""
Clock = Callable[[], tuple[float, float]]
"""Gives the monotonic time and the time since the epoch, in s."""


def real_clock() -> tuple[float, float]:
    """The clock of all screens but that of a replay."""
    return time.monotonic(), time.time()


class DrawnApp(ThemedApp):
    """The screen of a session. It draws what the session knows and never waits for anything."""

    CSS_PATH = "screen.tcss"
    TITLE = "topsmon"

    def __init__(
        self, session: SessionLike, options: ScreenOptions, clock: Clock = real_clock
    ) -> None:
        super().__init__(options)
        self.session = session
        self._clock = clock
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
        self.view = self._look()

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
                self.notify(message, severity="warning", markup=False, timeout=10)

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

    def _theme_changed(self, theme: Theme) -> None:
        del theme
        self.palette = Palette(self.get_css_variables())
        for panel in self._panels.values():
            panel.refresh()

    def _tell_recording(self, said: tuple[str, bool] | None) -> None:
        if said is not None:
            message, good = said
            severity: Any = "information" if good else "error"
            self.notify(plain(message, 300), severity=severity, markup=False, timeout=8)

"""Send a signal to a process: which one, are you sure, and what came of it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from topsmon.devices.process_signals import SIGNALS, send
from topsmon.report.process_rows import Row
from topsmon.tui.cells import left
from topsmon.tui.dialogs import CLOSE, STANDS_STILL, TEXT_WIDTH
from topsmon.tui.processes.words import broken, elsewhere, state_hint, who
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, age, plain

CHOOSE = "up, down: signal   Enter: go on   Esc: leave it alone"
CONFIRM = "y: send it   n, Esc: leave it alone"


def obstacle(view: View, row: Row) -> str:
    """Why a process cannot be sent a signal, "" where it can."""
    entry = row.entry
    if elsewhere(view):
        return f"no signal: {elsewhere(view)}"
    if not entry.local:
        host = view.state.host
        inside = host is not None and host.container
        why = "a PID of the host, outside this container" if inside else "no process of this system"
        return f"no signal: PID {entry.pid} is {why}"
    if row.is_parent:
        return f"no signal: PID {entry.pid} uses no device; select a process that does"
    if entry.start_ticks is None:
        return f"no signal: when PID {entry.pid} started cannot be read, so it might be another one"
    return ""


class SignalDialog(ModalScreen[None]):
    """Choose a signal, confirm it. The process is checked once more as it is sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,n", "dismiss", "leave"),
        Binding("enter", "go_on", show=False),
        Binding("y", "send", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        *CLOSE[1:],
    ]

    def __init__(self, view: View, row: Row) -> None:
        super().__init__()
        self.row = row
        self.glyphs = view.glyphs
        self.age = "" if row.entry.started is None else age(view.wall - row.entry.started)
        self.signals = list(SIGNALS)
        self.place = 0
        self.confirming = False

    @property
    def signal(self) -> str:
        """The chosen signal."""
        return self.signals[self.place]

    def compose(self) -> ComposeResult:
        """Lay out heading, text and hint. Content, not str: nothing in it is markup."""
        with VerticalScroll(classes="dialog") as box:
            box.border_subtitle = STANDS_STILL
            yield Static(Content(f"signal to PID {self.row.entry.pid}"), classes="heading")
            yield Static(id="signal-text")
            yield Static(id="signal-hint", classes="hint")

    def on_mount(self) -> None:
        """Show the choice."""
        self._show()

    def _show(self) -> None:
        lines = [*self._process(), ""]
        if self.confirming:
            lines.append(f"Send SIG{self.signal} to this process: {SIGNALS[self.signal]}.")
        else:
            for number, (name, meaning) in enumerate(SIGNALS.items()):
                mark = self.glyphs.cursor if number == self.place else " "
                lines.append(f"{mark} {left(name, 6)}{meaning}")
        self.query_one("#signal-text", Static).update(Content("\n".join(lines)))
        hint = CONFIRM if self.confirming else CHOOSE
        self.query_one("#signal-hint", Static).update(Content(hint))

    def _process(self) -> list[str]:
        """Which process it is, and what is to be known before it is signalled."""
        entry = self.row.entry
        width = max(10, min(TEXT_WIDTH, int(self.app.size.width * 0.96) - 7))
        facts = [f"user {plain(entry.user or NOT_AVAILABLE, 64)}", self.row.device]
        if self.age:
            facts.append(f"started {self.age} ago")
        lines = [*broken(who(self.row, 400), width)[:4], ", ".join(facts)]
        if entry.own:
            lines += broken(
                "This is topsmon itself: a worker that ends is started again; q ends all of it, "
                "--no-bench leaves the measurements out.",
                width,
            )
        return lines + broken(state_hint(entry), width)

    def action_move(self, step: int) -> None:
        """Choose another signal."""
        if not self.confirming:
            self.place = min(max(self.place + step, 0), len(self.signals) - 1)
            self._show()

    def action_go_on(self) -> None:
        """Ask whether it is meant. Enter alone never sends."""
        self.confirming = True
        self._show()

    def action_send(self) -> None:
        """Send it, once it was confirmed."""
        if not self.confirming:
            return
        entry = self.row.entry
        problem = send(entry.pid, entry.start_ticks, self.signal)
        text = problem or f"SIG{self.signal} sent to PID {entry.pid}: {who(self.row, 60)}"
        self.app.notify(text, severity="warning" if problem else "information", markup=False)
        self.dismiss()

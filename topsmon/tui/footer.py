"""The keys that matter most, in one line; the rest is in the help."""

from __future__ import annotations

from typing import NamedTuple

from textual.events import Click

from topsmon.tui.cells import Line, Span, fit, width_of
from topsmon.tui.panel import Panel
from topsmon.tui.view import View, shown_devices


class Hint(NamedTuple):
    """A key, what it does in a word, and the application's action for a click on it."""

    key: str
    text: str
    action: str


PROCESS_HINTS = (
    Hint("Enter", "details", "focused.details"),
    Hint("K", "signal", "focused.signal"),
    Hint("/", "filter", "focused.filter"),
    Hint("o", "sort", "focused.sort"),
    Hint("t", "tree", "focused.tree"),
    Hint("j k", "process", "focused.move(1)"),
)
"""Keys of the process table, which has the focus while it is shown."""


def hints(view: View) -> list[Hint]:
    """Hints in order of importance, as far as they make sense now."""
    if view.replay is not None:
        return _of_a_replay(view)
    on = view.selected in view.benchmarking
    found = [Hint("q", "quit", "quit"), Hint("?", "help", "help")]
    training = view.tab == "training"
    if view.tab == "processes":
        found += PROCESS_HINTS
        found.append(Hint("Space", "go on" if view.paused else "pause", "pause"))
        found += [Hint("m", "theme", "next_theme"), Hint("S", "snapshot", "snapshot")]
        return found
    if view.tab == "hosts":
        return found + _of_hosts(view)
    if view.hosts is not None:
        found.append(Hint("Esc", "all hosts", "tab('hosts')"))
    if training and view.training.selected is not None:
        found.append(Hint("Enter", "details", "details"))
    elif shown_devices(view.state) and not training:
        if view.prevented is None:
            found.append(Hint("b", "measure less" if on else "measure", "benchmark"))
        found.append(Hint("Enter", "details", "details"))
    found += _moves(view)
    found += [
        Hint("Space", "go on" if view.paused else "pause", "pause"),
        Hint("+ -", "interval", "interval(1)"),
        Hint("m", "theme", "next_theme"),
        Hint("S", "snapshot", "snapshot"),
        Hint("R", "end recording" if view.recording else "record", "record"),
        Hint("B", "precisions", "choose_precisions"),
    ]
    return found


def _of_hosts(view: View) -> list[Hint]:
    """Keys of the map of hosts, which has the focus while it is shown."""
    return [
        Hint("Enter", "to the host", "focused.drill_down"),
        Hint("h l", "metric", "focused.metric(1)"),
        Hint("j k", "host", "focused.move(1)"),
        Hint("/", "filter", "focused.filter"),
        Hint("o", "sort", "focused.sort"),
        Hint("t", "fold", "focused.fold"),
        Hint("Space", "go on" if view.paused else "pause", "pause"),
        Hint("m", "theme", "next_theme"),
        Hint("S", "snapshot", "snapshot"),
    ]


def _of_a_replay(view: View) -> list[Hint]:
    return [
        Hint("q", "quit", "quit"),
        Hint("?", "help", "help"),
        Hint("Space", "go on" if view.paused else "pause", "pause"),
        Hint("n", "next finding", "next_finding"),
        Hint("left right", "10 s", "seek(10)"),
        Hint("< >", "speed", "speed(1)"),
        Hint("Enter", "details", "details"),
        Hint("S", "snapshot", "snapshot"),
        Hint("m", "theme", "next_theme"),
    ]


def _moves(view: View) -> list[Hint]:
    """What the arrow keys move among; in the training tab, as far as there is a choice."""
    if view.tab != "training":
        checks = view.tab == "checks"
        return [
            Hint("h l", "device" if checks else "precision", "move_precision(1)"),
            Hint("j k", "check" if checks else "device", "move_device(1)"),
        ]
    found = []
    if len(view.training.rows) > 1:
        found.append(Hint("j k", "run", "move_device(1)"))
    if any(len(launch.members) > 1 for launch in view.training.launches):
        found.append(Hint("h l", "rank", "move_rank(1)"))
        folded = "launches" if view.training.unfolded else "all ranks"
        found.append(Hint("t", folded, "fold_ranks"))
    return found


class KeyHints(Panel):
    """The footer; hints that do not fit whole are left out."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self._places: list[tuple[int, int, str]] = []

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the one line."""
        del height
        spans: list[Span] = []
        self._places = []
        used = 0
        for hint in hints(view):
            need = width_of(hint.key) + width_of(hint.text) + 3
            if used + need > width:
                break
            spans += [Span(f" {hint.key} ", "key"), Span(f"{hint.text} ", "muted")]
            self._places.append((used, used + need, hint.action))
            used += need
        return [fit(spans, width)]

    async def on_click(self, event: Click) -> None:
        """Do what the hint under the mouse says."""
        for begin, end, action in self._places:
            if begin <= event.x < end:
                await self.app.run_action(action)

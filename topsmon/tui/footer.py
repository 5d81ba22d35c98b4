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


def hints(view: View) -> list[Hint]:
    """Hints in order of importance, as far as they make sense now."""
    on = view.selected in view.benchmarking
    found = [Hint("q", "quit", "quit"), Hint("?", "help", "help")]
    training = view.tab == "training"
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
        Hint("B", "precisions", "choose_precisions"),
    ]
    return found


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

"""What the training tab says while there is no run."""

from __future__ import annotations

from topsmon.tui.cells import Line, Span, fit, left
from topsmon.tui.panel import Panel
from topsmon.tui.view import View

WAYS = (
    ("topsmon run -- python train.py", "start a training command watched; its code stays as it is"),
    ("topsmon demo amp", "a small mixed-precision training, to see this tab live"),
)
COMMAND = 34
BESIDE_FROM = 90
"""Width from which a command and its words share a line."""


class NoRuns(Panel):
    """How to start a run that can be watched."""

    headed_from = 5

    def title(self, view: View) -> str:
        """Name the tab."""
        del view
        return "training runs"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the ways, one each."""
        del view, height
        lines: list[Line] = [fit((Span(" no training run is watched on this machine"),), width), ()]
        for command, words in WAYS:
            if width >= BESIDE_FROM:
                spans = (Span(" " + left(command, COMMAND), "key"), Span(words, "muted"))
                lines.append(fit(spans, width))
            else:
                lines.append(fit((Span(" " + command, "key"),), width))
                lines.append(fit((Span("   " + words, "muted"),), width))
        return lines

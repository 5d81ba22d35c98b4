"""Where the panels of the training tab stand: a pure function of numbers."""

from __future__ import annotations

from typing import NamedTuple

from topsmon.tui.stack import CHART_LEAST, FRAME, Item, Place, chart, stack

LIST_WIDTH = 60
FRAMED_WIDTH, FRAMED_HEIGHT = 100, 30
WIDE_WIDTH, WIDE_HEIGHT = 160, 48
ROWS_MOST = 8
"""Runs that the list shows before it scrolls, where there is much below it."""
VERDICT_MOST = 7
"""Lines of the verdict and its findings where there are charts below it; Enter shows the rest."""
NUMBERS_WIDTH = 58
CHART_ROOM = 18
"""Lines that list, verdict, chart and numbers need beneath each other."""
HAPPENED = 14
"""Lines of what happened that are kept free, so that columns end alike."""
WIDE_MOST = 26
"""Lines of a chart on a wide terminal."""


class TrainingContent(NamedTuple):
    """How much the tab has to show.

    `rows` of the list, lines of the `verdict` with its findings, `numbers` of the selected run;
    `scaler` tells whether there is a loss scale to draw.
    """

    rows: int = 0
    verdict: int = 1
    numbers: int = 16
    happened: int = 0
    scaler: bool = True


def training_places(top: int, width: int, room: int, content: TrainingContent) -> list[Place]:
    """Return the places between tabs and footer; without a run it is help alone."""
    if not content.rows:
        return [Place("no-runs", 0, top, width, room, framed=width >= LIST_WIDTH)]
    if width < LIST_WIDTH:
        return stack(0, top, width, room, _one_column(content), framed=False)
    if width < FRAMED_WIDTH or room < FRAMED_HEIGHT:
        return stack(0, top, width, room, _narrow(content, room), framed=False)
    return _framed(top, width, room, content)


def _one_column(content: TrainingContent) -> list[Item]:
    """List, verdict in several lines, numbers."""
    return [
        Item("runs", 1, min(content.rows, 4) + 1, 1),
        Item("run-verdict", 1, 6, 2),
        Item("run-numbers", 3, content.numbers, 3),
        chart(_plots(content)[0], 4, 8),
    ]


def _narrow(content: TrainingContent, room: int) -> list[Item]:
    """One column without frames; the numbers stand in two columns."""
    least = min(content.rows, 3) + 1
    numbers = (content.numbers + 1) // 2
    return [
        Item("runs", least, max(least, min(content.rows, 5) + 1), 2),
        Item("run-verdict", 1, min(content.verdict, 3), 2),
        Item(_plots(content)[0], CHART_LEAST, 10, 4),
        Item("run-numbers", min(7 if room >= CHART_ROOM else 4, numbers), numbers, 3),
        Item("run-happened", 3, content.happened + 1, 4, extra=True),
    ]


def _plots(content: TrainingContent) -> list[str]:
    return ["scale", "loss", "norm"] if content.scaler else ["loss", "norm"]


def _framed(top: int, width: int, room: int, content: TrainingContent) -> list[Place]:
    """List and verdict at full width; under them charts at the left, numbers at the right."""
    wide = width >= WIDE_WIDTH and room + 5 >= WIDE_HEIGHT
    below = 2 * CHART_LEAST + 4 if not wide else 28
    said = content.verdict if wide else min(content.verdict, VERDICT_MOST)
    upper = [
        Item("runs", min(content.rows, 3) + 1 + FRAME, min(content.rows, ROWS_MOST) + 1 + FRAME, 0),
        Item("run-verdict", 1 + FRAME, said + FRAME, 1),
    ]
    places = stack(0, top, width, max(room - below, 9), upper, framed=True)
    used = sum(place.height for place in places)
    top, room = top + used, room - used
    right = max(NUMBERS_WIDTH, width * 2 // 5) if wide else NUMBERS_WIDTH
    left = width - right
    facts = [
        Item("run-numbers", 9 + FRAME, content.numbers + FRAME, 1),
        Item("run-happened", 3 + FRAME, max(HAPPENED, content.happened) + FRAME, 2),
    ]
    return [
        *places,
        *_charts(top, left, room, _plots(content), wide=wide),
        *stack(left, top, right, room, facts, framed=True),
    ]


def _charts(top: int, width: int, room: int, plots: list[str], *, wide: bool) -> list[Place]:
    """Charts above each other; on a wide terminal the last two side by side."""
    if not wide or len(plots) < 3:
        items = [chart(plot, rank) for rank, plot in enumerate(plots)]
        return stack(0, top, width, room, items, framed=True)
    upper = stack(0, top, width, room // 2, [chart(plots[0], 0, WIDE_MOST)], framed=True)
    used = sum(place.height for place in upper)
    half = width // 2
    return [
        *upper,
        *stack(0, top + used, half, room - used, [chart(plots[1], 0, WIDE_MOST)], framed=True),
        *stack(
            half,
            top + used,
            width - half,
            room - used,
            [chart(plots[2], 0, WIDE_MOST)],
            framed=True,
        ),
    ]

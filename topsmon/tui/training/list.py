"""The list of training runs: one row a launch, or one a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from textual.events import Click

from topsmon.diagnosis import mfu
from topsmon.diagnosis.training import ranks_text
from topsmon.diagnosis.training.other_ranks import lost
from topsmon.diagnosis.training.words import scale_text
from topsmon.run_state import RunState
from topsmon.tui.cells import Line, Span, clip, fit, left, line_width, right, width_of
from topsmon.tui.panel import Panel
from topsmon.tui.rate_rows import age_text
from topsmon.tui.training.launches import Launch
from topsmon.tui.training.words import (
    command_name,
    count,
    last_words,
    number,
    rank_name,
    seconds_text,
    skipped_ratio,
    speed_text,
    state_word,
)
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, percent, plain

STATE = 9
"""Cells of cursor and state word."""
NAME_LEAST, NAME_MOST = 18, 60
WORDS_LEAST = 30
"""Cells of columns in which last words can be read."""
STEP = 10
AGE = 12


class RunListApp(Protocol):
    """What a click on a row needs of the application."""

    view: View

    def select_run_row(self, place: int) -> None:
        """Select the run of a row of the list."""


class Column(NamedTuple):
    """A column of fixed width, its leading blank included. The lowest `keep` goes first."""

    head: str
    width: int
    keep: int
    cell: Callable[[View, Sequence[RunState]], str]


class RunList(Panel):
    """All launches. `first` is the row at the top when not all of them fit."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self.first = 0

    def title(self, view: View) -> str:
        """Count launches and processes."""
        training = view.training
        living = sum(launch.living for launch in training.launches)
        runs = len(training.launches)
        text = f"{runs} training run{'s' if runs != 1 else ''}, {living} live"
        processes = len(view.state.runs)
        return text + (f", {processes} processes" if processes > runs else "")

    def subtitle(self, view: View) -> str:
        """Say what the numbers of several ranks are, and what is out of sight."""
        rows = view.training.rows
        parts = []
        if any(len(row.members) > 1 for row in rows):
            parts.append("several ranks: the worst of each column, all speeds, mean loss")
        room = self.size.height - (3 if self.framed else 1)
        below = len(rows) - self.first - room
        if self.first:
            parts.append(f"{view.glyphs.up}{self.first} above")
        if below > 0:
            parts.append(f"{view.glyphs.down}{below} below")
        return "   ".join(parts)

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the head and as many rows as fit, among them the selected one."""
        rows = view.training.rows
        headed = height > 1 and width >= STATE + NAME_LEAST + STEP
        room = height - headed
        place = next((i for i, row in enumerate(rows) if holds(row, view.training.run)), 0)
        self.first = max(min(self.first, place), place - room + 1)
        self.first = max(0, min(self.first, len(rows) - room))
        columns = arrange(width, rows)
        # In a frame the lower edge tells what is out of sight.
        below = 0 if self.framed else len(rows) - self.first - room
        head = [_head(view, columns, width, 0 if self.framed else self.first, below)]
        return (head if headed else []) + [
            _row(view, row, columns, width, selected=holds(row, view.training.run))
            for row in rows[self.first : self.first + room]
        ]

    def on_click(self, event: Click) -> None:
        """Select the run under the mouse."""
        app: RunListApp = self.app  # type: ignore[assignment]
        row = event.y - (2 if self.framed else 1)
        if row >= 0:
            app.select_run_row(self.first + row)


def holds(launch: Launch, run: str | None) -> bool:
    """True where the run is a member of the launch."""
    return any(member.key == run for member in launch.members)


def arrange(width: int, rows: Sequence[Launch]) -> list[Column]:
    """Return the columns that fit beside a readable name."""
    columns = [column for column in COLUMNS if column.head != "speed" or _any_speed(rows)]
    used = STATE + NAME_LEAST
    while columns and used + sum(column.width for column in columns) > width:
        columns.remove(min(columns, key=lambda column: column.keep))
    return columns


def _any_speed(rows: Sequence[Launch]) -> bool:
    samples = [run.sample for row in rows for run in row.members if not run.ended]
    return any(sample is not None and speed_text(sample.window) for sample in samples)


def _head(view: View, columns: Sequence[Column], width: int, above: int, below: int) -> Line:
    hidden = f"{view.glyphs.up}{above} " if above > 0 else ""
    hidden += f"{view.glyphs.down}{below}" if below > 0 else ""
    text = left(" " + hidden, STATE) + left("run", _name_width(columns, width))
    return fit((Span(text + "".join(right(c.head, c.width) for c in columns), "muted"),), width)


def _row(
    view: View, launch: Launch, columns: Sequence[Column], width: int, *, selected: bool
) -> Line:
    ending = "@cursor" if selected else ""
    word, role = _state(view, launch)
    room = _name_width(columns, width)
    name = row_name(view, launch, room - 1)
    spans = [
        Span((view.glyphs.cursor if selected else " ") + " ", "text" + ending),
        Span(left(word, STATE - 2), role + ending),
    ]
    if launch.living:
        spans.append(Span(left(name, room), "text" + ending))
        spans += [_number(view, launch, column, ending) for column in columns]
    elif sum(column.width for column in columns) < WORDS_LEAST:
        spans += [Span(f"{name}  ", "muted" + ending), Span(_last_words(launch), "text" + ending)]
    else:
        spans.append(Span(left(name, room), "muted" + ending))
        spans += _ending(view, launch, columns, width - line_width(spans), ending)
    used = line_width(spans)
    if selected and used < width:
        spans.append(Span(" " * (width - used), "text" + ending))
    return fit(spans, width)


def _name_width(columns: Sequence[Column], width: int) -> int:
    return min(width - STATE - sum(column.width for column in columns), NAME_MOST)


def _state(view: View, launch: Launch) -> tuple[str, str]:
    """Word and role of the worst member."""
    order = ("fail", "warn", "muted", "ok")
    words = [state_word(run, view.training.of(run).findings) for run in launch.members]
    return min(words, key=lambda pair: order.index(pair[1]) if pair[1] in order else len(order))


def row_name(view: View, launch: Launch, room: int) -> str:
    """Name the command, and which ranks of it the row shows."""
    identity = launch.first.identity
    several = len(launch.members) > 1
    ranks = ranks_text(launch.members) if several else ""
    if not several and (view.training.unfolded or identity.rank is not None):
        siblings = view.training.launches
        alone = any(one.members == launch.members for one in siblings)
        ranks = "" if alone and identity.rank is None else rank_name(identity)
    if several and view.training.selected in launch.members and view.training.selected:
        chosen = rank_name(view.training.selected.identity)
        if width_of(f"{ranks} ({chosen})") <= room - 8:
            ranks = f"{ranks} ({chosen})"
    if not ranks:
        return command_name(identity, room)
    return clip(f"{command_name(identity, max(4, room - width_of(ranks) - 2))}  {ranks}", room)


def _number(view: View, launch: Launch, column: Column, ending: str) -> Span:
    living = [run for run in launch.members if not run.ended]
    text = plain(column.cell(view, living), column.width)
    role = "text" if text else "muted"
    return Span(right(text or NOT_AVAILABLE, column.width), role + ending)


def _ending(
    view: View, launch: Launch, columns: Sequence[Column], room: int, ending: str
) -> list[Span]:
    """Step and last words of a launch that has ended, and when."""
    steps = [run.sample.step for run in launch.members if run.sample is not None]
    spans = []
    if columns and columns[0].head == "step":
        step = count(min(steps)) if steps else NOT_AVAILABLE
        spans.append(Span(right(step, columns[0].width), "muted" + ending))
        room -= columns[0].width
    age = age_text(view.wall - launch.ended_at)
    age = right(age, AGE) if room >= WORDS_LEAST + AGE else ""
    room -= width_of(age)
    spans.append(Span("  " + left(_last_words(launch), max(0, room - 2)), "text" + ending))
    return [*spans, Span(age, "muted" + ending)]


def _last_words(launch: Launch) -> str:
    """Those of the member that ended worst, and not because another one had gone."""
    bad = [run for run in launch.members if run.condition in {"failed", "killed", "gone"}]
    worst = min(bad, key=lambda run: (lost(run), run.condition == "gone"), default=launch.first)
    return last_words(worst)


# Cells ------------------------------------------------------------------------------------------


def _step(view: View, runs: Sequence[RunState]) -> str:
    del view
    steps = [run.sample.step for run in runs if run.sample is not None]
    return count(min(steps)) if steps else ""


def _scale(view: View, runs: Sequence[RunState]) -> str:
    del view
    scales = [
        run.sample.scale for run in runs if run.sample is not None and run.sample.scale is not None
    ]
    if not scales and any(run.sample is not None for run in runs):
        return "none"
    return scale_text(min(scales)) if scales else ""


def _skipped(view: View, runs: Sequence[RunState]) -> str:
    del view
    ratios = [ratio for run in runs if (ratio := skipped_ratio(run)) is not None]
    return percent(max(ratios)) if ratios else ""


def _loss(view: View, runs: Sequence[RunState]) -> str:
    del view
    samples = [run.sample for run in runs if run.sample is not None]
    if any(sample.loss_finite is False for sample in samples):
        return "NaN/Inf"
    losses = [sample.loss for sample in samples if sample.loss is not None]
    return number(sum(losses) / len(losses)) if losses else ""


def _step_time(view: View, runs: Sequence[RunState]) -> str:
    del view
    times = [
        run.sample.window.step_seconds
        for run in runs
        if run.sample is not None and run.sample.window.step_seconds is not None
    ]
    return seconds_text(max(times)) if times else ""


def _speed(view: View, runs: Sequence[RunState]) -> str:
    del view
    if any(run.condition == "silent" for run in runs):
        return ""
    windows = [run.sample.window for run in runs if run.sample is not None]
    for field in ("tokens_per_second", "samples_per_second"):
        values = [value for window in windows if (value := getattr(window, field)) is not None]
        if values and len(values) == len(windows):
            total = sum(values)
            return speed_text(windows[0].__class__(steps=1, **{field: total}))
    return ""


def _mfu(view: View, runs: Sequence[RunState]) -> str:
    found = [mfu.of_run(view.state, run) for run in runs]
    known = [one for one in found if one.ratio is not None]
    if not known or len(known) < len(found):
        return ""
    lowest = min(known, key=lambda one: one.ratio or 0.0)
    return ("≥" if lowest.lower_bound else "") + percent(lowest.ratio)


COLUMNS = (
    Column("step", STEP, 99, _step),
    Column("scale", 9, 90, _scale),
    Column("skipped", 9, 95, _skipped),
    Column("loss", 9, 80, _loss),
    Column("step time", 10, 60, _step_time),
    Column("speed", 16, 40, _speed),
    Column("MFU", 8, 70, _mfu),
)

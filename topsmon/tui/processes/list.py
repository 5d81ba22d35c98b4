"""The process table: rows, the selected one in words, and the keys that belong to them."""

from __future__ import annotations

from typing import ClassVar, Protocol

from textual.binding import Binding, BindingType
from textual.events import Blur, Click, Key, MouseScrollDown, MouseScrollUp, Paste
from textual.screen import Screen

from topsmon.report.process_rows import Row
from topsmon.tui.cells import Line, Span, clip, fit, left, line_width, right, width_of
from topsmon.tui.options import ScreenOptions
from topsmon.tui.panel import Panel
from topsmon.tui.process_rows import unseen_user
from topsmon.tui.processes.columns import SORTS, STATE_ROLES, Column, arrange
from topsmon.tui.processes.table import FILTER_MOST, Table
from topsmon.tui.processes.words import (
    broken,
    elsewhere,
    kind_words,
    parents,
    place_hint,
    state_hint,
    who,
)
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, plain

HEAD = 10
"""Cells of the heads below the table."""
DETAIL_MOST = 7
DETAIL_FROM = 10
"""Height from which the selected process is told in words below the table."""
FAR = 1_000_000
READ_ONLY = "signals are off (--readonly)"


class ProcessApp(Protocol):
    """What the table needs of the application."""

    view: View
    options: ScreenOptions

    def redraw(self) -> None:
        """Draw what has changed."""

    def push_screen(self, screen: Screen[None], callback: object = None) -> object:
        """Open a dialog."""


class ProcessList(Panel):
    """All processes. It has the focus while its tab is shown, so that its keys come first."""

    can_focus = True
    headed_from = 8
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "process above", show=False),
        Binding("down,j", "move(1)", "process below", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", f"move({-FAR})", "first process", show=False),
        Binding("end", f"move({FAR})", "last process", show=False),
        Binding("left,h", "shift(-1)", "commands to the right", show=False),
        Binding("right,l", "shift(1)", "commands to the left", show=False),
        Binding("o", "sort", "sort", show=False),
        Binding("t", "tree", "tree", show=False),
        Binding("slash", "filter", "filter", show=False),
        Binding("escape", "clear", "clear the filter", show=False),
        Binding("enter", "details", "details", show=False),
        Binding("K", "signal", "signal", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self.table = Table()
        self.first = 0
        self.room = 1
        self.prompt = ""
        """What is asked for: "filter", "sort", or nothing."""
        self._asked = 0

    @property
    def _app(self) -> ProcessApp:
        app: ProcessApp = self.app  # type: ignore[assignment]
        return app

    def allow_focus(self) -> bool:
        """Take no keys in other tabs: a screen gives the focus also to what is not shown."""
        return bool(self.display)

    # Drawing --------------------------------------------------------------------------------------

    def show(self, view: View) -> None:
        """Draw the view, and take the keys."""
        self.table.update(view.state, ascii_only=view.glyphs.ascii_only)
        super().show(view)
        if not self.has_focus and self.display and self.screen is self.app.screen:
            self.focus(scroll_visible=False)

    def title(self, view: View) -> str:
        """Count the processes."""
        del view
        table = self.table
        count = f"{table.count} process{'' if table.count == 1 else 'es'}"
        if table.filter and self.prompt != "filter":
            count += f", {len(table.rows)} with {clip(plain(table.filter), 30)!r}: Esc shows all"
        return count + (", tree" if table.tree else "")

    def subtitle(self, view: View) -> str:
        """Count the rows that are out of sight."""
        glyphs, below = view.glyphs, len(self.table.rows) - self.first - self.room
        parts = [f"{glyphs.up}{self.first} above"] if self.first else []
        parts += [f"{glyphs.down}{below} below"] if below > 0 else []
        parts.append("SM, mem: share of time; CPU: 100% is one core")
        return "   ".join(parts)

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return what is asked for, head, rows and the selected process in words."""
        table = self.table
        upper = self._prompt_lines(view, width)
        self._asked = len(upper)
        lower: list[Line] = [
            fit((Span(f"{label}: processes {NOT_AVAILABLE}: {reason}", "warn"),), width)
            for label, reason in table.unreadable[: max(1, height // 4)]
        ]
        if not table.rows:
            return [*upper, fit((Span(self._nothing(view), "muted"),), width), *lower][:height]
        mig = any(row.key.gpu_instance is not None for row in table.rows)
        columns = arrange(width, mig=mig)
        if height >= DETAIL_FROM:
            detail = self._detail(view, columns, width)
            lower = detail[: min(DETAIL_MOST, height // 2 - 1)] + lower
        upper.append(self._head(view, columns, width))
        self.room = max(1, height - len(upper) - len(lower) - bool(lower))
        self.first = max(min(self.first, table.place), table.place - self.room + 1)
        self.first = max(0, min(self.first, len(table.rows) - self.room))
        shown = table.rows[self.first : self.first + self.room]
        lines = upper + [
            self._row(view, row, columns, width, selected=self.first + place == table.place)
            for place, row in enumerate(shown)
        ]
        return (lines + ([(), *lower] if lower else []))[:height]

    def _nothing(self, view: View) -> str:
        if self.table.count:
            return "no process fits the filter"
        if all(device.processes is None for device in view.state.devices.values()):
            return "the first look at processes is on its way"
        if all(
            device.processes is None or device.processes.entries is None
            for device in view.state.devices.values()
        ):
            return "which processes use a device is not known"
        if any(
            device.processes is None
            or device.processes.entries is None
            or device.condition != "ok"
            or unseen_user(device)
            for device in view.state.gpus()
        ):
            return "no process is visible"
        return "nobody uses a device"

    def _prompt_lines(self, view: View, width: int) -> list[Line]:
        """What is asked for, in as many lines as it takes."""
        if self.prompt == "filter":
            room = max(10, width - 40)
            text = plain(self.table.filter)
            shown = text if width_of(text) < room else "…" + text[-room // 2 :]
            count = f"{len(self.table.rows)} of {self.table.count}"
            hint = f"  {count}: Enter keeps, Esc shows all"
            cursor = "_" if view.glyphs.ascii_only else "▏"
            return [fit((Span("/", "key"), Span(shown + cursor), Span(hint, "muted")), width)]
        if not self.prompt:
            return []
        choices = [(column.letter, column.name) for column in SORTS]
        lines: list[list[Span]] = [[Span("sort by  ", "muted")]]
        for key, text in (
            *choices,
            ("o", "next"),
            ("capital", "the other way"),
            ("Esc", "as it is"),
        ):
            choice = [Span(f"{key} ", "key"), Span(f"{text}   ", "muted")]
            if line_width([*lines[-1], *choice]) > width:
                lines.append([Span(" " * 9)])
            lines[-1] += choice
        return [fit(line, width) for line in lines]

    def _head(self, view: View, columns: list[Column], width: int) -> Line:
        table = self.table
        heads = [self._head_cell(view, column, column.width) for column in columns]
        spans = [Span(" ", "muted"), *heads, Span("  ", "muted")]
        command = SORTS[-1]
        shifted = f" ({table.shift} cells on)" if table.shift else ""
        spans.append(self._head_cell(view, command, width_of(command.head) + 1))
        return fit((*spans, Span(shifted, "muted")), width)

    def _head_cell(self, view: View, column: Column, width: int) -> Span:
        table = self.table
        if column.letter != table.sorted_by.letter:
            text = column.head
        else:
            falling = column.largest != table.reverse
            text = column.head + (view.glyphs.down if falling else view.glyphs.up)
        role = "muted" if text is column.head else "title"
        if column.is_text:
            return Span(left(f"  {text}", width), role)
        return Span(right(text, width) if column.width else left(text, width), role)

    def _row(
        self, view: View, row: Row, columns: list[Column], width: int, *, selected: bool
    ) -> Line:
        ending = "@cursor" if selected else ""
        quiet = row.entry.own or row.is_parent or not row.entry.local
        role = "muted" if quiet else "text"
        spans = [Span(view.glyphs.cursor if selected else " ", "text" + ending)]
        for column in columns:
            text = column.cell(row, view.wall)
            cell_role = "muted" if text == NOT_AVAILABLE else role
            if column.letter == "z":
                cell_role = STATE_ROLES.get(text, role)
            shown = f"  {clip(text, column.width - 2)}" if column.is_text else text
            align = left if column.is_text else right
            spans.append(Span(align(shown, column.width), cell_role + ending))
        room = width - line_width(spans) - 2
        branch = clip(row.branch, max(0, room - 8))
        spans += [Span("  " + branch, "muted" + ending)]
        shift, room = self.table.shift, room - width_of(branch)
        command = who(row)[shift:] if shift else who(row, room)
        spans.append(Span(left(command, room), role + ending))
        return fit(spans, width)

    def _detail(self, view: View, columns: list[Column], width: int) -> list[Line]:
        row = self.table.selected
        if row is None:
            return []
        entry = row.entry
        pairs = [("is", place_hint(view, entry)), ("state", state_hint(entry))]
        pairs.append(("command", plain(entry.command or entry.name or "", 2000)))
        pairs.append(("parents", parents(entry)))
        if not row.cpu and not row.is_parent:
            where = f"{row.device}, {kind_words(entry)}"
            where += f", MIG instance {plain(row.profile, 20)}" if row.profile else ""
            pairs.append(("on", where))
            pairs.append(("not told", plain(row.note, 300)))
        shown = {column.letter for column in columns}
        also = (
            f"{column.name} {text}{' GiB' if column.head.endswith('GiB') else ''}"
            for column in SORTS[:-1]
            if column.letter not in shown
            and (text := column.cell(row, view.wall))
            and text != NOT_AVAILABLE
        )
        pairs.append(("also", ", ".join(also)))
        lines: list[Line] = []
        for head, text in pairs:
            most = 2 if head == "command" else 3
            for number, part in enumerate(broken(text, width - HEAD)[:most]):
                role = STATE_ROLES.get(entry.state or "", "text") if head == "state" else "text"
                beside = head if number == 0 else ""
                lines.append((Span(left(beside, HEAD), "muted"), Span(part, role)))
        return lines

    # Keys -----------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave keys that mean something else where many hosts or a recording are shown."""
        if action == "clear":
            return bool(self.table.filter)
        if action == "shift" or parameters in {(-FAR,), (FAR,)}:
            return self._app.view.replay is None
        return super().check_action(action, parameters)

    def on_key(self, event: Key) -> None:
        """Take letters while a filter or an order is asked for."""
        if not self.prompt:
            return
        if self.prompt == "filter":
            self._edit(event)
        else:
            self._take_order(event)
        event.stop()
        event.prevent_default()
        self._app.redraw()

    def _edit(self, event: Key) -> None:
        table = self.table
        if event.key == "escape":
            table.filter = self.prompt = ""
        elif event.key == "enter":
            self.prompt = ""
        elif event.key in {"backspace", "ctrl+h"}:
            table.filter = table.filter[:-1]
        elif event.key == "ctrl+u":
            table.filter = ""
        elif event.key in {"up", "down"}:
            table.move(-1 if event.key == "up" else 1)
        elif event.is_printable and event.character is not None:
            table.filter = (table.filter + event.character)[:FILTER_MOST]

    def _take_order(self, event: Key) -> None:
        if event.key == "o":
            self.table.sort_next()
            return
        if event.character is not None:
            self.table.sort(event.character)
        self.prompt = ""

    def on_paste(self, event: Paste) -> None:
        """Add pasted text to the filter."""
        if self.prompt == "filter":
            self.table.filter = (self.table.filter + " ".join(event.text.split()))[:FILTER_MOST]
            event.stop()
            self._app.redraw()

    def on_blur(self, event: Blur) -> None:
        """Ask for nothing any more."""
        del event
        self.prompt = ""

    def action_move(self, step: int) -> None:
        """Select another process."""
        self.table.move(step)
        self._app.redraw()

    def action_page(self, step: int) -> None:
        """Move by what is in sight."""
        self.action_move(step * max(1, self.room - 1))

    def action_shift(self, step: int) -> None:
        """Move the commands sideways."""
        self.table.scroll(step)
        self._app.redraw()

    def action_sort(self) -> None:
        """Ask for the column to sort by."""
        self.prompt = "sort"
        self._app.redraw()

    def action_tree(self) -> None:
        """Show processes below their parents, or in order again."""
        self.table.tree = not self.table.tree
        self._app.redraw()

    def action_filter(self) -> None:
        """Ask for the text to look for."""
        self.prompt = "filter"
        self._app.redraw()

    def action_clear(self) -> None:
        """Show all processes again."""
        self.table.filter = ""
        self._app.redraw()

    def action_details(self) -> None:
        """Open everything about the selected process."""
        from topsmon.tui.processes.details import ProcessDialog

        row = self.table.selected
        if row is not None:
            beside = [one for one in self.table.rows if one.entry.pid == row.entry.pid]
            self._open(ProcessDialog(self._app.view, row, beside))

    def action_signal(self) -> None:
        """Ask which signal the selected process is to get; or say why it gets none."""
        from topsmon.tui.processes.signals import SignalDialog, obstacle

        row = self.table.selected
        if row is None:
            return
        prevented = obstacle(self._app.view, row)
        if self._app.options.readonly and not elsewhere(self._app.view):
            prevented = READ_ONLY
        if prevented:
            self.app.notify(prevented, severity="warning", markup=False)
        else:
            self._open(SignalDialog(self._app.view, row))

    def _open(self, dialog: Screen[None]) -> None:
        self._app.push_screen(dialog, lambda _: self.app.call_later(self._app.redraw))

    def on_click(self, event: Click) -> None:
        """Select the process under the mouse."""
        above = 1 if self.framed or self.size.height >= self.headed_from else 0
        place = event.y - above - 1 - self._asked
        if 0 <= place < self.room:
            self.table.select(self.first + place)
            self._app.redraw()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Move down."""
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Move up."""
        event.stop()
        self.action_move(-1)

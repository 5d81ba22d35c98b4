"""The map of the fleet: one cell a device, host after host, or one cell a host where they are many.

Only the lines in sight are made. It has the focus while its tab is shown, so that its keys come
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Blur, Click, Key, MouseScrollDown, MouseScrollUp, Paste

from topsmon.tui.cells import Line, Span, fit, left
from topsmon.tui.fleet.keys import FleetApp
from topsmon.tui.fleet.selected import selected_lines
from topsmon.tui.fleet.watched import HostRow, Hosts
from topsmon.tui.fleet.words import (
    cell,
    filter_words,
    host_cell,
    metric_label,
    name_of,
    name_width,
    scale,
    scale_words,
    word_of,
)
from topsmon.tui.panel import Panel
from topsmon.tui.view import View
from topsmon.units import plain

FAR = 1_000_000
WORD = 6
GROUP = 10
"""Cells of the folded map stand in groups, so that they can be counted."""
DETAIL_FROM = 9
DETAIL_LINES = 2
NEIGHBOURS_FROM = 4
"""Lines that a folded map must leave for the devices of the hosts around the cursor."""


class HeatMap(Panel):
    """The hosts, in the order that the user chose."""

    can_focus = True
    headed_from = 4
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "host before", show=False),
        Binding("down,j", "move(1)", "host after", show=False),
        Binding("left_square_bracket", "line(-1)", "line before", show=False),
        Binding("right_square_bracket", "line(1)", "line after", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", f"move({-FAR})", "first host", show=False),
        Binding("end", f"move({FAR})", "last host", show=False),
        Binding("left,h", "metric(-1)", "metric before", show=False),
        Binding("right,l", "metric(1)", "metric after", show=False),
        Binding("o", "sort", "sort", show=False),
        Binding("t", "fold", "fold", show=False),
        Binding("slash", "filter", "filter", show=False),
        Binding("escape,backspace", "clear", "clear the filter", show=False),
        Binding("enter", "drill_down", "to the host", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self._first = 0
        self._rooms = 1
        self._per_line = 1
        self._count = 0
        self._above = 0
        self._block = self._blocks_in_line = 1
        self._label = 0
        self._folded = False

    @property
    def _app(self) -> FleetApp:
        app: FleetApp = self.app  # type: ignore[assignment]
        return app

    # Drawing --------------------------------------------------------------------------------------

    def show(self, view: View) -> None:
        """Draw the view, and take the keys."""
        folded = self._folded
        super().show(view)
        if folded != self._folded:
            super().show(view)  # the title was made before the lines
        if not self.has_focus and self.display and self.screen is self.app.screen:
            self.focus(scroll_visible=False)

    def title(self, view: View) -> str:
        """Name the metric and the filter."""
        hosts = view.hosts
        if hosts is None:
            return "hosts"
        cells = "host" if self._folded else "device"
        words = filter_words(hosts)
        return f"{metric_label(hosts)}, a cell a {cells}" + (f": {words}" if words else "")

    def subtitle(self, view: View) -> str:
        """Explain the signs; count the lines out of sight."""
        hosts, glyphs = view.hosts, view.glyphs
        if hosts is None:
            return ""
        parts = [f"{glyphs.up}{self._first} lines above"] if self._first else []
        below = -(-self._count // self._per_line) - self._first - self._rooms
        parts += [f"{glyphs.down}{below} lines below"] if below > 0 else []
        return "   ".join([*parts, scale_words(hosts, glyphs), hosts.sort])

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return the filter, the lines of the map that are in sight, and the selected host."""
        hosts = view.hosts
        if hosts is None:
            return []
        upper = [_asking(view, hosts, width)] if hosts.asking else []
        self._above = len(upper)
        if not hosts.rows:
            nothing = "no host fits the filter" if hosts.filter else "no host has said anything yet"
            return [*upper, fit((Span(nothing, "muted"),), width)]
        lower: list[Line] = []
        if height >= DETAIL_FROM:
            lower = [(), *selected_lines(view, hosts, width, DETAIL_LINES)]
        room = max(1, height - len(upper) - len(lower))
        self._measure(hosts, width, room)
        line = hosts.place // self._per_line
        self._first = max(min(self._first, line), line - self._rooms + 1)
        last = -(-self._count // self._per_line) - self._rooms
        self._first = max(0, min(self._first, last))
        if not self._folded:
            return [*upper, *self._blocks(view, hosts, width, self._first, self._rooms), *lower]
        body = [self._folded_line(view, hosts, number, width) for number in range(self._rooms)]
        left_over = room - self._rooms - 1
        if left_over >= NEIGHBOURS_FROM:
            first = max(0, hosts.place // self._blocks_in_line - left_over // 2)
            body += [(), *self._blocks(view, hosts, width, first, left_over)]
        return [*upper, *body, *lower]

    def _measure(self, hosts: Hosts, width: int, room: int) -> None:
        """How many hosts stand in a line, and whether a host is one cell."""
        names = name_width(hosts)
        devices = max((len(row.view.shown) for row in hosts.rows), default=1)
        self._block = 1 + names + 1 + max(devices, 1) + 1 + WORD + 1
        self._blocks_in_line = per_line = max(1, (width + 1) // self._block)
        self._count = len(hosts.rows)
        fits = self._count <= per_line * room
        self._folded = hosts.folded if hosts.folded is not None else not fits
        if self._folded:
            self._label = names + 1
            groups = max(1, (width - self._label + 1) // (GROUP + 1))
            per_line = groups * GROUP
        self._per_line = per_line
        self._rooms = max(1, min(room, -(-self._count // per_line)))

    def _rows(self, hosts: Hosts, number: int) -> tuple[HostRow, ...]:
        begin = (self._first + number) * self._per_line
        return hosts.rows[begin : begin + self._per_line]

    def _blocks(self, view: View, hosts: Hosts, width: int, first: int, count: int) -> list[Line]:
        """Lines of the map with a cell a device, from line `first` on."""
        each = self._blocks_in_line
        begins = range(first * each, min((first + count) * each, len(hosts.rows)), each)
        return [
            self._block_line(view, hosts, hosts.rows[begin : begin + each], width)
            for begin in begins
        ]

    def _block_line(self, view: View, hosts: Hosts, rows: Sequence[HostRow], width: int) -> Line:
        """Some hosts with their names, a cell a device, and a word."""
        names, ends = name_width(hosts), scale(hosts)
        spans: list[Span] = []
        for row in rows:
            ending = "@cursor" if row.view.name == hosts.selected else ""
            mark = view.glyphs.cursor if ending else " "
            quiet = row.trouble is None
            name_role = "muted" if quiet and not ending else "text"
            spans.append(Span(f"{mark}{name_of(row, names)} ", name_role + ending))
            for device in row.view.shown:
                one = cell(hosts, row, device, ends, view.glyphs)
                spans.append(Span(one.text, one.role + ending))
            used = self._block - names - 2 - len(row.view.shown) - 1
            word = word_of(row)
            text = "" if word.text == "ok" else word.text
            spans.append(Span(" " + left(text, used - 1), word.role + ending))
            spans.append(Span(" "))
        return fit(spans, width)

    def _folded_line(self, view: View, hosts: Hosts, number: int, width: int) -> Line:
        """The name of the first host of the line, and a cell a host."""
        rows, ends = self._rows(hosts, number), scale(hosts)
        if not rows:
            return ()
        spans = [Span(name_of(rows[0], self._label - 1) + " ", "muted")]
        for place, row in enumerate(rows):
            if place and place % GROUP == 0:
                spans.append(Span(" "))
            one = host_cell(hosts, row, ends, view.glyphs)
            if row.view.name == hosts.selected:
                one = Span(one.text if row.trouble is not None else view.glyphs.cursor, "tab")
            spans.append(one)
        return fit(spans, width)

    # Keys -----------------------------------------------------------------------------------------

    def on_key(self, event: Key) -> None:
        """Take letters while the filter is asked for."""
        watch = self._app.watching
        if not watch.asking:
            return
        if event.key == "escape":
            watch.asking = False
            watch.set_filter("")
        elif event.key == "enter":
            watch.asking = False
        elif event.key in {"backspace", "ctrl+h"}:
            watch.set_filter(watch.filter[:-1])
        elif event.key == "ctrl+u":
            watch.set_filter("")
        elif event.is_printable and event.character is not None:
            watch.set_filter(watch.filter + event.character)
        event.stop()
        event.prevent_default()
        self._app.redraw()

    def on_paste(self, event: Paste) -> None:
        """Add pasted text to the filter."""
        if self._app.watching.asking:
            self._app.watching.set_filter(self._app.watching.filter + " ".join(event.text.split()))
            event.stop()
            self._app.redraw()

    def on_blur(self, event: Blur) -> None:
        """Ask for nothing any more."""
        del event
        self._app.watching.asking = False

    def action_move(self, step: int) -> None:
        """Select another host."""
        self._app.watching.move(step)
        self._app.redraw()

    def action_line(self, step: int) -> None:
        """Select the host above or below on the map."""
        self.action_move(step * self._per_line)

    def action_page(self, step: int) -> None:
        """Move by what is in sight."""
        self.action_move(step * self._per_line * max(1, self._rooms - 1))

    def action_metric(self, step: int) -> None:
        """Show another metric."""
        self._app.watching.move_metric(step)
        self._app.redraw()

    def action_sort(self) -> None:
        """Use the next order."""
        self._app.watching.sort_next()
        self._app.redraw()

    def action_fold(self) -> None:
        """Show one cell a host, or one a device again."""
        self._app.watching.folded = not self._folded
        self._app.redraw()

    def action_filter(self) -> None:
        """Ask for the text to look for."""
        self._app.watching.asking = True
        self._app.redraw()

    def action_clear(self) -> None:
        """Show all hosts again."""
        self._app.watching.set_filter("")
        self._app.redraw()

    def action_drill_down(self) -> None:
        """Show the selected host in the other tabs."""
        hosts = self._app.view.hosts
        if hosts is not None and hosts.selected is not None:
            self._app.drill_down(hosts.selected)

    def on_click(self, event: Click) -> None:
        """Select the host under the mouse; select it twice to go there."""
        hosts = self._app.view.hosts
        if hosts is None:
            return
        inset = 2 if self.framed else 0
        above = 1 if self.framed or self.size.height >= self.headed_from else 0
        number, column = event.y - above - self._above, event.x - inset
        if not 0 <= number < self._rooms or column < 0:
            return
        if self._folded:
            column -= self._label
            if column < 0 or column % (GROUP + 1) == GROUP:
                return
            column -= column // (GROUP + 1)
        else:
            column //= self._block
        rows = self._rows(hosts, number)
        if column < len(rows):
            name = rows[column].view.name
            if name == hosts.selected:
                self._app.drill_down(name)
                return
            self._app.watching.select(name)
            self._app.redraw()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Move down."""
        event.stop()
        self.action_line(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Move up."""
        event.stop()
        self.action_line(-1)


def _asking(view: View, hosts: Hosts, width: int) -> Line:
    """What is typed, and what it leaves."""
    cursor = "_" if view.glyphs.ascii_only else "▏"
    text = plain(hosts.filter)
    room = max(10, width - 40)
    shown = text if len(text) < room else "…" + text[-room // 2 :]
    count = f"{len(hosts.rows)} of {hosts.all_hosts}"
    hint = f"  {count}: Enter keeps, Esc shows all"
    return fit((Span("/", "key"), Span(shown + cursor), Span(hint, "muted")), width)

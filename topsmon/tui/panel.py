"""The widget under all panels: it shows prepared lines and repaints those that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from topsmon.tui.cells import Line, Span, changed_until, clip, line_width, width_of
from topsmon.tui.glyphs import Glyphs
from topsmon.tui.palette import Palette

if TYPE_CHECKING:
    from topsmon.tui.view import View

FRAME_COLUMNS, FRAME_ROWS = 4, 2
"""Cells and lines that a frame takes."""


class PanelApp(Protocol):
    """What a panel needs of the application."""

    palette: Palette
    view: View


class Panel(Widget):
    """A part of the screen. Subclasses say which lines it has at a size.

    The frame is drawn here and not by Textual, whose border titles repaint the whole widget. A
    repaint starts at the left edge of a widget, so that what changes often is cheap at the left.
    """

    DEFAULT_CSS: ClassVar[str] = "Panel { height: 1; }"
    can_focus = False
    headed_from: ClassVar[int | None] = None
    """Height from which a panel without a frame has its title as first line; None for never."""

    def __init__(self, *, id: str) -> None:  # noqa: A002  Textual's name for it
        super().__init__(id=id)
        self.framed = False
        self._lines: list[Line] = []
        self._strips: dict[int, Strip] = {}
        self._palette: Palette | None = None

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """Return at most `height` lines of at most `width` cells."""
        raise NotImplementedError

    def title(self, view: View) -> str:
        """Return the text in the upper edge of the frame; "" for none."""
        del view
        return ""

    def subtitle(self, view: View) -> str:
        """Return the text in the lower edge of the frame; "" for none."""
        del view
        return ""

    @property
    def shown_lines(self) -> list[Line]:
        """The lines that are on the screen, with their frame."""
        return self._lines

    def show(self, view: View) -> None:
        """Draw the view; only what differs from the last one is repainted."""
        width, height = self.size
        if not width or not height:
            return
        old, self._lines = self._lines, self._compose_lines(view, width, height)
        if len(old) != len(self._lines):
            self._strips.clear()
            self.refresh()
            return
        dirty = []
        for row, (before, after) in enumerate(zip(old, self._lines, strict=True)):
            end = changed_until(before, after)
            if end:
                self._strips.pop(row, None)
                dirty.append(Region(0, row, min(end, width), 1))
        if dirty:
            self.refresh(*dirty)

    def on_resize(self) -> None:
        """Draw again at the new size."""
        app: PanelApp = self.app  # type: ignore[assignment]
        self.show(app.view)

    def _compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        if not self.framed or width <= FRAME_COLUMNS or height <= FRAME_ROWS:
            head: list[Line] = []
            if self.headed_from is not None and height >= self.headed_from:
                head = [(Span(clip(" " + self.title(view), width), "muted"),)]
            lines = (head + self.lines(view, width, height - len(head)))[:height]
            return lines + [()] * (height - len(lines))
        inner_width, inner_height = width - FRAME_COLUMNS, height - FRAME_ROWS
        lines = self.lines(view, inner_width, inner_height)[:inner_height]
        lines += [()] * (inner_height - len(lines))
        return frame(lines, self.title(view), self.subtitle(view), width, view.glyphs)

    def render_line(self, y: int) -> Strip:
        """Return one line of the content."""
        app: PanelApp = self.app  # type: ignore[assignment]
        if app.palette is not self._palette:
            self._palette = app.palette
            self._strips.clear()
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self._make_strip(y, app.palette)
        return strip

    def _make_strip(self, y: int, palette: Palette) -> Strip:
        width = self.size.width
        line = self._lines[y] if y < len(self._lines) else ()
        segments = [Segment(text, palette.style(role)) for text, role in line]
        used = line_width(line)
        if used < width:
            segments.append(Segment(" " * (width - used), palette.style("text")))
        return Strip(segments, max(used, width))


def frame(lines: list[Line], title: str, subtitle: str, width: int, glyphs: Glyphs) -> list[Line]:
    """Return lines with a frame of `width` cells around them."""
    box = glyphs.box
    framed = [_edge(title, "title", width, box[0], box[1], glyphs)]
    for line in lines:
        used = line_width(line)
        gap = " " * (width - FRAME_COLUMNS - used + 1)
        framed.append((Span(box[4] + " ", "faint"), *line, Span(gap + box[4], "faint")))
    framed.append(_edge(subtitle, "muted", width, box[2], box[3], glyphs))
    return framed


def _edge(text: str, role: str, width: int, begin: str, end: str, glyphs: Glyphs) -> Line:
    """One horizontal edge with a text near its left end."""
    side = glyphs.rule
    text = clip(text, width - 8)
    if not text:
        return (Span(begin + side * (width - 2) + end, "faint"),)
    rest = side * (width - 5 - width_of(text))
    return (Span(begin + side + " ", "faint"), Span(text, role), Span(f" {rest}{end}", "faint"))

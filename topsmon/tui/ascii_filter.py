"""The last step on the way to a terminal without Unicode."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from topsmon.tui.glyphs import to_ascii


class AsciiFilter(LineFilter):
    """Replace whatever is not ASCII on its way to the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments with ASCII text of the same width."""
        del background
        return [
            segment._replace(text=to_ascii(segment.text)) if segment.text else segment
            for segment in segments
        ]

"""Where a replay stands, in one line: position, bar, duration, speed."""

from __future__ import annotations

from topsmon.recording.progress import Progress
from topsmon.recording.words import clock
from topsmon.tui.cells import Line, Span, clip, fit, line_width
from topsmon.tui.view import View
from topsmon.units import plain

SHORTEST_BAR, LONGEST_BAR = 8, 60


def position_bar(view: View, room: int) -> Line:
    """The line for so many cells; what matters least is left out where room is short."""
    progress = view.replay
    assert progress is not None
    before = Span(f"{clock(progress.position)} ", "strong")
    times = view.glyphs.times
    after = Span(f" {clock(progress.duration)}  {times}{progress.speed:g} ", "text")
    extra = progress.message or plain(progress.name, 60)
    left = room - line_width((before, after))
    if left < SHORTEST_BAR:
        return fit((before, after), room)
    words = clip(extra, max(0, left - SHORTEST_BAR - 2))
    name = Span(f"{words}  ", "key" if progress.message else "muted")
    spans: tuple[Span, ...] = (name,) if words else ()
    length = min(left - line_width(spans), LONGEST_BAR)
    done = filled(progress, length)
    gone = Span(view.glyphs.bar * done, "series-1")
    to_come = Span(view.glyphs.track * (length - done), "muted")
    return fit((*spans, before, gone, to_come, after), room)


def filled(progress: Progress, length: int) -> int:
    """Cells of a bar that lie before the position."""
    if progress.duration <= 0:
        return length
    return min(length, max(0, round(length * progress.position / progress.duration)))

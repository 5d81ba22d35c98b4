"""An opened screen, and what stands on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from textual.pilot import Pilot

from topsmon.tui.app import TopsmonApp

Opened = AbstractAsyncContextManager[tuple[TopsmonApp, Pilot]]
OpenScreen = Callable[..., Opened]


def text_of(app: TopsmonApp) -> list[str]:
    """What stands on the terminal, line by line, after all filters."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


async def resize(app: TopsmonApp, pilot: Pilot, width: int, height: int) -> None:
    """Give the terminal another size; return once the screen has been laid out for it."""
    await pilot.resize_terminal(width, height)
    while tuple(app.screen._compositor.size) != (width, height):
        await pilot.pause(0.01)
    await pilot.pause()

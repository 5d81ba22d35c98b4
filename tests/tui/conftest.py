"""Open the screen at a size, on an invented machine, at a fixed time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from screen_demo import NOW, WALL, FakeSession
from screen_text import OpenScreen
from textual.pilot import Pilot

from topsmon import events
from topsmon.state import State
from topsmon.tui import themes
from topsmon.tui.app import TopsmonApp
from topsmon.tui.glyphs import ASCII, UTF8
from topsmon.tui.options import ScreenOptions


@pytest.fixture(autouse=True)
def _utc() -> Iterator[None]:
    """The screen's times in UTC; the time zone of other tests is theirs again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(autouse=True)
def _own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the developer's own surroundings: themes, files, colours."""
    monkeypatch.setattr(themes, "user_directory", lambda: tmp_path / "themes")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "256")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def make_app() -> Callable[..., TopsmonApp]:
    def make(
        state: State,
        findings: tuple[events.Finding, ...] = (),
        *,
        session: FakeSession | None = None,
        **options: object,
    ) -> TopsmonApp:
        app = TopsmonApp(
            session or FakeSession(state, findings),
            ScreenOptions(**options),
            clock=lambda: (NOW, WALL),
        )
        app.glyphs = ASCII if options.get("ascii_only") else UTF8
        app.view = app._look()
        return app

    return make


@pytest.fixture
def open_screen(make_app: Callable[..., TopsmonApp]) -> OpenScreen:
    @asynccontextmanager
    async def opened(
        state: State,
        findings: tuple[events.Finding, ...] = (),
        size: tuple[int, int] = (120, 40),
        **options: object,
    ) -> AsyncIterator[tuple[TopsmonApp, Pilot]]:
        app = make_app(state, findings, **options)
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            app.redraw()
            await pilot.pause()
            yield app, pilot

    return opened

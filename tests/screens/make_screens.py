"""Draw the README's pictures: the real screen of the simulated driver and of this machine's CPU,
and the training tab with invented runs, which are the same at each run.

Run: python tests/screens/make_screens.py [training]  (writes the SVG files beside itself)
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tui"))

from screen_demo import NOW, WALL, FakeSession, eight
from training_runs import collapsing, finished, healthy, killed, with_energy, with_runs

from topsmon import diagnosis
from topsmon.session import Session, SessionOptions
from topsmon.simulated import prepare
from topsmon.tui.app import TopsmonApp
from topsmon.tui.glyphs import UTF8
from topsmon.tui.options import ScreenOptions

HERE = Path(__file__).parent
SIZES = ((80, 24), (120, 40), (200, 60))
TRAINING_SIZES = SIZES[:2]
WAIT_SECONDS = 25.0


async def draw(name: str, scenario: str | None, sizes: tuple[tuple[int, int], ...]) -> None:
    """Let a session run for a while and draw it at several sizes."""
    with tempfile.TemporaryDirectory() as directory:
        environment = prepare(scenario, Path(directory)) if scenario is not None else {}
        options = SessionOptions(interval=0.5, simulated=scenario, environment=environment)
        app = TopsmonApp(Session(options), ScreenOptions())
        async with app.run_test(size=sizes[0]) as pilot:
            await asyncio.sleep(WAIT_SECONDS)
            for columns, rows in sizes:
                await pilot.resize_terminal(columns, rows)
                await asyncio.sleep(1.5)
                save(app, name, columns, rows)


def save(app: TopsmonApp, name: str, columns: int, rows: int) -> None:
    """Write what the screen shows."""
    picture = app.export_screenshot(title=f"topsmon {name}")
    # The names of generated classes change with each run; the picture should not.
    picture = re.sub(r"terminal-\d+", f"topsmon-{name}-{columns}", picture)
    path = HERE / f"{name}-{columns}x{rows}.svg"
    path.write_text(picture, encoding="utf-8")
    print(path)


async def draw_training(name: str, *runs: list, theme: str = "dusk", tab: str = "3") -> None:
    """Draw the training tab, or the live one, of a machine with some runs, at a fixed time."""
    state = with_energy(with_runs(eight(capped=None), *runs))
    session = FakeSession(state, diagnosis.diagnose(state, NOW))
    app = TopsmonApp(session, ScreenOptions(theme=theme), clock=lambda: (NOW, WALL))
    app.glyphs = UTF8
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(tab)
        for columns, rows in TRAINING_SIZES:
            await pilot.resize_terminal(columns, rows)
            await pilot.pause()
            save(app, name, columns, rows)


async def main() -> None:
    """Draw everything, or what was asked for."""
    os.environ["COLORTERM"] = "truecolor"
    os.environ["TZ"] = "UTC"
    time.tzset()
    await draw_training("training-healthy", healthy(), finished(), killed())
    await draw_training("training-broken", collapsing(), healthy(), killed())
    if sys.argv[1:] == ["training"]:
        return
    await draw("eight-gpus", "power-cap", SIZES)
    await draw("cpu", None, ((80, 24),))


if __name__ == "__main__":
    asyncio.run(main())

"""Draw the README's pictures: the real screen of the simulated driver and of this machine's CPU.

Run: python tests/screens/make_screens.py  (writes the SVG files beside itself)
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from pathlib import Path

from topsmon.session import Session, SessionOptions
from topsmon.simulated import prepare
from topsmon.tui.app import TopsmonApp
from topsmon.tui.options import ScreenOptions

HERE = Path(__file__).parent
SIZES = ((80, 24), (120, 40), (200, 60))
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
                picture = app.export_screenshot(title=f"topsmon {name}")
                # The names of generated classes change with each run; the picture should not.
                picture = re.sub(r"terminal-\d+", f"topsmon-{name}-{columns}", picture)
                path = HERE / f"{name}-{columns}x{rows}.svg"
                path.write_text(picture, encoding="utf-8")
                print(path)


async def main() -> None:
    """Draw everything."""
    os.environ["COLORTERM"] = "truecolor"
    await draw("eight-gpus", "power-cap", SIZES)
    await draw("cpu", None, ((80, 24),))


if __name__ == "__main__":
    asyncio.run(main())

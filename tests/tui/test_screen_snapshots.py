"""Four pictures that a change of the look must change on purpose.

`pytest tests/tui/test_screen_snapshots.py --snapshot-update` takes new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import pytest
from screen_demo import capped_finding, cpu_only, eight
from signal_machines import bound_by_memory

from topsmon import events
from topsmon.state import State
from topsmon.tui.app import TopsmonApp

TAKEN_WITH = "8.2.8"

pytestmark = pytest.mark.skipif(
    version("textual") != TAKEN_WITH,
    reason=f"the pictures were taken with Textual {TAKEN_WITH}; others draw SVG differently",
)


@pytest.mark.parametrize(
    ("machine", "findings", "size", "theme"),
    [
        (eight, (capped_finding(),), (120, 40), "dusk"),
        (cpu_only, (), (80, 24), "daylight"),
        (eight, (capped_finding(),), (200, 60), "colour-safe"),
        (lambda: bound_by_memory(4), (), (120, 40), "parchment"),
    ],
    ids=["eight-120x40", "cpu-80x24", "eight-200x60", "memory-bound-120x40"],
)
def test_picture(
    snap_compare: Callable[..., bool],
    make_app: Callable[..., TopsmonApp],
    machine: Callable[[], State],
    findings: tuple[events.Finding, ...],
    size: tuple[int, int],
    theme: str,
) -> None:
    app = make_app(machine(), findings, theme=theme)

    async def settle(pilot) -> None:
        app.redraw()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=settle)

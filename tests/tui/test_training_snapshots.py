"""Two pictures of the training tab that a change of its look must change on purpose.

`pytest tests/tui/test_training_snapshots.py --snapshot-update` takes new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import pytest
from screen_demo import eight
from training_runs import collapsing, crashed, finished, healthy, killed, with_runs

from topsmon.tui.app import TopsmonApp

TAKEN_WITH = "8.2.8"

pytestmark = pytest.mark.skipif(
    version("textual") != TAKEN_WITH,
    reason=f"the pictures were taken with Textual {TAKEN_WITH}; others draw SVG differently",
)


@pytest.mark.parametrize(
    ("sources", "size", "theme"),
    [
        ((healthy, finished, crashed), (120, 40), "dusk"),
        ((collapsing, healthy, killed), (80, 24), "daylight"),
    ],
    ids=["healthy-120x40", "broken-80x24"],
)
def test_picture(
    snap_compare: Callable[..., bool],
    make_app: Callable[..., TopsmonApp],
    sources: tuple[Callable, ...],
    size: tuple[int, int],
    theme: str,
) -> None:
    app = make_app(with_runs(eight(ticks=2), *(source() for source in sources)), theme=theme)

    async def settle(pilot) -> None:
        await pilot.press("3")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=settle)

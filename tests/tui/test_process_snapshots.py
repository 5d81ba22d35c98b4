"""Two pictures of the process table that a change of its look must change on purpose.

`pytest tests/tui/test_process_snapshots.py --snapshot-update` takes new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import pytest
from process_demo import crowd

from topsmon.tui.app import TopsmonApp

TAKEN_WITH = "8.2.8"

pytestmark = pytest.mark.skipif(
    version("textual") != TAKEN_WITH,
    reason=f"the pictures were taken with Textual {TAKEN_WITH}; others draw SVG differently",
)


@pytest.mark.parametrize(
    ("keys", "size", "theme"),
    [(("5", "t", "j"), (120, 40), "dusk"), (("5", "o"), (80, 24), "daylight")],
    ids=["tree-120x40", "order-80x24"],
)
def test_picture(
    snap_compare: Callable[..., bool],
    make_app: Callable[..., TopsmonApp],
    keys: tuple[str, ...],
    size: tuple[int, int],
    theme: str,
) -> None:
    app = make_app(crowd(), theme=theme)

    async def settle(pilot) -> None:
        await pilot.press(*keys)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=settle)

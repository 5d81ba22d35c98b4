"""A picture of the hosts tab that a change of the look must change on purpose.

`pytest tests/tui/test_fleet_snapshots.py --snapshot-update` takes a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import pytest
from fleet_screens import fleet_app, troubled

TAKEN_WITH = "8.2.8"

pytestmark = pytest.mark.skipif(
    version("textual") != TAKEN_WITH,
    reason=f"the pictures were taken with Textual {TAKEN_WITH}; others draw SVG differently",
)


def test_picture_of_a_troubled_fleet(snap_compare: Callable[..., bool]) -> None:
    app = fleet_app(troubled())

    async def settle(pilot) -> None:
        app.redraw()
        await pilot.pause()

    assert snap_compare(app, terminal_size=(120, 40), run_before=settle)

"""Sessions over simulated fleets at a fixed time, and their screen."""

from __future__ import annotations

from topsmon.fleet.session import FleetSession
from topsmon.fleet.simulated import played
from topsmon.simulated.fleet import parse
from topsmon.tui.fleet_app import FleetApp
from topsmon.tui.glyphs import ASCII, UTF8
from topsmon.tui.options import ScreenOptions

WALL = 1_780_000_000.0
FAULTS = "fault=straggler:node17:3,fault=hot:node4:0,fault=ecc:node3:2,fault=lost:node21:7"
SECONDS = (0.0, 3.0, 4.0)


class StillSession(FleetSession):
    """Many hosts that say nothing new; the clock stands at 0."""

    def __init__(self, plan: str) -> None:
        super().__init__()
        self.fleet = played(parse(plan), SECONDS)

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""


def troubled(nodes: int = 40) -> StillSession:
    """GPUs that are slow, hot, failing and lost; two hosts without a link and one silent."""
    session = StillSession(f"nodes={nodes},{FAULTS}")
    fleet = session.fleet
    fleet.link("node5", "gone", "Connection timed out", -40.0)
    fleet.hosts["node5"].seen = -41.0
    fleet.link("node9", "refused", "Host key verification failed.", -3.0)
    fleet.hosts["node11"].seen = -4.0
    return session


def fleet_app(session: FleetSession, *, ascii_only: bool = False, theme: str = "dusk") -> FleetApp:
    options = ScreenOptions(theme=theme, ascii_only=ascii_only)
    app = FleetApp(session, options, clock=lambda: (0.0, WALL))
    app.glyphs = ASCII if ascii_only else UTF8
    for _ in range(8):  # the other metrics take their turns
        app.watching._at = None
        app.view = app._look()
    return app

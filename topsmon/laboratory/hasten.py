"""A simulated check meets what happens late in its scenario: its clock starts later."""

from __future__ import annotations

import os
from collections.abc import Mapping

START = "TOPSMON_SIMULATED_START"
STRIKE_SECONDS = 1.8
"""After the start of the run the scenario's first fault begins: about a second into measuring."""


def environment(name: str, given: Mapping[str, str], now: float) -> tuple[Mapping[str, str], float]:
    """The environment of the run's children, and when (monotonic) the first fault begins.

    A check is over before most faults would begin. Without one the second is `now`. Raises
    SimulationError.
    """
    # Not at the top: a real check has no use for the scenarios.
    from topsmon.simulated import scenario

    late = [fault.start for fault in scenario.load(name).faults if fault.start > 0]
    started = given.get(START) or os.environ.get(START)
    if not late or started is None:
        return given, now
    begun = min(float(started), now + STRIKE_SECONDS - min(late))
    return {**given, START: repr(begun)}, begun + min(late)

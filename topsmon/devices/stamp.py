"""The three fields that every event begins with."""

from __future__ import annotations

import time
from typing import TypedDict


class Stamp(TypedDict):
    """Keyword arguments of any event: wall clock, monotonic clock, source."""

    time: float
    monotonic: float
    source: str


def stamp(source: str) -> Stamp:
    """Return the stamp of an event of `source` that happens now."""
    return Stamp(time=time.time(), monotonic=time.monotonic(), source=source)

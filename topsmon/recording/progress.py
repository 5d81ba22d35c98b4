"""Where a replay stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Position and duration in s from the beginning; `speed` is recorded s per s.

    `message` says in words what is going on beyond that ("searching", "the end").
    """

    name: str
    position: float
    duration: float
    speed: float
    message: str = ""

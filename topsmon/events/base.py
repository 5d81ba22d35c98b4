"""What every event has."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every event has."""

    time: float
    monotonic: float
    source: str

"""Equal boards, and ceilings kept once for all boards that have the same ones."""

from __future__ import annotations

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.units import PRECISIONS


class Board:
    """Boards of the same name, memory, SMs and slicing, which can be compared with each other.

    There is one object for them all, so that it is found by identity.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class BoardPool:
    """Gives equal boards one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int | None, int | None, bool], Board] = {}

    def of(self, identity: events.Device) -> Board:
        """Return the object for a device's board."""
        key = (identity.name, identity.memory_total_bytes, identity.sm_count, identity.mig)
        return self._known.setdefault(key, Board(identity.name))


class SharedCeilings:
    """The ceilings of equal boards: those of the first one, looked up by measured precision.

    `absences` say why a precision has none.
    """

    __slots__ = ("absences", "by_precision", "event")

    def __init__(self, identity: events.Device, event: events.Ceilings) -> None:
        self.event = event
        one = DeviceState(identity, ceilings=event)
        self.by_precision: dict[str, events.Ceiling] = {}
        self.absences: dict[str, str | None] = {}
        for key in PRECISIONS:
            ceiling = one.ceiling(key)
            if ceiling is not None:
                self.by_precision[key] = ceiling
            else:
                self.absences[key] = one.absence(key)

    def of(self, identity: events.Device) -> events.Ceilings:
        """The event as that device would have sent it."""
        return msgspec.structs.replace(
            self.event,
            time=identity.time,
            monotonic=identity.monotonic,
            source=identity.source,
            device=identity.device,
        )


class CeilingsPool:
    """Gives equal ceilings of different devices one object: 10,000 copies would be 100 MB."""

    def __init__(self) -> None:
        self._known: dict[bytes, SharedCeilings] = {}

    def share(self, identity: events.Device, event: events.Ceilings) -> SharedCeilings:
        """Return the object for these ceilings, a new one only for new content."""
        content = msgspec.json.encode(
            msgspec.structs.replace(event, time=0.0, monotonic=0.0, source="", device="")
        )
        key = identity.kind.encode() + content
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = SharedCeilings(identity, event)
        return known

    def __len__(self) -> int:
        return len(self._known)

    def precisions(self) -> frozenset[str]:
        """The precisions for which any board has a ceiling."""
        return frozenset(key for shared in self._known.values() for key in shared.by_precision)

"""Events as rows of tables: one column a number, its unit in its name, nothing where nothing is."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from topsmon import events
from topsmon.units import plain

Kind = Literal["real", "whole", "truth", "text"]
Cell = float | int | bool | str | None
THROTTLE_REASONS = (
    "power", "thermal", "sw_thermal", "hw_thermal", "power_brake", "sync_boost", "board_limit",
    "reliability",
)  # fmt: skip
_KINDS: dict[type, Kind] = {float: "real", int: "whole", bool: "truth", str: "text"}
_RENAMED = {"time": "time_unix_seconds", "monotonic": "monotonic_seconds"}
MOST_WHOLE = 1 << 63
TEXT_LIMIT = 4096


@dataclass(frozen=True)
class Column:
    """A column: name, what its cells are, and how to take one from an event."""

    name: str
    kind: Kind
    take: Callable[[Any], Cell]


@dataclass(frozen=True)
class Table:
    """All events of one type, as rows."""

    name: str
    event: type[events.AnyEvent]
    columns: tuple[Column, ...]

    def row(self, event: events.AnyEvent) -> list[Cell]:
        """The cells of an event, in the order of the columns."""
        return [column.take(event) for column in self.columns]


def _columns(struct: Any, path: tuple[str, ...] = ()) -> list[Column]:
    """One column a field, those of a struct inside it with its name before theirs."""
    found: list[Column] = []
    for field in msgspec.structs.fields(struct):
        inner = (*path, field.name)
        base = _base(field.type)
        if isinstance(base, type) and issubclass(base, msgspec.Struct):
            found += _columns(base, inner)
        elif field.name == "throttle_ratios":
            found += [
                Column(f"throttle_{reason}_ratio", "real", _entry(inner, reason))
                for reason in THROTTLE_REASONS
            ]
        else:
            name = _RENAMED.get(field.name, field.name) if not path else "_".join(inner)
            found.append(Column(name, _kind(base), _cell(inner, _kind(base))))
    return found


def _base(annotation: Any) -> Any:
    """The type of a field that may be None."""
    if typing.get_origin(annotation) in {types.UnionType, typing.Union}:
        members = [one for one in typing.get_args(annotation) if one is not type(None)]
        return members[0] if len(members) == 1 else str
    return annotation


def _kind(base: Any) -> Kind:
    return _KINDS.get(base, "text") if isinstance(base, type) else "text"


def _value(event: Any, path: tuple[str, ...]) -> Any:
    value = event
    for name in path:
        value = getattr(value, name, None)
    return value


def _entry(path: tuple[str, ...], key: str) -> Callable[[Any], Cell]:
    return lambda event: (_value(event, path) or {}).get(key)


def _cell(path: tuple[str, ...], kind: Kind) -> Callable[[Any], Cell]:
    def take(event: Any) -> Cell:
        value = _value(event, path)
        if value is None or (kind == "whole" and abs(value) >= MOST_WHOLE):
            return None
        if kind != "text":
            return value  # type: ignore[no-any-return]
        if not isinstance(value, str):
            value = msgspec.json.encode(value).decode() if value else ""
        return plain(value, TEXT_LIMIT)

    return take


def _table(name: str, event: type[events.AnyEvent]) -> Table:
    return Table(name, event, tuple(_columns(event)))


TABLES: tuple[Table, ...] = (
    _table("samples", events.DeviceSample),
    _table("host", events.HostSample),
    _table("rates", events.RateMeasured),
    _table("probes", events.ProbeResult),
    _table("findings", events.Finding),
    _table("runs", events.RunSample),
    _table("run-events", events.RunEvent),
    _table("devices", events.Device),
)
"""The first has the name given, the others that name with theirs."""

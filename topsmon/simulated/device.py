"""The devices of a scenario: what its file says of each, checked and ready for the table."""

from __future__ import annotations

import itertools
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from topsmon.simulated import throttle
from topsmon.simulated.fields import NUMBER_FIELDS, PARTS, TEXT_FIELDS
from topsmon.simulated.values import SimulationError, compile_value, constant

MAX_DEVICES = 64
NVIDIA = 0x10DE
"""PCI vendor."""
NAMESPACE = uuid.UUID("6f2d1c1e-7d0b-5c55-9d6a-2f1f6a3c9a41")
XID_EVENT = 8
"""NVML's type of the event that carries an XID."""
NO_INSTANCE = 0xFFFFFFFF
SAME_SWITCH, SAME_NODE, SAME_SYSTEM = 10, 40, 50
"""Levels of NVML's topology: one PCIe switch, one NUMA node, neither."""

Word = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process on a device; `memory_mib` None: the driver cannot tell. Times in scenario s.

    Shares of time are in percent; without `sm_percent` the driver has no sample of the process.
    """

    pid: Word
    kind: Literal["compute", "graphics", "mps"] = "compute"
    memory_mib: Amount | None = None
    gpu_instance: Word = NO_INSTANCE
    compute_instance: Word = NO_INSTANCE
    start: Amount = 0.0
    end: Amount | None = None
    name: str | None = None
    sm_percent: _Share | None = None
    memory_busy_percent: _Share | None = None
    encoder_percent: _Share | None = None
    decoder_percent: _Share | None = None


class DriverEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the driver reports at a scenario time: an XID unless `type` says another event."""

    time: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    xid: Word = 0
    type: Word = XID_EVENT
    gpu_instance: Word = NO_INSTANCE
    compute_instance: Word = NO_INSTANCE


class Device(NamedTuple):
    """One device, ready for the table. `parent` is -1 unless it is a MIG instance."""

    parent: int
    texts: dict[str, str]
    numbers: dict[str, tuple[str, ...]]
    processes: tuple[Process, ...]
    events: tuple[DriverEvent, ...]


def build(
    count: int, common: Mapping[str, Any], single: Mapping[str, Mapping[str, Any]], name: str
) -> tuple[Device, ...]:
    """Return the `count` devices and their MIG instances; SimulationError names what is wrong.

    `common` holds the fields of the devices, `single` those of single ones by index; `name` seeds
    their UUIDs.
    """
    for key in single:
        if not key.isascii() or not key.isdigit() or int(key) >= MAX_DEVICES:
            raise SimulationError(f"devices: {key!r} is no device index")
    total = max([count, *(int(key) + 1 for key in single)])
    merged = [{**common, **single.get(str(index), {})} for index in range(total)]
    return tuple(_device(merged, index, count, name) for index in range(total))


def _device(merged: list[dict[str, Any]], index: int, count: int, name: str) -> Device:
    where = f"devices.{index}"
    fields = dict(merged[index])
    parent = fields.pop("parent", -1)
    if not isinstance(parent, int) or (index < count) != (parent == -1):
        raise SimulationError(f"{where}: from index `count` on, and only there, MIG has `parent`")
    if parent >= count:
        raise SimulationError(f"{where}: parent {parent} is no device")
    processes = _rows(fields.pop("processes", None), tuple[Process, ...], f"{where}.processes")
    events = _rows(fields.pop("xids", None), tuple[DriverEvent, ...], f"{where}.xids")
    if any(later.time <= event.time for event, later in itertools.pairwise(events)):
        raise SimulationError(f"{where}.xids: their times must rise")
    instance = parent >= 0
    slot = parent if instance else index
    defaults = {
        "uuid": f"{'MIG' if instance else 'GPU'}-{uuid.uuid5(NAMESPACE, f'{name}/{index}')}",
        "pci_bus_id": f"00000000:{0x1B + 0x10 * slot & 0xFF:02X}:00.0",
        "minor_number": None if instance else index,
        **_topology(merged[:count], index),
    }
    expanded = _expanded(fields, where)
    derived = throttle.counters(expanded.get("clock_event_mask"), index)
    texts: dict[str, str] = {}
    numbers: dict[str, tuple[str, ...]] = {}
    for field, value in {**defaults, **derived, **expanded}.items():
        if value is None:
            continue
        base = field.partition(".")[0]
        if field in TEXT_FIELDS:
            if not isinstance(value, str):
                raise SimulationError(f"{where}.{field}: expected text, not {value!r}")
            texts[field] = _encodable(value, f"{where}.{field}")
        elif base in NUMBER_FIELDS:
            numbers[field] = compile_value(value, index, f"{where}.{field}")
        else:
            raise SimulationError(f"{where}: unknown field {field!r}")
    return Device(parent, texts, numbers, processes, events)


_Rows = TypeVar("_Rows")


def _rows(rows: object, kind: type[_Rows], where: str) -> _Rows:
    try:
        return msgspec.convert(rows or (), kind)
    except msgspec.ValidationError as error:
        raise SimulationError(f"{where}: {error}") from None


def _topology(merged: list[dict[str, Any]], index: int) -> dict[str, int]:
    """The levels towards the other devices, where the scenario says on which node each is."""
    if index >= len(merged):
        return {}
    node, switch = _place(merged[index], index)
    levels = {}
    for other, fields in enumerate(merged):
        other_node, other_switch = _place(fields, other)
        if other == index or node is None or other_node is None:
            continue
        if switch is not None and switch == other_switch:
            levels[f"topology_level.{other}"] = SAME_SWITCH
        else:
            levels[f"topology_level.{other}"] = SAME_NODE if node == other_node else SAME_SYSTEM
    return levels


def _place(fields: Mapping[str, Any], index: int) -> tuple[int | None, int | None]:
    """The NUMA node and the PCIe switch of a device, counted from 0."""
    node, switch = (
        None
        if fields.get(key) is None
        else math.floor(constant(fields[key], index, f"devices.{index}.{key}"))
        for key in ("numa_node", "pcie_switch")
    )
    return node, switch


def _encodable(text: str, where: str) -> str:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise SimulationError(
            f"{where}: write a byte XX that is no UTF-8 as \\udcXX; {text!r} cannot be encoded"
        ) from None
    return text


def _expanded(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Turn what people write (capability, PCI ids, parts) into the fields of the table."""
    expanded = dict(fields)
    expanded.pop("numa_node", None)
    expanded.pop("pcie_switch", None)
    capability = expanded.pop("compute_capability", None)
    if capability is not None:
        major, minor = _matched(r"([0-9]{1,2})\.([0-9])", capability, "9.0", where)
        expanded["compute_capability_major"] = int(major)
        expanded["compute_capability_minor"] = int(minor)
    device = expanded.pop("pci_device", None)
    if device is not None:
        (number,) = _matched(r"([0-9A-Fa-f]{4})", device, "2330", where)
        expanded["pci_device_id"] = int(number, 16) << 16 | NVIDIA
    subsystem = expanded.pop("pci_subsystem", None)
    if subsystem is not None:
        vendor, number = _matched(
            r"([0-9A-Fa-f]{4}):([0-9A-Fa-f]{4})", subsystem, "10DE:16C1", where
        )
        expanded["pci_subsystem_id"] = int(number, 16) << 16 | int(vendor, 16)
    if any("." in field for field in expanded):
        raise SimulationError(f"{where}: fields of one part are written below {', '.join(PARTS)}")
    for key in PARTS:
        expanded.update(_parts(key, expanded.pop(key, None), f"{where}.{key}"))
    return expanded


def _parts(key: str, parts: object, where: str) -> Iterator[tuple[str, Any]]:
    if parts is None:
        return
    if not isinstance(parts, dict):
        raise SimulationError(f"{where}: expected fields by number, not {parts!r:.40}")
    for number, fields in parts.items():
        if not number.isascii() or not number.isdigit() or not isinstance(fields, dict):
            raise SimulationError(f"{where}: expected fields by number, not {number!r}")
        for field, value in fields.items():
            if not field.startswith(PARTS[key]):
                raise SimulationError(f"{where}.{number}: {field!r} is no field of {key}")
            yield f"{field}.{int(number)}", value


def _matched(pattern: str, text: object, example: str, where: str) -> tuple[str, ...]:
    match = re.fullmatch(pattern, text) if isinstance(text, str) else None
    if match is None:
        raise SimulationError(f"{where}: write text like {example!r}, not {text!r:.40}")
    return match.groups()

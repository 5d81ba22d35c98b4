"""Every field of a device and of its readings in words: with its unit, or why it is missing.

The unit stands in the field's name, so that a field that is added needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events, topology, xid
from topsmon.diagnosis.words import number, time_of_day
from topsmon.state import State
from topsmon.tui.signals import THROTTLE_REASONS
from topsmon.units import NOT_AVAILABLE, bandwidth, binary_bytes, percent, plain

Pair = tuple[str, str]
NAMES = {
    "dram": "DRAM",
    "ecc": "ECC",
    "fp16": "FP16",
    "fp32": "FP32",
    "fp64": "FP64",
    "id": "id",
    "mig": "MIG",
    "numa": "NUMA",
    "nvlink": "NVLink",
    "pci": "PCI",
    "pcie": "PCIe",
    "sm": "SM",
    "uuid": "UUID",
}
"""Parts of fields' names that are no plain words."""
UNITS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("_bytes_per_second", bandwidth),
    ("_bytes", binary_bytes),
    ("_ratio", percent),
    ("_celsius", lambda value: f"{number(value)} °C"),
    ("_watts", lambda value: f"{number(value)} W"),
    ("_mhz", lambda value: f"{number(value)} MHz"),
    ("_joules", lambda value: f"{number(value)} J"),
    ("_bits", lambda value: f"{number(value)} bits"),
    ("_seconds", lambda value: f"{number(value)} s"),
)
"""Endings of fields' names and how such a value reads; the longer endings first."""
APART = frozenset({"device", "unavailable", "counters", "throttle_ratios", "memory_note"})
"""Fields of a device or a sample that are told in lines of their own."""
NOT_SHOWN = {
    "pci_path": "the kernel does not show it",
    "numa_node": "the kernel names none",
}
"""Why fields are missing that do not come from the driver."""
BASE = frozenset(msgspec.structs.asdict(events.Event(time=0, monotonic=0, source="")))


def identity_pairs(device: DeviceState) -> list[Pair]:
    """What does not change about a device."""
    return _pairs(device, device.identity, device.identity.unavailable)


def sample_pairs(device: DeviceState) -> list[Pair]:
    """The latest reading, its shares of throttled time, and its counters."""
    sample = device.sample
    if sample is None and device.condition == "asleep":
        return [("reading", f"{NOT_AVAILABLE}: it sleeps and is left alone")]
    if sample is None:
        return [("reading", f"{NOT_AVAILABLE}: none has come yet")]
    pairs = _pairs(device, sample, sample.unavailable)
    if sample.memory_note:
        pairs.append(("memory note", plain(sample.memory_note, 400)))
    return pairs + (_throttle_pairs(sample) if device.identity.kind == "gpu" else [])


def counter_pairs(device: DeviceState) -> list[Pair]:
    """The performance counters of a GPU."""
    sample = device.sample
    if sample is None or device.identity.kind != "gpu":
        return []
    if sample.counters is None:
        return [("counters", _missing("counters", sample.unavailable))]
    return _pairs(device, sample.counters, sample.counters.unavailable)


def xid_pairs(device: DeviceState) -> list[Pair]:
    """The errors that the driver has reported of a GPU, the newest first."""
    if device.identity.kind != "gpu":
        return []
    if not device.xids:
        why = device.identity.unavailable.get("xid")
        return [("XID", f"{NOT_AVAILABLE}: {plain(why, 200)}" if why else "none since the start")]
    pairs = []
    for event in reversed(device.xids):
        known = xid.meaning(event.code)
        words = f"{known.meaning} ({known.weight})" if known else "not known to this version"
        pairs.append((f"XID {event.code}", f"{time_of_day(event.time)}  {words}"))
    return pairs


def topology_pairs(state: State, device: DeviceState) -> list[Pair]:
    """What traffic over PCIe to the other GPUs crosses; equal ways together."""
    ways: dict[str, list[str]] = {}
    for other in state.gpus():
        if other is not device and device.identity.kind == "gpu":
            way = topology.between(device.identity, other.identity)
            ways.setdefault(way or f"{NOT_AVAILABLE}: the kernel does not show it", []).append(
                str(other.identity.index)
            )
    return [(f"to GPU {', '.join(labels)}", way) for way, labels in ways.items()]


def head_of(field: str) -> str:
    """A field's name in words, without its unit."""
    for ending, _ in UNITS:
        if field.endswith(ending):
            field = field.removesuffix(ending)
            break
    return " ".join(NAMES.get(word, word) for word in field.split("_"))


def value_text(field: str, value: Any) -> str:
    """A value in words, with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field == "clock_event_mask":
        return f"0x{value:x} ({clock_events.names(value)})"
    if field == "performance_state":
        return f"P{value}"
    for ending, text in UNITS:
        if field.endswith(ending):
            return text(value)
    if isinstance(value, tuple):
        return plain(" > ".join(str(part) for part in value), 400)
    return number(value) if isinstance(value, float) else plain(str(value), 400)


def _pairs(
    device: DeviceState, found: msgspec.Struct, unavailable: Mapping[str, str]
) -> list[Pair]:
    """All fields; those of a GPU that a CPU cannot have are left out for one."""
    pairs = []
    for field in found.__struct_fields__:
        if field in BASE or field in APART:
            continue
        value = getattr(found, field)
        missing = value is None or value == ()
        if missing and device.identity.kind == "cpu" and field not in unavailable:
            continue
        text = _missing(field, unavailable) if missing else value_text(field, value)
        pairs.append((head_of(field), text))
    return pairs


def _missing(field: str, unavailable: Mapping[str, str]) -> str:
    reason = unavailable.get(field) or NOT_SHOWN.get(field)
    return f"{NOT_AVAILABLE}: {plain(reason, 400)}" if reason else NOT_AVAILABLE


def _throttle_pairs(sample: events.DeviceSample) -> list[Pair]:
    if not sample.throttle_ratios:
        return [("throttled time", _missing("throttle_ratios", sample.unavailable))]
    return [
        (f"throttled: {THROTTLE_REASONS.get(reason, plain(reason, 20))}", percent(share))
        for reason, share in sample.throttle_ratios.items()
    ]

"""NVML's clocks event reasons ("throttle reasons"): a bit mask, several bits at once.

Names and meanings after NVIDIA's nvml.h (API 13) and, for 0x200 and 0x400, the older Throttle names
of nvidia-ml-py. The bits tell the present moment only and some show up during a change of the
performance state, so a rule looks at `sustained`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

GPU_IDLE = 0x1
CLOCKS_SETTING = 0x2
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL = 0x20
HW_THERMAL = 0x40
POWER_BRAKE = 0x80

THERMAL = SW_THERMAL | HW_THERMAL
FAULTS = THERMAL | HW_SLOWDOWN | POWER_BRAKE

Treatment = Literal["quiet", "note", "power", "fault", "unknown"]

SUSTAINED_SAMPLES = 4
"""How many of the latest samples are searched for two in a row with the same bit."""


class ClockEvent(NamedTuple):
    """One bit: `short` fits a column of the device row, `meaning` is a sentence's end."""

    bit: int
    name: str
    short: str
    treatment: Treatment
    meaning: str


CLOCK_EVENTS: tuple[ClockEvent, ...] = (
    ClockEvent(HW_THERMAL, "HW thermal slowdown", "HW thermal", "fault", "clocks cut by 2 or more"),
    ClockEvent(
        SW_THERMAL, "SW thermal slowdown", "thermal", "fault", "GPU or memory over its maximum"
    ),
    ClockEvent(POWER_BRAKE, "HW power brake", "power brake", "fault", "external power brake"),
    ClockEvent(HW_SLOWDOWN, "HW slowdown", "HW slowdown", "fault", "clocks cut by 2 or more"),
    ClockEvent(SW_POWER_CAP, "SW power cap", "SW power cap", "power", "at the power limit"),
    ClockEvent(0x10, "sync boost", "sync boost", "note", "follows another GPU of its group"),
    ClockEvent(
        CLOCKS_SETTING, "applications clocks setting", "clocks setting", "note", "clocks were set"
    ),
    ClockEvent(0x100, "display clock setting", "display clocks", "note", "limited by the display"),
    ClockEvent(0x200, "board limit", "board limit", "note", "limit of the board's regulators"),
    ClockEvent(0x400, "reliability", "reliability", "note", "limit of the voltage"),
    ClockEvent(GPU_IDLE, "GPU idle", "", "quiet", "nothing runs"),
)
"""Most telling first: that is the order in which several at once are named."""

_KNOWN = 0
for _event in CLOCK_EVENTS:
    _KNOWN |= _event.bit


def decode(mask: int) -> tuple[ClockEvent, ...]:
    """Return one event for every bit of a mask; a bit that is not in the table by its number."""
    known = [event for event in CLOCK_EVENTS if mask & event.bit]
    rest = mask & ~_KNOWN
    unknown: list[ClockEvent] = []
    while rest:
        bit = rest & -rest
        rest ^= bit
        name = f"0x{bit:x}"
        unknown.append(ClockEvent(bit, name, name, "unknown", "not known to this version"))
    return (*known, *unknown)


def names(mask: int) -> str:
    """Name all bits of a mask: "HW thermal slowdown, HW slowdown"; "none" for 0."""
    return ", ".join(event.name for event in decode(mask)) or "none"


def sustained(masks: Sequence[int | None]) -> int:
    """Return the bits set in two consecutive samples among the latest `SUSTAINED_SAMPLES`.

    A blip of one sample does not count; a bit that comes and goes stays for a moment, so that a
    finding does not flicker. A mask that was not measured (None) confirms nothing.
    """
    latest = list(masks)[-SUSTAINED_SAMPLES:]
    return _any(
        older & newer
        for older, newer in itertools.pairwise(latest)
        if older is not None and newer is not None
    )


def _any(masks: Iterable[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result

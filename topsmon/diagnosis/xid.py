"""Rule: XID errors, NVIDIA's numbers for what its driver writes to the kernel log.

An error of hardware is a failure that a reset or a technician must end. An error of a program is
none: it is told so that nobody takes the board for bad. A number that is not in the table gets no
verdict.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import msgspec.toml

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.availability import KERNEL_LOG
from topsmon.diagnosis.words import finding, joined, time_of_day
from topsmon.state import State

Weight = Literal["hardware", "reset", "application", "notice"]
PREFIX = "xid-"
"""Codes of these findings begin so; the events stay true when the GPU is not read any more."""


class Meaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number: `remedy` is a key of the table of remedies."""

    meaning: str
    weight: Weight
    remedy: str


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of xids.toml, explained at its head."""

    source: str
    remedy: dict[str, str]
    xid: dict[int, Meaning]


@functools.cache
def table() -> Table:
    """Return the table; it is read when the first error comes."""
    text = (Path(__file__).parent / "xids.toml").read_bytes()
    return msgspec.toml.decode(text, type=Table, strict=False)


def meaning(code: int) -> Meaning | None:
    """What a number means, None for one that is not in the table."""
    return table().xid.get(code)


def xid_errors(state: State, _now: float) -> Iterator[events.Finding]:
    """One finding for each number of hardware; one for all of programs, notices, unknown ones."""
    for device in state.gpus():
        groups: dict[str, list[events.Xid]] = {}
        for xid in device.xids:
            known = meaning(xid.code)
            weight = known.weight if known is not None else "unknown"
            group = str(xid.code) if weight in {"hardware", "reset"} else weight
            groups.setdefault(group, []).append(xid)
        for group, found in groups.items():
            yield _finding(state, device, group, found)


def unusable(device: DeviceState) -> str | None:
    """Why a GPU must not be given more work after what its driver has reported; None if it may."""
    for xid in reversed(device.xids):
        known = meaning(xid.code)
        if known is not None and known.weight in {"hardware", "reset"}:
            return f"XID {xid.code}: {CAUSES[known.weight]}"
    return None


def _finding(
    state: State, device: DeviceState, group: str, found: Sequence[events.Xid]
) -> events.Finding:
    latest = found[-1]
    known = meaning(latest.code)
    hardware = known is not None and known.weight == "hardware"
    warns = known is not None and known.weight == "reset"
    return finding(
        latest,
        device,
        code=f"{PREFIX}{group}",
        severity="fail" if hardware else "warn" if warns else "info",
        word="FAIL" if hardware else "RESET" if warns else "note",
        title=f"XID {latest.code}: {known.meaning if known else 'not known to this version'}",
        cause=CAUSES[known.weight if known is not None else "unknown"],
        evidence=_evidence(found),
        remedy=table().remedy[known.remedy] if known is not None else UNKNOWN_REMEDY,
        command="" if state.host is not None and state.host.wsl else KERNEL_LOG,
        basis=table().source if known is not None else "no verdict without a meaning",
    )


CAUSES = {
    "hardware": "the driver reports a failure of the board, its link or its firmware",
    "reset": "the driver wants the GPU reset before more work",
    "application": "a fault of a program: the board itself is not failing",
    "notice": "the driver tells of it; nothing has failed",
    "unknown": "the driver reports an error whose number has no meaning here",
}
UNKNOWN_REMEDY = "See the kernel log, and the list at docs.nvidia.com/deploy/xid-errors."


def _evidence(found: Sequence[events.Xid]) -> tuple[str, ...]:
    """Each number with how often and when it came last, the latest first."""
    numbers = list(dict.fromkeys(xid.code for xid in reversed(found)))
    words = []
    for code in numbers:
        times = [xid.time for xid in found if xid.code == code]
        often = f"{len(times)} times, last at" if len(times) > 1 else "at"
        words.append(f"XID {code} {often} {time_of_day(times[-1])}")
    return (joined(words, 4),)

"""Which board a device is: PCI id, then exact name, then SM count, memory and clock among equals.

A name is compared whole. A device that matches nothing is no board of the table; there is no
nearest board.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from topsmon import events
from topsmon.ceilings.database import Board, boards

_BRANDS = ("nvidia ", "geforce ", "tesla ")
_MIG_NAME = re.compile(r" mig \d+(c\.\d+)?g\.\d+gb.*$")
_NAMES_OF_NOTHING = frozenset({"", "graphics device", "gpu"})
MEMORY_TOLERANCE = 0.12
"""NVML's total is up to a tenth below the size in the name: ECC and the driver take their share."""
CLOCK_TOLERANCE = 0.02


class Match(NamedTuple):
    """A board or None, how it was found, and what the reader should know about it."""

    board: Board | None
    how: str | None = None
    notes: tuple[str, ...] = ()


def identify(device: events.Device, sm_count: int | None = None) -> Match:
    """Find the board of a GPU. `sm_count` overrides the driver's; under MIG neither is used.

    A PCI id that contradicts a readable name or the compute capability counts for nothing:
    passed-through and emulated ids must not lend a board's peaks.
    """
    sms = None if device.mig else sm_count if sm_count is not None else device.sm_count
    by_id = board_by_pci_id(device.pci_device_id, device.pci_subsystem_id)
    name = normal(device.name)
    notes: list[str] = []
    if by_id is not None:
        objection = _objection(by_id, device, name)
        if objection is None:
            return Match(by_id, "PCI id")
        notes.append(objection)
    named = [board for board in boards_named(device.name) if not board.pci_id_only]
    fitting = [board for board in named if device.compute_capability in (None, board.cc)]
    if not fitting:
        return Match(None, None, tuple(notes))
    told_apart = _tell_apart(fitting, device, sms)
    if told_apart is None:
        notes.append(
            f"{len(fitting)} boards are called {device.name}, and none of them fits this SM count,"
            " memory size and clock"
            if len(fitting) > 1
            else f"the driver reports {sms} SMs, {fitting[0].key} has {fitting[0].sms}:"
            " other hardware of the same name"
        )
        return Match(None, None, tuple(notes))
    board, by = told_apart
    return Match(board, "exact name" if not by else f"exact name and {by}", tuple(notes))


def normal(name: str) -> str:
    """Return a board name for comparison: lower case, one space, no leading "NVIDIA"."""
    words = " ".join(name.lower().split()).removeprefix("nvidia ")
    return _MIG_NAME.sub("", words)


def name_is_readable(name: str) -> bool:
    """Tell whether a name says which product it is ("Graphics Device" does not)."""
    return normal(name) not in _NAMES_OF_NOTHING and "name unreadable" not in name and _clean(name)


def _clean(name: str) -> bool:
    return name.isascii() and name.isprintable()


def boards_named(name: str) -> tuple[Board, ...]:
    """Return the boards of exactly this name; several have the same name and other hardware."""
    return _by_name().get(normal(name), ())


def find_board_by_name(name: str) -> Board | None:
    """Return the one board of exactly this name, None where there is none or more than one."""
    named = [board for board in boards_named(name) if not board.pci_id_only]
    return named[0] if len(named) == 1 else None


def boards_asked_for(text: str) -> tuple[Board, ...]:
    """Return the boards a person may mean: a key, or a whole name with or without its brand."""
    if text.strip().lower() in boards():
        return (boards()[text.strip().lower()],)
    named = boards_named(text) or _by_bare_name().get(_without_brand(text), ())
    return tuple(board for board in named if not board.pci_id_only)


SUGGESTIONS = 8


def near_names(text: str, limit: int = SUGGESTIONS) -> list[str]:
    """Return names that `text` may mean, to suggest them; never to use them.

    The names that have all its words, whole ones before beginnings ("l40": L40, then L40S); only
    where there are none, names spelled alike.
    """
    import difflib

    asked = _words(_without_brand(text))
    names = [_names_to_ask_by(board) for board in boards().values()]
    having = [
        fitting[0]
        for of_board in names
        if asked and (fitting := [name for name in of_board if _has_words(name, asked)])
    ]
    having.sort(key=lambda name: not set(asked) <= set(_words(name)))
    if having:
        return list(dict.fromkeys(having))[:limit]
    bare = {_without_brand(name): name for of_board in names for name in of_board}
    alike = difflib.get_close_matches(_without_brand(text), bare, limit, cutoff=0.6)
    return [bare[match] for match in alike]


def askable_names() -> list[str]:
    """Return one name for each board, in the order of the table, that asks for just this board."""
    return [
        name if boards_asked_for(name := _names_to_ask_by(board)[0]) == (board,) else board.key
        for board in boards().values()
    ]


def _names_to_ask_by(board: Board) -> tuple[str, ...]:
    return (board.key,) if board.pci_id_only else board.names


def _has_words(name: str, asked: list[str]) -> bool:
    return all(any(word.startswith(part) for word in _words(name)) for part in asked)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def board_by_pci_id(device_id: str | None, subsystem_id: str | None) -> Board | None:
    """Return the board of a PCI id, first with and then without its subsystem id.

    Ids are hexadecimal: "2330", "10DE:2330" or NVML's combined "0x233010DE"; a subsystem is
    "10DE:16C1" or combined "0x16C110DE".
    """
    device = pci_device(device_id)
    if device is None:
        return None
    subsystem = _subsystem_part(subsystem_id)
    table = _by_pci_id()
    if subsystem is not None and f"{device}:{subsystem}" in table:
        return table[f"{device}:{subsystem}"]
    return table.get(device)


def pci_device(device_id: str | None) -> str | None:
    """Return the four hexadecimal digits of a PCI device id in any of its spellings."""
    halves = _halves(device_id)
    if halves is None:
        return None
    first, second = halves
    return second if first == _NVIDIA else first


def _subsystem_part(text: str | None) -> str | None:
    """Return "SUBVENDOR:SUBDEVICE"; NVML's combined number has the device in its upper half."""
    halves = _halves(text)
    if halves is None or halves[1] == "":
        return None
    return f"{halves[0]}:{halves[1]}" if ":" in str(text) else f"{halves[1]}:{halves[0]}"


_NVIDIA = "10DE"


def _halves(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    digits = text.strip().upper().removeprefix("0X")
    first, colon, second = digits.partition(":")
    if not colon:
        digits = digits.zfill(8) if len(digits) > 4 else digits
        first, second = digits[:4], digits[4:]
    parts = (first.zfill(4), second.zfill(4) if second else "")
    return parts if all(set(part) <= set("0123456789ABCDEF") for part in parts) else None


def _objection(board: Board, device: events.Device, name: str) -> str | None:
    if device.compute_capability not in (None, board.cc):
        return (
            f"the PCI id is that of {board.names[0]}, the compute capability"
            f" {device.compute_capability} is not: the PCI id was not used"
        )
    if name_is_readable(device.name) and name not in {normal(known) for known in board.names}:
        return f"the PCI id is that of {board.names[0]}, the name is not: the PCI id was not used"
    return None


def _tell_apart(
    candidates: list[Board], device: events.Device, sms: int | None
) -> tuple[Board, str] | None:
    """Return the board that fits and by what, None where none does or several still do."""
    if sms is not None:
        candidates = [board for board in candidates if board.sms == sms]
    if len(candidates) == 1:
        return candidates[0], "SM count" if len(boards_named(device.name)) > 1 else ""
    by = "SM count" if sms is not None else ""
    if device.memory_total_bytes is not None:
        gib = device.memory_total_bytes / 2**30
        fitting = [board for board in candidates if _near(gib, board.memory_gib, MEMORY_TOLERANCE)]
        if len(fitting) == 1:
            return fitting[0], f"{by} and memory size" if by else "memory size"
        candidates = fitting or candidates
    if device.sm_clock_max_mhz is not None:
        fitting = [
            board
            for board in candidates
            if _near(device.sm_clock_max_mhz, board.boost_mhz, CLOCK_TOLERANCE)
        ]
        if len(fitting) == 1:
            return fitting[0], f"{by} and clock" if by else "clock"
    return None


def _near(value: float, reference: float | None, tolerance: float) -> bool:
    return reference is not None and abs(value - reference) <= tolerance * reference


def _without_brand(name: str) -> str:
    words = " ".join(name.lower().split())
    for brand in _BRANDS:
        words = words.removeprefix(brand)
    return words


@functools.cache
def _by_name() -> Mapping[str, tuple[Board, ...]]:
    return _group((normal(name), board) for board in boards().values() for name in board.names)


@functools.cache
def _by_bare_name() -> Mapping[str, tuple[Board, ...]]:
    return _group(
        (_without_brand(name), board) for board in boards().values() for name in board.names
    )


def _group(pairs: Iterable[tuple[str, Board]]) -> Mapping[str, tuple[Board, ...]]:
    groups: dict[str, tuple[Board, ...]] = {}
    for name, board in pairs:
        if board not in groups.get(name, ()):
            groups[name] = (*groups.get(name, ()), board)
    return groups


@functools.cache
def _by_pci_id() -> Mapping[str, Board]:
    return {pci_id: board for board in boards().values() for pci_id in board.pci_ids}

"""The table of checks: what there is to check, what it needs, by which limits it is judged."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import msgspec.toml

NVML = "nvml"
"""What `--quick` can do: checks that need the driver alone."""
RATES = "rates"
"""Checks over the results of all matrix products that were measured."""

DeviceKind = Literal["gpu", "cpu", "host"]


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One check.

    `needs` is "nvml", "rates", a precision or a laboratory probe; `value` the key in that probe's
    values. `beside` must be measured with it; `load` gives the device work where nothing else that
    is measured does. `pass_from` and `warn_from` are fractions of what `of` names, or seconds; for
    `peers` `fail_from` is the gap at which a failure begins. `seconds`: the time to measure it in.
    `impossible` is the share of the ceiling above which a measurement cannot be right.
    """

    id: str
    title: str
    judge: str
    needs: str
    beside: str = ""
    load: str = ""
    kinds: tuple[DeviceKind, ...] = ("gpu",)
    seconds: float = 0.0
    value: str = ""
    pass_from: float | None = msgspec.field(default=None, name="pass")
    warn_from: float | None = msgspec.field(default=None, name="warn")
    fail_from: float | None = msgspec.field(default=None, name="fail")
    warn_within_celsius: float = 0.0
    impossible: float | None = None
    of: str = ""
    lower_is_better: bool = False
    experimental: bool = False
    basis: str = ""
    remedy: str = ""


class PcieFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Published GB/s of pinned copies over 16 lanes of a generation."""

    generation: int
    published: str
    pass_from: float = msgspec.field(name="pass")
    warn_from: float = msgspec.field(name="warn")


class Impossible(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of a ceiling that no device can exceed, by what is known of its clock."""

    held_clock: float
    max_clock: float
    no_clock: float
    basis: str


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Published least bus bandwidth of an all-reduce, in GB/s, over so many boards of one node."""

    boards: tuple[str, ...]
    ranks: int
    busbw: float
    payload_gib: float
    source: str


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file checks.toml. `ranks` are the checks over several ranks, apart from the others."""

    schema: int
    check: tuple[Check, ...]
    pcie: tuple[PcieFigure, ...]
    impossible: Impossible
    ranks: tuple[Check, ...] = ()
    floor: tuple[Floor, ...] = ()


class UnknownCheckError(ValueError):
    """A name that is no check's; the message lists those that there are."""


@functools.cache
def table() -> Table:
    """The table, read and checked."""
    file = Path(__file__).with_name("checks.toml")
    return msgspec.toml.decode(file.read_bytes(), type=Table)


def names() -> tuple[str, ...]:
    """Ids of all checks, in order."""
    return tuple(check.id for check in table().check)


def select(
    only: Iterable[str] = (), skip: Iterable[str] = (), *, quick: bool = False
) -> tuple[Check, ...]:
    """The checks to make, in the table's order. `quick`: those that need the driver alone.

    A name is a check's id, or that of what several of them need ("memory", "rates"; "nvml").
    Raises UnknownCheckError.
    """
    wanted, unwanted = _ids(only, "--only"), _ids(skip, "--skip")
    return tuple(
        check
        for check in table().check
        if (not wanted or check.id in wanted)
        and check.id not in unwanted
        and (not quick or check.needs == NVML)
    )


def select_ranks(only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[Check, ...]:
    """The checks over several ranks, chosen by their ids. Raises UnknownCheckError."""
    there = table().ranks
    wanted, unwanted = _ids(only, "--only", there), _ids(skip, "--skip", there)
    return tuple(
        check for check in there if (not wanted or check.id in wanted) and check.id not in unwanted
    )


def _ids(words: Iterable[str], option: str, there: Sequence[Check] | None = None) -> frozenset[str]:
    checks = table().check if there is None else there
    found: set[str] = set()
    for word in words:
        ids = {check.id for check in checks if word in (check.id, *_groups(check))}
        if not ids:
            known = ", ".join(check.id for check in checks)
            raise UnknownCheckError(f"{option}: no check is called {word!r}; there are: {known}")
        found |= ids
    return frozenset(found)


def _groups(check: Check) -> tuple[str, ...]:
    return (check.needs, RATES) if check.judge == "rate" else (check.needs,)


def plan(checks: Sequence[Check], kind: DeviceKind) -> dict[str, float]:
    """What a prober has to measure for these checks, in order: key and seconds.

    A check over all rates alone measures every precision.
    """
    here = [check for check in checks if kind in check.kinds]
    rates = [check for check in table().check if check.judge == "rate" and kind in check.kinds]
    if any(check.needs == RATES for check in here) and not any(check in rates for check in here):
        here = [*rates, *here]
    wanted = {check.needs for check in here} | {check.beside for check in here}
    if not wanted - {NVML, RATES, ""}:
        wanted |= {check.load for check in here}
    return {
        key: seconds for key, seconds in _seconds(kind).items() if key in wanted and seconds > 0
    }


def _seconds(kind: DeviceKind) -> dict[str, float]:
    """Time to measure each thing that some check needs, in the table's order."""
    seconds: dict[str, float] = {}
    for check in table().check:
        if kind in check.kinds and check.needs not in (NVML, RATES):
            seconds[check.needs] = seconds.get(check.needs, 0.0) + check.seconds
    return seconds

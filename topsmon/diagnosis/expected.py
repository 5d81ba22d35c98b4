"""What a rate is expected to be: published figures of the same board, else a class default.

The data are read on first use, since most runs have no rate to judge when they start.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import msgspec.toml

from topsmon.device_state import DeviceState


@dataclass(frozen=True)
class Expected:
    """Rates in ops/s: as expected from `enough` on, far off below `far_off`.

    `library_only` says that too low a rate is the library's doing, so that it is never far off.
    """

    enough: float
    far_off: float
    words: str
    basis: str
    library_only: bool = False


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fractions of a published figure."""

    basis: str
    enough: float = msgspec.field(name="pass")
    far_off: float = msgspec.field(name="fail")


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Published TFLOPS of some boards, per source."""

    boards: tuple[str, ...]
    precision: str
    tflops: dict[str, float]


class ClassDefault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fractions of the dense rated ceiling for groups of boards."""

    precisions: tuple[str, ...]
    groups: tuple[str, ...]
    basis: str
    enough: float = msgspec.field(name="pass")
    far_off: float = msgspec.field(name="fail")
    only_library: bool = False


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file expected.toml."""

    schema: int
    published: Limits
    figure: tuple[Figure, ...]
    groups: dict[str, tuple[str, ...]]
    default: tuple[ClassDefault, ...] = msgspec.field(name="class")


def expectation(device: DeviceState, precision: str) -> Expected | None:
    """What this device should reach; None where nobody can say.

    A part of a GPU (MIG) is not the board that figures were published for.
    """
    board = device.ceilings.board if device.ceilings is not None else None
    ceiling = device.ceiling(precision)
    if board is None or ceiling is None or device.identity.mig:
        return None
    figures = _figures().get((board, precision))
    if figures:
        limits, source = table().published, min(figures, key=lambda name: figures[name])
        lowest = figures[source] * 1e12
        return Expected(
            enough=limits.enough * lowest,
            far_off=limits.far_off * lowest,
            words=f"{limits.enough:.0%} of the lowest published figure ({source})",
            basis=limits.basis,
        )
    default = _defaults().get((board, precision))
    if default is None:
        return None
    return Expected(
        enough=default.enough * ceiling.ops_per_second,
        far_off=default.far_off * ceiling.ops_per_second,
        words=f"{default.enough:.0%} of the ceiling, as boards of this class",
        basis=default.basis,
        library_only=default.only_library,
    )


@functools.cache
def table() -> Table:
    """The table, read and checked."""
    file = Path(__file__).with_name("expected.toml")
    return msgspec.toml.decode(file.read_bytes(), type=Table)


@functools.cache
def _figures() -> Mapping[tuple[str, str], dict[str, float]]:
    return {
        (board, figure.precision): figure.tflops
        for figure in table().figure
        for board in figure.boards
    }


@functools.cache
def _defaults() -> Mapping[tuple[str, str], ClassDefault]:
    return {
        (board, precision): default
        for default in table().default
        for group in default.groups
        for board in table().groups[group]
        for precision in default.precisions
    }

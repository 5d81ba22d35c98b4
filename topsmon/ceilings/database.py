"""The tables of boards, rates and CPUs, each parsed once and only when something needs it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import msgspec.toml

SCHEMA = 1
_FOLDER = Path(__file__).parent


class Board(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One board; the fields are explained at the head of boards.toml."""

    key: str
    names: tuple[str, ...]
    cc: str
    class_: str = msgspec.field(name="class")
    sms: int
    memory: str
    memory_bus_bits: int
    l2_mib: float
    hardware_source: str
    pci_ids: tuple[str, ...] = ()
    pci_ids_source: str = ""
    pci_id_only: bool = False
    boost_mhz: float | None = None
    boost_low_mhz: float | None = None
    tensor_boost_mhz: float | None = None
    tensor_boost_source: str = ""
    half_rate_disputed: bool = False
    capped: tuple[str, ...] = ()
    memory_gib: float | None = None
    memory_gb_per_second: float | None = None
    power_watts: float | None = None
    pcie_width: int = 16
    nvlink_gb_per_second: float | None = None
    nvlink_source: str = ""
    published: dict[str, int | float] = {}
    published_source: str = ""
    published_verified: bool = False
    published_unverified: tuple[str, ...] = ()
    exceptions: dict[str, str] = {}
    note: str = ""


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of a compute capability; the fields are explained at the head of rates.toml."""

    name: str
    ops_per_clock: dict[str, float]
    source: str
    pcie_generation: int
    halved: tuple[str, ...] = ()
    sparse_factor: dict[str, float] = {}
    unknown: dict[str, str] = {}
    unverified: tuple[str, ...] = ()
    note: dict[str, str] = {}
    tensor_clock_lower: float = 0.0


class BoardClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a class of boards departs from its architecture's rates."""

    halves_listed: bool = False
    halves: tuple[str, ...] = ()
    formula: bool = True
    why: str = ""


class NoTensorCores(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What identifies chips of an architecture that lack its Tensor Cores."""

    cc: tuple[str, ...]
    words: frozenset[str]
    pci_ranges: tuple[tuple[str, str], ...]


class Pcie(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GB/s per lane and direction, by generation."""

    gb_per_second_per_lane: dict[int, float]


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of rates.toml."""

    schema: int
    architecture: dict[str, Architecture]
    class_: dict[str, BoardClass] = msgspec.field(name="class")
    no_tensor_cores: NoTensorCores
    capped_names: dict[str, tuple[str, ...]]
    pcie: Pcie


class Microarchitecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of a CPU core; the fields are explained at the head of cpus.toml."""

    name: str
    vendor: str
    models: tuple[tuple[int, int], ...]
    fp32: dict[str, float]
    source: str
    verified: bool
    families: tuple[int, ...] = ()
    atom: bool = False
    sku: str | None = None


class CpuType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one instruction-set flag gives: `times` the FP32 rate `of` a vector set, or `ops`."""

    precision: str
    source: str
    verified: bool
    of: str | None = None
    times: float = 0.0
    ops: float = 0.0


class CpuRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of cpus.toml."""

    schema: int
    types: dict[str, CpuType]
    unknown: dict[str, tuple[float, float]]
    sku: dict[str, dict[str, float]]
    microarchitecture: dict[str, Microarchitecture]
    boost_mhz: dict[str, float | str]


_Table = TypeVar("_Table")


@functools.cache
def boards() -> Mapping[str, Board]:
    """Return all boards by key."""
    table = _read("boards.toml")
    _check_schema("boards.toml", table.pop("schema", None))
    rows = {key: {"key": key, **row} for key, row in table["board"].items()}
    return _convert("boards.toml", rows, dict[str, Board])


@functools.cache
def rates() -> Rates:
    """Return the rates of architectures, the classes of boards, and the links."""
    table = _convert("rates.toml", _read("rates.toml"), Rates)
    _check_schema("rates.toml", table.schema)
    return table


@functools.cache
def cpu_rates() -> CpuRates:
    """Return the rates of CPU cores."""
    table = _convert("cpus.toml", _read("cpus.toml"), CpuRates)
    _check_schema("cpus.toml", table.schema)
    return table


def _read(name: str) -> dict[str, Any]:
    return msgspec.toml.decode((_FOLDER / name).read_bytes(), type=dict[str, Any])


def _convert(name: str, table: Any, kind: type[_Table]) -> _Table:
    try:
        return msgspec.convert(table, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"topsmon/ceilings/{name}: {error}") from error


def _check_schema(name: str, schema: object) -> None:
    if schema != SCHEMA:
        raise ValueError(f"topsmon/ceilings/{name}: schema {schema!r}, expected {SCHEMA}")

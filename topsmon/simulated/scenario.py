"""Scenario files: what the simulated driver and the simulated prober answer.

A file is JSON. `extends` names a scenario to start from: `driver`, `device`, each entry of
`devices`, `rates` and `lab` are laid over it key by key, all else is replaced. `device` holds the
fields of all `count` devices (units in their names, values as values.py reads them), `devices`
those of single ones by index. A field that is absent or null is "not supported" by that device.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from topsmon.simulated.fields import NUMBER_FIELDS, TEXT_FIELDS
from topsmon.simulated.values import SimulationError, compile_value
from topsmon.units import PRECISIONS

FOLDER = Path(__file__).parent / "scenarios"
MAX_DEVICES = 64
MAX_EXTENDS = 8
NVIDIA = 0x10DE
"""PCI vendor."""
NAMESPACE = uuid.UUID("6f2d1c1e-7d0b-5c55-9d6a-2f1f6a3c9a41")


_Word = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Value = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class Driver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The driver as a whole. `symbols` is the release whose calls exist: 470, 535 or 580."""

    version: str = "580.95.05"
    cuda: str = "13.0"
    symbols: Literal[470, 535, 580] = 580


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process on a device; `memory_mib` None: the driver cannot tell. Times in scenario s."""

    pid: _Word
    kind: Literal["compute", "graphics", "mps"] = "compute"
    memory_mib: _Amount | None = None
    gpu_instance: _Word = 0xFFFFFFFF
    compute_instance: _Word = 0xFFFFFFFF
    start: _Amount = 0.0
    end: _Amount | None = None


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"code": "return"}):
    """What goes wrong with which calls.

    `call` is one glob or several over names of NVML calls, "field:ID" for one entry of
    GetFieldValues, or "prober" for the benchmark worker. `device` None: any, the system's calls
    too; -1: only those. It acts in `start` <= scenario time < `end`, from call number `after` on
    and `count` times; each process counts its own calls since it read the table. `hang` true: for
    ever.
    """

    call: str | tuple[str, ...]
    device: Annotated[int, msgspec.Meta(ge=-1, lt=MAX_DEVICES)] | None = None
    code: _Word | str | None = None
    latency: _Amount | None = None
    hang: bool | _Amount = False
    crash: bool = False
    null_handle: bool = False
    start: _Amount = 0.0
    end: _Amount | None = None
    after: _Word = 0
    count: _Word | None = None


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rate in 1e12 operations/s at `Rates.clock_mhz` and its shape (M, N, K)."""

    tera: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    source: str
    shape: tuple[_Size, _Size, _Size] = (8192, 8192, 8192)
    emulated: bool = False


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the simulated prober measures; it scales with the held clock."""

    clock_mhz: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1000.0
    measured: dict[str, Rate] = {}
    unsupported: dict[str, str] = {}


class Lab(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a laboratory probe measures: values by their names, and where each comes from.

    Values named "..._per_second" scale with what `follows` names: the SM clock (against
    `Rates.clock_mhz`), the memory clock or the PCIe link (against their maxima).
    """

    source: str
    values: dict[str, _Value | None] = {}
    follows: Literal["nothing", "clock", "memory clock", "link"] = "nothing"
    labels: dict[str, str] = {}
    unavailable: dict[str, str] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    description: str
    expected: str
    extends: str | None = None
    library: Literal["driver", "broken"] = "driver"
    driver: Driver = Driver()
    count: int = 1
    device: dict[str, Any] = {}
    devices: dict[str, dict[str, Any]] = {}
    faults: tuple[Fault, ...] = ()
    rates: Rates = Rates()
    lab: dict[str, Lab] = {}


class Device(NamedTuple):
    """One device, ready for the table. `parent` is -1 unless it is a MIG instance."""

    parent: int
    texts: dict[str, str]
    numbers: dict[str, tuple[str, ...]]
    processes: tuple[Process, ...]


class Scenario(NamedTuple):
    """A checked scenario. `expected` is the word of its worst finding, "ok" where there is none."""

    name: str
    title: str
    description: str
    expected: str
    library: str
    driver: Driver
    devices: tuple[Device, ...]
    faults: tuple[Fault, ...]
    rates: Rates
    lab: dict[str, Lab]


class ScenarioInfo(NamedTuple):
    """What a list of scenarios shows."""

    name: str
    title: str
    description: str
    expected: str

    def __str__(self) -> str:
        return self.description


def names() -> list[str]:
    """Names of the scenarios that topsmon ships."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def find(name: str) -> Path:
    """Return the file of a shipped scenario, or of `name` itself where it is a path to a .json."""
    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise SimulationError(f"scenario file {name} does not exist")
        return path
    if name not in names():
        raise SimulationError(f"no scenario {name!r}; there are: {', '.join(names())}")
    return FOLDER / f"{name}.json"


def load(name: str) -> Scenario:
    """Read and check a scenario by its name or path; SimulationError says what is wrong."""
    path = find(name)
    return parse(_merged(path, MAX_EXTENDS), path.stem)


def load_prepared() -> Scenario:
    """Load the scenario whose environment `prepare` has made for this process."""
    path = os.environ.get("TOPSMON_SIMULATED_SCENARIO")
    if path is None:
        raise SimulationError("TOPSMON_SIMULATED_SCENARIO is not set; use topsmon --simulate NAME")
    return load(path)


def parse(content: Mapping[str, Any], name: str) -> Scenario:
    """Check the content of a scenario (without `extends`) and return it ready for the table."""
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise SimulationError(f"scenario {name}: {error}") from None
    if not 0 <= file.count <= MAX_DEVICES:
        raise SimulationError(f"scenario {name}: count must be 0..{MAX_DEVICES}, not {file.count}")
    for precision in (*file.rates.measured, *file.rates.unsupported):
        if precision not in PRECISIONS:
            raise SimulationError(
                f"scenario {name}: rates: unknown precision {precision!r};"
                f" use one of {', '.join(PRECISIONS)}"
            )
    try:
        devices = _devices(file, name)
    except SimulationError as error:
        raise SimulationError(f"scenario {name}: {error}") from None
    return Scenario(
        name=name,
        title=file.title,
        description=file.description,
        expected=file.expected,
        library=file.library,
        driver=file.driver,
        devices=devices,
        faults=file.faults,
        rates=file.rates,
        lab=file.lab,
    )


def info(name: str) -> ScenarioInfo:
    """Return the heading of a scenario."""
    content = _read(find(name))
    return ScenarioInfo(
        name, *(str(content.get(key, "")) for key in ("title", "description", "expected"))
    )


def _read(path: Path) -> dict[str, Any]:
    """Decode a file. The standard library's decoder also takes the lone surrogates of bad names."""
    try:
        content = json.loads(path.read_bytes(), parse_constant=_no_number)
    except OSError as error:
        raise SimulationError(f"scenario file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SimulationError(f"scenario file {path}: {error}") from None
    if not isinstance(content, dict):
        raise SimulationError(f"scenario file {path}: expected an object, not {content!r:.40}")
    return content


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number that a driver gives")


def _merged(path: Path, depth: int) -> dict[str, Any]:
    content = _read(path)
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if depth == 0 or not isinstance(parent, str):
        raise SimulationError(f"scenario file {path}: extends must name a scenario, not a circle")
    merged = _merged(find(parent), depth - 1)
    for key, value in content.items():
        merged[key] = _overlaid(merged.get(key), value, key)
    return merged


def _overlaid(base: Any, value: Any, key: str) -> Any:
    if key not in ("driver", "device", "devices", "rates", "lab") or not isinstance(base, dict):
        return value
    if not isinstance(value, dict):
        return value
    if key != "devices":
        return {**base, **value}
    return {
        **base,
        **{index: _overlaid(base.get(index), value[index], "device") for index in value},
    }


def _devices(file: _File, name: str) -> tuple[Device, ...]:
    for key in file.devices:
        if not key.isascii() or not key.isdigit() or int(key) >= MAX_DEVICES:
            raise SimulationError(f"devices: {key!r} is no device index")
    total = max([file.count, *(int(key) + 1 for key in file.devices)])
    return tuple(_device(file, index, name) for index in range(total))


def _device(file: _File, index: int, name: str) -> Device:
    fields = {**file.device, **file.devices.get(str(index), {})}
    where = f"devices.{index}"
    parent = fields.pop("parent", -1)
    if not isinstance(parent, int) or (index < file.count) != (parent == -1):
        raise SimulationError(f"{where}: from index `count` on, and only there, MIG has `parent`")
    if parent >= file.count:
        raise SimulationError(f"{where}: parent {parent} is no device")
    try:
        processes = msgspec.convert(fields.pop("processes", None) or (), tuple[Process, ...])
    except msgspec.ValidationError as error:
        raise SimulationError(f"{where}.processes: {error}") from None
    instance = parent >= 0
    slot = parent if instance else index
    defaults = {
        "uuid": f"{'MIG' if instance else 'GPU'}-{uuid.uuid5(NAMESPACE, f'{name}/{index}')}",
        "pci_bus_id": f"00000000:{0x1B + 0x10 * slot & 0xFF:02X}:00.0",
        "minor_number": None if instance else index,
    }
    texts: dict[str, str] = {}
    numbers: dict[str, tuple[str, ...]] = {}
    for field, value in {**defaults, **_expanded(fields, where)}.items():
        if value is None:
            continue
        if field in TEXT_FIELDS:
            if not isinstance(value, str):
                raise SimulationError(f"{where}.{field}: expected text, not {value!r}")
            texts[field] = _encodable(value, f"{where}.{field}")
        elif field in NUMBER_FIELDS:
            numbers[field] = compile_value(value, index, f"{where}.{field}")
        else:
            raise SimulationError(f"{where}: unknown field {field!r}")
    return Device(parent, texts, numbers, processes)


def _encodable(text: str, where: str) -> str:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise SimulationError(
            f"{where}: write a byte XX that is no UTF-8 as \\udcXX; {text!r} cannot be encoded"
        ) from None
    return text


def _expanded(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Turn what people write (capability, PCI ids) into the fields of the table."""
    expanded = dict(fields)
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
    return expanded


def _matched(pattern: str, text: object, example: str, where: str) -> tuple[str, ...]:
    match = re.fullmatch(pattern, text) if isinstance(text, str) else None
    if match is None:
        raise SimulationError(f"{where}: write text like {example!r}, not {text!r:.40}")
    return match.groups()

"""Scenario files: what the simulated driver and the simulated prober answer.

A file is JSON. `extends` names a scenario to start from: `driver`, `device`, each entry of
`devices`, `rates` and `lab` are laid over it key by key, all else is replaced. `device` holds the
fields of all `count` devices (units in their names, values as values.py reads them), `devices`
those of single ones by index. A field that is absent or null is "not supported" by that device.
Beside fields a device has `processes`, `xids` and, by number, `links`, `fans` and `peers` with
fields of single ones. fields.py lists the fields, device.py says what else there is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from topsmon.simulated import device as devices
from topsmon.simulated.device import MAX_DEVICES, Amount, Device, Word
from topsmon.simulated.values import SimulationError
from topsmon.units import PRECISIONS

FOLDER = Path(__file__).parent / "scenarios"
MAX_EXTENDS = 8


_Value = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class Driver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The driver as a whole. `symbols` is the release whose calls exist: 470, 535 or 580.

    `process_entry_bytes` 32: lists of processes as the first drivers of release 535 filled them.
    """

    version: str = "580.95.05"
    cuda: str = "13.0"
    symbols: Literal[470, 535, 580] = 580
    process_entry_bytes: Literal[24, 32] = 24


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"code": "return"}):
    """What goes wrong with which calls.

    `call` is one glob or several over names of NVML calls, "field:ID" for one entry of
    GetFieldValues, "gpm:ID" for one GPM metric, or "prober" for the benchmark worker. `device`
    None: any, the system's calls too; -1: only those. It acts in `start` <= scenario time < `end`,
    from call number `after` on, at each `every`th of them and `count` times; each process counts
    its own calls since it read the table. `hang` true: for ever.
    """

    call: str | tuple[str, ...]
    device: Annotated[int, msgspec.Meta(ge=-1, lt=MAX_DEVICES)] | None = None
    code: Word | str | None = None
    latency: Amount | None = None
    hang: bool | Amount = False
    crash: bool = False
    null_handle: bool = False
    start: Amount = 0.0
    end: Amount | None = None
    after: Word = 0
    count: Word | None = None
    every: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1


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
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    look_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0


class Scenario(NamedTuple):
    """A checked scenario. `expected` is the word of its worst finding, "ok" where there is none.

    `environment` holds variables of the processes in it, `files` what the host shows of itself
    where it matters (sys/bus/pci/devices/.../power/runtime_status): texts by path without root.
    `look_seconds` is the scenario time at which a single look finds what the scenario is about.
    """

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
    environment: dict[str, str]
    files: dict[str, str]
    look_seconds: float


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
    return parse(content(name), find(name).stem)


def content(name: str) -> dict[str, Any]:
    """Return the content of a scenario, with what it extends, for `parse`."""
    return _merged(find(name), MAX_EXTENDS)


def load_prepared() -> Scenario:
    """Load the scenario whose environment `prepare` has made for this process."""
    path = os.environ.get("TOPSMON_SIMULATED_SCENARIO")
    if path is None:
        raise SimulationError("TOPSMON_SIMULATED_SCENARIO is not set; use topsmon --simulate NAME")
    return load(path)


def parse(wanted: Mapping[str, Any], name: str) -> Scenario:
    """Check the content of a scenario (without `extends`) and return it ready for the table."""
    try:
        file = msgspec.convert(wanted, _File)
    except msgspec.ValidationError as error:
        raise SimulationError(f"scenario {name}: {error}") from None
    if not 0 <= file.count <= MAX_DEVICES:
        raise SimulationError(f"scenario {name}: count must be 0..{MAX_DEVICES}, not {file.count}")
    for path in file.files:
        if path.startswith("/") or ".." in path.split("/"):
            raise SimulationError(f"scenario {name}: files: {path!r} must be a path below the root")
    for precision in (*file.rates.measured, *file.rates.unsupported):
        if precision not in PRECISIONS:
            raise SimulationError(
                f"scenario {name}: rates: unknown precision {precision!r};"
                f" use one of {', '.join(PRECISIONS)}"
            )
    try:
        found = devices.build(file.count, file.device, file.devices, name)
    except SimulationError as error:
        raise SimulationError(f"scenario {name}: {error}") from None
    return Scenario(
        name=name,
        title=file.title,
        description=file.description,
        expected=file.expected,
        library=file.library,
        driver=file.driver,
        devices=found,
        faults=file.faults,
        rates=file.rates,
        lab=file.lab,
        environment=file.environment,
        files=file.files,
        look_seconds=file.look_seconds,
    )


def info(name: str) -> ScenarioInfo:
    """Return the heading of a scenario."""
    heading = _read(find(name))
    return ScenarioInfo(
        name, *(str(heading.get(key, "")) for key in ("title", "description", "expected"))
    )


def _read(path: Path) -> dict[str, Any]:
    """Decode a file. The standard library's decoder also takes the lone surrogates of bad names."""
    try:
        found = json.loads(path.read_bytes(), parse_constant=_no_number)
    except OSError as error:
        raise SimulationError(f"scenario file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SimulationError(f"scenario file {path}: {error}") from None
    if not isinstance(found, dict):
        raise SimulationError(f"scenario file {path}: expected an object, not {found!r:.40}")
    return found


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number that a driver gives")


def _merged(path: Path, depth: int) -> dict[str, Any]:
    own = _read(path)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    if depth == 0 or not isinstance(parent, str):
        raise SimulationError(f"scenario file {path}: extends must name a scenario, not a circle")
    merged = _merged(find(parent), depth - 1)
    for key, value in own.items():
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

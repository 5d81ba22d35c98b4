"""Writes a scenario as the flat table that the driver library reads (driver/table.h)."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from topsmon.simulated.device import Device, Process
from topsmon.simulated.fields import RETURN_CODES
from topsmon.simulated.scenario import Fault, Scenario
from topsmon.simulated.values import SimulationError

SOURCES = Path(__file__).parent / "driver"
NEVER = "1e300"


def lines(scenario: Scenario) -> Iterator[str]:
    """Yield the lines of the table; SimulationError where a fault makes no sense."""
    yield "topsmon-simulated 1"
    yield "device -1 -1"
    yield f"text driver_version {_hex(scenario.driver.version)}"
    nvml_version = f"{scenario.driver.cuda.split('.')[0]}.{scenario.driver.version}"
    yield f"text nvml_version {_hex(nvml_version)}"
    yield f"number cuda_version {_cuda_number(scenario)}"
    yield f"number process_entry_bytes {scenario.driver.process_entry_bytes}"
    for index, device in enumerate(scenario.devices):
        yield from _device_lines(index, device)
    for position, fault in enumerate(scenario.faults):
        yield from _fault_lines(fault, f"scenario {scenario.name}: faults.{position}")


def write(scenario: Scenario, path: Path) -> None:
    """Write the table in one step, so that no reader ever sees half of it."""
    content = "".join(f"{line}\n" for line in lines(scenario))
    replace(path, content.encode("ascii"))


def set_clock(path: Path, seconds: float) -> None:
    """Set the scenario time in a clock file (TOPSMON_SIMULATED_CLOCK)."""
    replace(path, f"{seconds!r}\n".encode("ascii"))


def replace(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it over `path`."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@functools.cache
def exported_calls() -> frozenset[str]:
    """Names of the NVML calls that the driver library answers, read from its source."""
    declared = re.compile(r"^(?:EXPORT [^(]*?|[A-Z][A-Z0-9_]*\()(nvml\w+)", re.MULTILINE)
    return frozenset(
        name for path in SOURCES.glob("*.c") for name in declared.findall(path.read_text("ascii"))
    )


def _hex(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").hex()


def _cuda_number(scenario: Scenario) -> int:
    """CUDA's way to write a version: 13.0 is 13000, 12.2 is 12020."""
    try:
        major, minor = map(int, scenario.driver.cuda.split("."))
    except ValueError:
        raise SimulationError(
            f"scenario {scenario.name}: driver.cuda must look like 13.0,"
            f" not {scenario.driver.cuda!r}"
        ) from None
    return major * 1000 + minor * 10


def _device_lines(index: int, device: Device) -> Iterator[str]:
    yield f"device {index} {device.parent}"
    for field, text in device.texts.items():
        yield f"text {field} {_hex(text)}"
    for field, tokens in device.numbers.items():
        yield f"number {field} {' '.join(tokens)}"
    for process in device.processes:
        yield _process_line(process)
    for event in device.events:
        yield (
            f"event {event.type} {event.xid} {event.gpu_instance} {event.compute_instance}"
            f" {event.time}"
        )


def _process_line(process: Process) -> str:
    end = NEVER if process.end is None else process.end
    shares = (
        process.memory_mib,
        process.sm_percent,
        process.memory_busy_percent,
        process.encoder_percent,
        process.decoder_percent,
    )
    memory, *times = (-1 if value is None else value for value in shares)
    return (
        f"process {process.kind} {process.pid} {memory} {process.gpu_instance}"
        f" {process.compute_instance} {process.start} {end}"
        f" {' '.join(map(str, times))} {_hex(process.name or '')}"
    )


def _fault_lines(fault: Fault, where: str) -> Iterator[str]:
    action = _action(fault, where)
    device = -2 if fault.device is None else fault.device
    end = NEVER if fault.end is None else fault.end
    count = -1 if fault.count is None else fault.count
    for call in (fault.call,) if isinstance(fault.call, str) else fault.call:
        known = (*exported_calls(), "prober")
        is_entry = re.fullmatch(r"(field|gpm):[0-9]{1,5}", call, re.ASCII) is not None
        if not is_entry and not any(fnmatchcase(name, call) for name in known):
            raise SimulationError(f"{where}: no simulated call matches {call!r}")
        yield (
            f"fault {call} {device} {action} {fault.start} {end} {fault.after} {count}"
            f" {fault.every}"
        )


def _action(fault: Fault, where: str) -> str:
    actions = []
    if fault.code is not None:
        actions.append(f"return {_code(fault.code, where)}")
    if fault.latency is not None:
        actions.append(f"latency {fault.latency}")
    if fault.hang is not False:
        actions.append("hang 0" if fault.hang is True else f"latency {fault.hang}")
    if fault.crash:
        actions.append("crash 0")
    if fault.null_handle:
        actions.append("null 0")
    if len(actions) != 1:
        raise SimulationError(
            f"{where}: a fault does exactly one of return, latency, hang, crash, null_handle"
        )
    return actions[0]


def _code(code: int | str, where: str) -> int:
    if isinstance(code, int):
        return code
    if code not in RETURN_CODES:
        raise SimulationError(
            f"{where}: unknown return code {code!r}; use a number or one of"
            f" {', '.join(RETURN_CODES)}"
        )
    return RETURN_CODES[code]

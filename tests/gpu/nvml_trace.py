"""Records what an NVML driver answers to topsmon: calls, arguments, codes, values, latencies.

    python tests/gpu/nvml_trace.py trace.json [SECONDS]

`trace_scenario.py` beside this file makes a scenario of the simulated driver out of it. UUIDs are
replaced, names of processes are not asked for.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from topsmon import __version__
from topsmon.devices import host, nvml, startup
from topsmon.devices.gpu import Gpu
from topsmon.devices.processes import Family, ProcessTable

SCHEMA = 1
SYSTEM = -1
"""The device of calls that concern none."""
INTERVAL_SECONDS = 0.5
_HANDLES = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID")
_UNASKED = ("nvmlSystemGetProcessName",)


class NoDriverError(Exception):
    """No driver that could be recorded, in words."""


class Recorder(nvml.Driver):
    """The driver as topsmon sees it, with a list of every call.

    A call is [seconds since the start, function, device, arguments, NVML's code, value, latency in
    s]. A device is its index, of a MIG instance "index.instance".
    """

    def __init__(self, binding: Any, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(binding)
        self.calls: list[list[Any]] = []
        self._clock = clock
        self._started = clock()
        self._devices: dict[object, int | str] = {}
        self._uuids: dict[str, int] = {}

    def call(self, watch: nvml.Watch, name: str, *arguments: object) -> Any:
        """Call the driver and note what it answers."""
        if name in _UNASKED:
            return nvml.Unavailable("not asked for in a trace")
        at, begun = self._clock() - self._started, time.perf_counter()
        answer = super().call(watch, name, *arguments)
        latency = time.perf_counter() - begun
        device, plain = self._who(arguments)
        code = 0
        if isinstance(answer, nvml.Unavailable):
            code = nvml.UNKNOWN if answer.code is None else answer.code
        else:
            self._learn(name, device, plain, answer)
        value = None if code else self._value(name, arguments, answer)
        self.calls.append([round(at, 6), name, device, plain, code, value, round(latency, 7)])
        return answer

    def _who(self, arguments: tuple[object, ...]) -> tuple[int | str, list[Any]]:
        """The device that is asked, and the arguments without its handle."""
        device: int | str = SYSTEM
        plain: list[Any] = []
        for argument in arguments:
            known = self._devices.get(_address(argument))
            if known is not None:
                device = known
            elif isinstance(argument, str) and argument in self._uuids:
                plain.append(self._uuids[argument])
            elif isinstance(argument, (int, float, str, list, tuple)):
                plain.append(argument)
        return device, plain

    def _learn(self, name: str, device: int | str, plain: list[Any], answer: Any) -> None:
        if name in _HANDLES and answer:
            self._devices[_address(answer)] = plain[0]
        elif name == "nvmlDeviceGetMigDeviceHandleByIndex" and answer:
            self._devices[_address(answer)] = f"{device}.{plain[0]}"
        elif name == "nvmlDeviceGetUUID" and isinstance(answer, str) and isinstance(device, int):
            self._uuids[answer] = device

    def _value(self, name: str, arguments: tuple[object, ...], answer: Any) -> Any:
        if name == "nvmlDeviceGetUUID":
            return masked(str(answer))
        if name == "nvmlDeviceGetFieldValues":
            return [_field(entry) for entry in answer]
        if name == "nvmlGpmMetricsGet":
            request: Any = arguments[0]
            metrics = (request.metrics[place] for place in range(request.numMetrics))
            return [[one.metricId, one.nvmlReturn, one.value] for one in metrics]
        return plain_value(answer)


def masked(uuid: str) -> str:
    """A UUID of the same form that tells nothing of the board."""
    kind, _, _ = uuid.partition("-")
    digits = hashlib.sha256(uuid.encode()).hexdigest()
    return f"{kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def _address(handle: object) -> object:
    """What all copies of a handle have in common: the driver's own address."""
    if isinstance(handle, (ctypes._Pointer, ctypes.c_void_p)):
        return ctypes.cast(handle, ctypes.c_void_p).value
    return None


def _field(entry: Any) -> list[Any]:
    """[id, scope, code, value] of one entry of GetFieldValues."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    value = None
    if entry.nvmlReturn == 0 and entry.valueType < len(members):
        value = getattr(entry.value, members[entry.valueType])
    return [entry.fieldId, entry.scopeId, entry.nvmlReturn, value]


def plain_value(value: Any) -> Any:
    """An answer of nvidia-ml-py as JSON can hold it; handles and samples are None."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, (list, tuple)):
        return [plain_value(one) for one in value]
    if isinstance(value, ctypes.Structure):
        return {name: plain_value(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array):
        return [plain_value(one) for one in value]
    if hasattr(value, "__dict__"):
        return {name: plain_value(one) for name, one in vars(value).items()}
    return None


def record(
    seconds: float,
    interval: float = INTERVAL_SECONDS,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Read every GPU as the poller does, for so long, and return the trace.

    Raises NoDriverError where there is no driver.
    """
    binding = startup.load_binding()
    if isinstance(binding, startup.Trouble):
        raise NoDriverError(binding.message)
    driver, watch = Recorder(binding, clock), nvml.Watch()
    trouble = startup.initialise(driver, watch, container=False)
    if trouble is not None:
        raise NoDriverError(trouble.message)
    version, cuda = startup.driver_versions(driver, watch)
    table = ProcessTable(Family(os.getpid(), os.getppid()), foreign_pids=True, clock=clock)
    count = driver.call(watch, "nvmlDeviceGetCount")
    facts = host.read_facts(host.shown_root())
    gpus = [
        Gpu(driver, watch, index, facts, table, clock=clock, sleep=sleep)
        for index in range(count if isinstance(count, int) else 0)
    ]
    samples: list[list[Any]] = []
    identities = []
    for gpu in gpus:
        gpu.acquire()
        gpu.find()
        identities.append(_event(gpu.identity(), gpu.uuid))
    started = clock()
    while True:
        tick = clock()
        for gpu in gpus:
            gpu.processes(tick)
            sample = gpu.sample(tick, counters=True)
            samples.append([round(tick - started, 6), gpu.index, _event(sample, gpu.uuid)])
        if clock() - started >= seconds:
            break
        sleep(max(0.0, tick + interval - clock()))
    return {
        "schema": SCHEMA,
        "topsmon": __version__,
        "driver": version,
        "cuda": cuda,
        "host": {"wsl": facts.wsl, "jetson": facts.jetson},
        "devices": len(gpus),
        "identities": identities,
        "calls": driver.calls,
        "samples": samples,
    }


def _event(event: Any, uuid: str | None) -> dict[str, Any]:
    """An event without its stamp and without the UUID."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for name in ("type", "time", "monotonic", "source", "device"):
        fields.pop(name, None)
    if fields.get("uuid") and uuid is not None:
        fields["uuid"] = masked(uuid)
    return fields


def has_driver() -> bool:
    """True where an NVML driver works and has a GPU."""
    binding = startup.load_binding()
    if isinstance(binding, startup.Trouble):
        return False
    driver, watch = nvml.Driver(binding), nvml.Watch()
    if startup.initialise(driver, watch, container=False) is not None:
        return False
    count = driver.call(watch, "nvmlDeviceGetCount")
    return isinstance(count, int) and count > 0


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 64
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    try:
        trace = record(seconds)
    except NoDriverError as error:
        print(f"no trace: {error}", file=sys.stderr)
        return 3
    Path(sys.argv[1]).write_text(json.dumps(trace) + "\n")
    print(f"{len(trace['calls'])} calls of {trace['devices']} GPUs are in {sys.argv[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

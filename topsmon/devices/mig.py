"""The instances of a GPU in MIG mode, each with its own SMs and its own memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from topsmon import events
from topsmon.devices import metrics, nvml
from topsmon.devices.gpm import HIDDEN, Gpm
from topsmon.devices.nvml import Call, Unavailable
from topsmon.devices.reader import Reader
from topsmon.devices.text import valid_text
from topsmon.units import gibibytes

MAX_INSTANCES = 16
LOOK_SECONDS = 10.0
_GONE = frozenset({nvml.INVALID_ARGUMENT, nvml.NOT_FOUND})
"""What a handle answers whose instance was destroyed."""


@dataclass
class _Instance:
    """A MIG device through its own handle; `fixed` is what does not change about it."""

    reader: Reader
    fixed: events.Slice
    gpm: Gpm | None


class Instances:
    """The instances of one GPU, looked for now and then, or at once when one has gone."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._found: list[_Instance] = []
        self._looked = float("-inf")
        self.problem: str | None = None

    def read(self, now: float, *, counters: bool) -> tuple[events.Slice, ...]:
        """Return the instances with the memory they use; `counters`: sample their GPM as well."""
        if now - self._looked >= LOOK_SECONDS:
            self._look(now)
        slices = [_read(instance, counters=counters) for instance in self._found]
        if None in slices:
            # An instance was destroyed: its handle is void, and others may have come.
            self._look(now)
            slices = [_read(instance, counters=counters) for instance in self._found]
        return tuple(one for one in slices if one is not None)

    def handles(self, now: float) -> dict[int, Any]:
        """Return the handle of each GPU instance by its number, as they were found last."""
        if not self._found and now - self._looked >= LOOK_SECONDS:
            self._look(now)
        return {
            instance.fixed.gpu_instance: instance.reader.handle
            for instance in self._found
            if instance.fixed.gpu_instance is not None
        }

    def free(self) -> None:
        """Give what the instances hold back to the driver."""
        for instance in self._found:
            if instance.gpm is not None:
                instance.gpm.free()

    def _look(self, now: float) -> None:
        self._looked = now
        known = {one.fixed.uuid: one for one in self._found if one.fixed.uuid is not None}
        self._found = []
        limit = self._reader.read("mig count", Call("nvmlDeviceGetMaxMigDeviceCount"))
        self.problem = limit.reason if isinstance(limit, Unavailable) else None
        for place in range(0 if isinstance(limit, Unavailable) else min(limit, MAX_INSTANCES)):
            # The places of instances have gaps: what is not found here does not end the list.
            handle = self._reader.call("nvmlDeviceGetMigDeviceHandleByIndex", place)
            if isinstance(handle, Unavailable) or not handle:
                continue
            instance = self._meet(handle, known)
            self._found.append(instance)
        for gone in known.values():
            if gone.gpm is not None and gone not in self._found:
                gone.gpm.free()

    def _meet(self, handle: Any, known: Mapping[str, _Instance]) -> _Instance:
        """Return the instance of this handle, as it is known or told about itself now."""
        parent = self._reader
        reader = Reader(parent.driver, parent.watch, handle, parent.clock, parent.sleep)
        uuid = valid_text(reader.call("nvmlDeviceGetUUID"))
        before = None if uuid is None else known.get(uuid)
        if before is not None:
            before.reader.handle = handle
            return before
        reasons: dict[str, str] = {}

        def take(field: str, answer: Any) -> Any:
            if isinstance(answer, Unavailable):
                reasons[field] = answer.reason
                return None
            return answer

        attributes = reader.driver.query(
            reader.watch,
            (Call("nvmlDeviceGetAttributes_v2"), Call("nvmlDeviceGetAttributes")),
            handle,
        )
        told = None if isinstance(attributes, Unavailable) else attributes
        gpu_instance = take("gpu_instance", reader.call("nvmlDeviceGetGpuInstanceId"))
        fixed = events.Slice(
            uuid=uuid,
            profile=_profile(reader, told),
            gpu_instance=gpu_instance,
            compute_instance=take(
                "compute_instance", reader.call("nvmlDeviceGetComputeInstanceId")
            ),
            sm_count=take("sm_count", attributes if told is None else told.multiprocessorCount),
            unavailable=reasons,
        )
        gpm = None if gpu_instance is None else Gpm(parent, gpu_instance)
        return _Instance(reader, fixed, gpm)


def _profile(reader: Reader, attributes: Any) -> str | None:
    name = valid_text(reader.call("nvmlDeviceGetName")) or ""
    profile = name.rpartition("MIG ")[2]
    if profile or attributes is None:
        return profile or None
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"


def _read(instance: _Instance, *, counters: bool) -> events.Slice | None:
    """Return what an instance does now, None where it has gone."""
    reader = instance.reader
    answer = reader.driver.query(reader.watch, metrics.MEMORY.calls, reader.handle)
    reasons = dict(instance.fixed.unavailable)
    values: dict[str, Any] = {}
    if isinstance(answer, Unavailable):
        if answer.kind == "lost" or answer.code in _GONE:
            return None
        readings: dict[str, metrics.Reading] = dict.fromkeys(metrics.MEMORY_FIELDS, answer)
    else:
        readings = metrics.memory(answer)
    for field in ("memory_used_bytes", "memory_total_bytes"):
        reading = readings[field]
        if isinstance(reading, Unavailable):
            reasons[field] = reading.reason
        else:
            values[field] = reading
    if instance.gpm is not None:
        shown: events.GpuCounters | Unavailable = Unavailable(HIDDEN)
        if counters:
            shown = instance.gpm.read()
        else:
            instance.gpm.free()
        if isinstance(shown, Unavailable):
            reasons["counters"] = shown.reason
        else:
            values["counters"] = shown
    return msgspec.structs.replace(instance.fixed, unavailable=reasons, **values)


def describe(slices: Iterable[events.Slice], problem: str | None = None) -> str:
    """Return the instances in words: "2 MIG instances: 3g.40gb 19.7 of 39.4 GiB, ..."."""
    if problem is not None:
        return f"MIG instances: {problem}"
    words = [_words(one) for one in slices]
    plural = "instance" if len(words) == 1 else "instances"
    return f"{len(words)} MIG {plural}" + (f": {', '.join(words)}" if words else "")


def _words(one: events.Slice) -> str:
    profile = one.profile or "unnamed"
    used, total = one.memory_used_bytes, one.memory_total_bytes
    if used is None or total is None:
        return f"{profile} (memory: {one.unavailable.get('memory_used_bytes', 'N/A')})"
    return f"{profile} {gibibytes(used)} of {gibibytes(total)} GiB"

"""Reads one device through one handle; what it cannot do is remembered and not asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from topsmon.devices import nvml
from topsmon.devices.nvml import Call, Unavailable

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink counter that sums over all links (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_*)."""

FieldId = tuple[int, int]
"""A field id of nvmlDeviceGetFieldValues (NVML_FI_DEV_*) and its scope, 0 where it has none."""
Number = float | int

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of the value's union by nvmlValueType_t."""


class Reader:
    """Use from one thread. Every method may hang in the driver.

    They raise GpuLostError and DriverGoneError; after either the reader is void.
    """

    def __init__(
        self,
        driver: nvml.Driver,
        watch: nvml.Watch,
        handle: Any,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.driver = driver
        self.watch = watch
        self.handle = handle
        self.clock = clock
        self.sleep = sleep
        self.capabilities = nvml.Capabilities(driver, watch)

    def read(self, name: str, *calls: Call) -> Any | Unavailable:
        """Return the answer of the first of `calls` that the driver supports."""
        return self.capabilities.read(name, calls, self.handle, self.clock())

    def call(self, name: str, *arguments: object) -> Any | Unavailable:
        """Call a function with the handle, without any memory of what it answered before."""
        return self.driver.call(self.watch, name, self.handle, *arguments)

    def fields(self, wanted: Iterable[FieldId]) -> dict[FieldId, Number | Unavailable]:
        """Read fields in one driver call. A field that fails in passing is missing: no news."""
        now = self.clock()
        found: dict[FieldId, Number | Unavailable] = {}
        asked: list[FieldId] = []
        for field in dict.fromkeys(wanted):
            off = self.capabilities.off(_metric(field), now)
            if off is None:
                asked.append(field)
            else:
                found[field] = off
        if not asked:
            return found
        entries = self.call("nvmlDeviceGetFieldValues", asked)
        for index, field in enumerate(asked):
            one = entries if isinstance(entries, Unavailable) else _value(entries[index])
            if isinstance(one, Unavailable):
                refused = self.capabilities.refuse(_metric(field), one, now)
                if refused is not None:
                    found[field] = refused
            else:
                self.capabilities.accept(_metric(field))
                found[field] = one
        return found


def _metric(field: FieldId) -> str:
    return f"field {field[0]}/{field[1]}"


def _value(entry: Any) -> Number | Unavailable:
    """Return the value of one entry, read by its type; each entry has a return code of its own."""
    if entry.nvmlReturn == nvml.INVALID_ARGUMENT:
        return Unavailable(
            "the driver does not know this field (NVML InvalidArgument)", nvml.INVALID_ARGUMENT
        )
    if entry.nvmlReturn != 0:
        return nvml.explain(entry.nvmlReturn, f"field {entry.fieldId}")
    if not 0 <= entry.valueType < len(_MEMBERS):
        return Unavailable(f"value of unknown type {entry.valueType} from the driver")
    value: Number = getattr(entry.value, _MEMBERS[entry.valueType])
    return value

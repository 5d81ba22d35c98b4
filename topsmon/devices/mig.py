"""The instances of a GPU in MIG mode, each with its own memory."""

from __future__ import annotations

from topsmon.devices import metrics, nvml
from topsmon.devices.nvml import Unavailable
from topsmon.devices.text import valid_text
from topsmon.units import gibibytes

MAX_INSTANCES = 16


def describe(driver: nvml.Driver, watch: nvml.Watch, parent: object) -> str:
    """Return the instances in words: "2 MIG instances: 3g.40gb 19.7 of 39.4 GiB, ..."."""
    limit = driver.call(watch, "nvmlDeviceGetMaxMigDeviceCount", parent)
    if isinstance(limit, Unavailable):
        return f"MIG instances: {limit.reason}"
    found = []
    for index in range(min(limit, MAX_INSTANCES)):
        # The places of instances have gaps: what is not found here does not end the list.
        handle = driver.call(watch, "nvmlDeviceGetMigDeviceHandleByIndex", parent, index)
        if not isinstance(handle, Unavailable) and handle:
            found.append(_instance(driver, watch, handle))
    plural = "instance" if len(found) == 1 else "instances"
    return f"{len(found)} MIG {plural}" + (f": {', '.join(found)}" if found else "")


def _instance(driver: nvml.Driver, watch: nvml.Watch, handle: object) -> str:
    name = valid_text(driver.call(watch, "nvmlDeviceGetName", handle)) or ""
    profile = name.rpartition("MIG ")[2] or "unnamed"
    answer = driver.query(watch, metrics.MEMORY.calls, handle)
    if isinstance(answer, Unavailable):
        return f"{profile} (memory: {answer.reason})"
    memory = metrics.memory(answer)
    used, total = memory["memory_used_bytes"], memory["memory_total_bytes"]
    if isinstance(used, Unavailable) or isinstance(total, Unavailable):
        return f"{profile} (memory N/A)"
    return f"{profile} {gibibytes(used)} of {gibibytes(total)} GiB"

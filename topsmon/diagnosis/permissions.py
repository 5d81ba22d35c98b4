"""Rules about readings that the driver has begun to refuse: the board works, we may not look."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import live_gpus
from topsmon.diagnosis.words import finding, joined
from topsmon.state import State
from topsmon.units import plain

REFUSED = "no permission"
"""How the poller words NVML's NoPermission."""
READINGS = {
    "busy_ratio": "busy time",
    "power_watts": "power",
    "sm_clock_mhz": "clock",
    "memory_used_bytes": "memory",
    "temperature_celsius": "temperature",
    "clock_event_mask": "clocks event reasons",
}
GPM = "GPM:"
"""How the poller begins the reason of GPM counters that fail although the device has them."""
CONTAINER_REMEDY = (
    "Give the container the rights again (--privileged, or --cap-add SYS_ADMIN for counters) or "
    "recreate it; a daemon-reload on the host takes them away."
)


def permission_lost(state: State, now: float) -> Iterator[events.Finding]:
    """Readings that are refused for want of permission; worse where they could be read before."""
    for device in live_gpus(state, now):
        sample = device.sample
        if sample is None:
            continue
        refused = [
            field
            for field in READINGS
            if REFUSED in sample.unavailable.get(field, "").lower()
            # In a container only the instances' memory may be read, never that of the whole GPU.
            and not (device.identity.mig and field == "memory_used_bytes")
        ]
        if not refused:
            continue
        lost = [field for field in refused if _was_read(device, field)]
        shown = [READINGS[field] for field in lost or refused]
        yield finding(
            sample,
            device,
            code="permission-lost" if lost else "permission-missing",
            severity="warn" if lost else "info",
            word="N/A" if lost else "note",
            title=f"no permission {'any more ' if lost else ''}to read {joined(shown, 4)}",
            cause="the driver refuses what it answered before"
            if lost
            else "the driver refuses to tell it to this user or container",
            evidence=(plain(sample.unavailable[refused[0]], 80),),
            remedy=_remedy(state),
            basis="NVIDIA nvml.h, NVML_ERROR_NO_PERMISSION; asked again every 60 s",
        )


def _was_read(device: DeviceState, field: str) -> bool:
    histories = {
        "busy_ratio": device.busy,
        "power_watts": device.power_watts,
        "sm_clock_mhz": device.clock_mhz,
    }
    if field in histories:
        return any(value is not None for value in histories[field])
    return any(getattr(sample, field) is not None for sample in device.recent)


def counters_lost(state: State, now: float) -> Iterator[events.Finding]:
    """GPM counters that fail on a device that has them: verdicts rest on less from here on."""
    for device in live_gpus(state, now):
        sample = device.sample
        reason = sample.unavailable.get("counters", "") if sample is not None else ""
        if sample is None or sample.counters is not None or not reason.startswith(GPM):
            continue
        yield finding(
            sample,
            device,
            code="counters-lost",
            severity="info",
            word="note",
            title="performance counters (GPM) cannot be read",
            cause=plain(reason.removeprefix(GPM).strip(), 120),
            evidence=("busy time, power and clock are shown instead",),
            remedy=_remedy(state) if REFUSED in reason else "See whether a profiler holds them.",
            basis="NVIDIA/DCGM issue 214: refused after minutes in a container",
        )


def _remedy(state: State) -> str:
    if state.host is not None and state.host.container:
        return CONTAINER_REMEDY
    return "Ask the administrator for access to the device (or start topsmon with more rights)."

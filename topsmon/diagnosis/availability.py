"""Rules about devices that do not answer: lost, hung, stale, in error."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis.observe import is_stale, overdue, unread_since
from topsmon.diagnosis.words import board, finding, time_of_day
from topsmon.state import State
from topsmon.units import duration, plain

KERNEL_LOG = "sudo dmesg | grep -iE 'nvrm|xid'"
BRIEF_SECONDS = 0.5
"""A call that is out for less than this is no driver that hangs."""
_DRIVER_CALL = re.compile(r"\bnvml\w+")


def lost(state: State, _now: float) -> Iterator[events.Finding]:
    """A GPU fell off the bus (NVML GpuIsLost). The others go on."""
    for device in state.ordered():
        status = device.status
        if status is None or status.condition != "lost":
            continue
        since = time_of_day(status.time - (status.monotonic - status.since))
        yield finding(
            status,
            device,
            code="device-lost",
            severity="fail",
            word="LOST",
            title=f"lost since {since}: {board(device)}",
            cause=plain(status.detail, 120) or "the GPU fell off the bus (NVML GpuIsLost)",
            evidence=_identity(device),
            remedy="Look for an Xid in the kernel log; reseat or power-cycle; reboot if it stays.",
            command=KERNEL_LOG,
            basis="NVIDIA nvml.h, NVML_ERROR_GPU_IS_LOST",
        )


def not_answering(state: State, now: float) -> Iterator[events.Finding]:
    """A driver call that does not return. The screen and the other devices are not affected."""
    for device in state.ordered():
        status = device.status
        if status is None or status.condition != "stalled":
            continue
        before = status.monotonic - status.since
        waited = before + (now - device.status_seen if device.status_seen is not None else 0.0)
        if waited < BRIEF_SECONDS:
            yield _not_read_in_time(status, device)
            continue
        named = _DRIVER_CALL.search(status.detail)
        call = plain(named[0], 80) if named is not None else ""
        yield finding(
            status,
            device,
            code="driver-not-answering",
            severity="fail",
            word="STALE",
            title=f"driver not answering for {duration(waited)}" + (f" ({call})" if call else ""),
            cause="a driver call does not return; a failing GPU often stalls first",
            evidence=_identity(device),
            remedy="Look for an Xid in the kernel log; if it stays, reset the GPU or reboot.",
            command=KERNEL_LOG,
        )


def _not_read_in_time(status: events.DeviceStatus, device: DeviceState) -> events.Finding:
    """A single look that ended while the driver was still answering one call after the other."""
    return finding(
        status,
        device,
        code="driver-slow",
        severity="warn",
        word="STALE",
        title="not read in time: the driver answers slowly",
        cause="every call comes back, but all of them take longer than this look may",
        evidence=_identity(device),
        remedy="Look again with topsmon; turn persistence mode on (nvidia-smi -pm 1).",
    )


def not_read(state: State, _now: float) -> Iterator[events.Finding]:
    """GPUs that nothing reads any more: what the screen shows of them is of before."""
    for device in state.gpus():
        event = unread_since(state, device)
        if event is None:
            continue
        yield finding(
            event,
            device,
            code="device-not-read",
            severity="warn",
            word="N/A",
            title=f"not read since {time_of_day(event.time)}",
            cause="topsmon reads no GPU any more; all values of this row are old",
            evidence=_identity(device),
            remedy="Start topsmon again.",
        )


def stale(state: State, now: float) -> Iterator[events.Finding]:
    """Samples that are late though the poller runs and was not asked to pause."""
    for device in state.ordered():
        if device.condition != "ok" or device.sample is None:
            continue
        if not is_stale(state, device, now):
            continue
        yield finding(
            device.sample,
            device,
            code="samples-stale",
            severity="warn",
            word="STALE",
            title=f"no new sample for {duration(overdue(state, device, now))}",
            cause="the driver or the poller is slow; all values of this row are old",
        )


def in_error(state: State, _now: float) -> Iterator[events.Finding]:
    """A device that is listed but cannot be read."""
    for device in state.ordered():
        status = device.status
        if status is None or status.condition != "error":
            continue
        yield finding(
            status,
            device,
            code="device-unreadable",
            severity="warn",
            word="N/A",
            title=f"cannot be read: {plain(status.detail, 80) or 'the driver gives no reason'}",
            evidence=_identity(device),
            remedy="See the kernel log; check the permissions on /dev/nvidia*.",
            command=KERNEL_LOG,
        )


def _identity(device: DeviceState) -> tuple[str, ...]:
    parts = (device.identity.uuid, device.identity.pci_bus_id)
    return tuple(plain(part, 80) for part in parts if part)

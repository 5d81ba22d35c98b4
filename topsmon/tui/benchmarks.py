"""What the benchmarks of a device do, what keeps them from running, and when `b` can help."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.state import State
from topsmon.units import NOT_AVAILABLE, plain

SHARED = "device-shared"
"""Code of the finding that others compute on a device."""
NONE = "no benchmarks: "
CONDITIONS: dict[events.DeviceCondition, str] = {
    "lost": "is lost",
    "stalled": "does not answer",
    "asleep": "is asleep",
    "error": "cannot be read",
}


def obstacle(state: State, device: DeviceState, torch_problem: str | None) -> str | None:
    """Why a device cannot be measured, whatever the user asks for; None where it can."""
    if device.condition in CONDITIONS:
        return f"{device.label} {CONDITIONS[device.condition]}"
    if torch_problem is not None:
        return plain(torch_problem, 400)
    worker = device.prober.worker
    if worker is not None and worker.condition == "failed":
        return f"the worker failed ({plain(worker.detail, 300) or 'it told no reason'})"
    if state.simulated is not None and device.identity.kind == "cpu":
        return "in a simulation the CPU is not measured"
    return None


def status(device: DeviceState, *, prevented: str | None, asked: bool) -> str:
    """What the benchmarks of a device do, and which key changes it. `asked`: by the key b."""
    prober = device.prober
    if prevented is not None:
        return f"{NONE}{prevented}"
    if prober.idle_reason is not None:
        ending = "" if asked else ": b measures anyway"
        return plain(prober.idle_reason, 200) + ending
    if _all_disturbed(device):
        return f"{device.label}: rates disturbed by other processes"
    if asked:
        return f"{device.label}: measuring half of the time, b for less"
    if prober.ready is not None:
        return f"{device.label}: measuring now and then, b for more"
    return f"{NOT_AVAILABLE}: no benchmarks here" if prober.worker is not None else ""


def _all_disturbed(device: DeviceState) -> bool:
    """True on a CPU all of whose results of this session others have spoilt."""
    results = [known.best for known in device.rates.values() if not known.is_remembered]
    measured = [result for result in results if result is not None]
    return (
        device.identity.kind == "cpu"
        and bool(measured)
        and all(not result.valid and result.correct is not False for result in measured)
    )


def as_asked(
    findings: Iterable[events.Finding], asked: Iterable[str], prevented: Iterable[str]
) -> tuple[events.Finding, ...]:
    """Findings that do not advise `b` on a device where it is on already, or cannot work."""
    on, off = set(asked), set(prevented)
    return tuple(_as_asked(finding, on, off) for finding in findings)


def _as_asked(finding: events.Finding, on: set[str], off: set[str]) -> events.Finding:
    if finding.code != SHARED or not finding.remedy:
        return finding
    if finding.device in off:
        return msgspec.structs.replace(finding, remedy="")
    if finding.device in on:
        cause = "measured beside this work, as asked: its rates are marked as shared"
        return msgspec.structs.replace(finding, cause=cause, remedy="")
    return finding

"""What a snapshot says of a GPU beyond its readings: what bounds it, its instances, its errors.

What it needs of the diagnosis is imported with the first GPU: a machine without one starts faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from topsmon.device_state import DeviceState
from topsmon.report.columns import wrap
from topsmon.state import State

if TYPE_CHECKING:
    from topsmon.diagnosis.bound import Bound


def bound_lines(state: State, now: float, width: int) -> list[str]:
    """What bounds each GPU, equal verdicts together; then the instances of GPUs in MIG mode."""
    if not any(state.gpus()):
        return []
    from topsmon.diagnosis import bound, mig

    who: dict[Bound, list[str]] = {}
    for device in state.gpus():
        if device.sample is not None:
            verdict = bound.of_device(state, device, now)
            who.setdefault(verdict, []).append(device.label)
    same_words: dict[str, list[str]] = {}
    for verdict, labels in who.items():
        same_words.setdefault(verdict.words, []).extend(labels)
    lines: list[str] = []
    for words, labels in same_words.items():
        lines += wrap(f"bound by ({_named(labels)}): {words}", width, rest=4)
        alone = [verdict for verdict in who if verdict.words == words]
        if len(alone) == 1 and alone[0].evidence:
            lines += wrap("; ".join(alone[0].evidence), width, first="    ", rest=4)
    for device in state.gpus():
        if device.identity.mig:
            lines += wrap(f"{device.label}: {mig.summary(device)}", width, rest=4)
        for part in mig.parts(state, device, now):
            lines += wrap(mig.describe(part), width, first="    ", rest=8)
    return lines


def _named(labels: list[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"


def fields(state: State, device: DeviceState, now: float) -> dict[str, Any]:
    """What the JSON snapshot says of a device besides its sample. Times in s, ratios 0..1."""
    if device.identity.kind != "gpu":
        return {"bound": None, "slices": None, "xids": []}
    from topsmon.diagnosis import bound

    verdict = bound.of_device(state, device, now)
    return {
        "bound": msgspec.to_builtins(verdict),
        "slices": _slices(state, device, now),
        "xids": [_xid(event.code, event.time) for event in device.xids],
    }


def _slices(state: State, device: DeviceState, now: float) -> list[dict[str, Any]] | None:
    """The MIG instances; None for a GPU that is not in MIG mode."""
    if not device.identity.mig:
        return None
    from topsmon.diagnosis import mig

    return [
        {
            "label": part.label,
            **msgspec.to_builtins(part.slice),
            "bound": msgspec.to_builtins(part.bound),
            "ceilings_ops_per_second": {
                ceiling.precision: ceiling.ops_per_second for ceiling in part.ceilings.rates
            },
            "memory_bandwidth_bytes_per_second": part.ceilings.memory_bandwidth_bytes_per_second,
        }
        for part in mig.parts(state, device, now)
    ]


def _xid(code: int, time: float) -> dict[str, Any]:
    from topsmon.diagnosis import xid

    known = xid.meaning(code)
    return {
        "code": code,
        "time_unix_seconds": time,
        "meaning": known.meaning if known is not None else None,
        "weight": known.weight if known is not None else None,
    }

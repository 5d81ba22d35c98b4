"""What bounds a piece of work on a device: its compute ceiling or its memory, by the roofline.

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009. Work of F operations on B bytes takes at
least max(F / compute ceiling, B / memory bandwidth); both are equal at the ridge point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from topsmon import events, units

BYTES_PER_VALUE = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "fp16_acc16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
}
"""Bytes of one value held in memory at a precision; TF32 operands are stored as FP32."""


@dataclass(frozen=True)
class Peak:
    """Compute ceiling of one precision beside the memory bandwidth of the same device.

    `ridge_ops_per_byte` None: the bandwidth is not known.
    """

    precision: str
    label: str
    unit: str
    ops_per_second: float
    bytes_per_second: float | None
    source: str

    @property
    def ridge_ops_per_byte(self) -> float | None:
        """Arithmetic intensity at which compute and memory take equally long."""
        if not self.bytes_per_second:
            return None
        return self.ops_per_second / self.bytes_per_second


@dataclass(frozen=True)
class Bound:
    """Least time of some work in seconds, and what sets it.

    `by` None: the memory's share is not known, and `seconds` is that of computing alone.
    """

    seconds: float
    by: Literal["compute", "memory"] | None


def peaks(ceilings: events.Ceilings | None) -> tuple[Peak, ...]:
    """The dense ceilings of the precisions that the device has, in the order of display."""
    if ceilings is None:
        return ()
    rates = {rate.precision: rate for rate in ceilings.rates}
    found = []
    for precision in units.PRECISIONS.values():
        rate = next((rates[key] for key in precision.ceilings if key in rates), None)
        if rate is not None:
            found.append(
                Peak(
                    precision=precision.key,
                    label=precision.label,
                    unit=precision.unit,
                    ops_per_second=rate.ops_per_second,
                    bytes_per_second=ceilings.memory_bandwidth_bytes_per_second,
                    source=rate.source,
                )
            )
    return tuple(found)


def bound(peak: Peak, operations: float, moved_bytes: float) -> Bound:
    """Least time of some operations on some bytes."""
    compute = operations / peak.ops_per_second
    if not peak.bytes_per_second:
        return Bound(compute, None)
    memory = moved_bytes / peak.bytes_per_second
    return Bound(max(compute, memory), "compute" if compute >= memory else "memory")

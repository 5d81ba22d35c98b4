"""Equal boards compared with each other: the best of them shows what this one should do."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from topsmon.device_state import DeviceState
from topsmon.diagnosis.trust import trusted
from topsmon.state import State

SPREAD = 0.10
"""Further below the best than this is a straggler (huggingface/gpu-fryer tolerates 10 %)."""


@dataclass(frozen=True)
class Peers:
    """The trusted rates of the other equal boards, in ops/s, for one precision."""

    rates: tuple[float, ...]

    @property
    def best(self) -> float:
        """The reference: with two boards a median would hide the slow one."""
        return max(self.rates)

    @property
    def median(self) -> float:
        """The second witness."""
        return statistics.median(self.rates)

    def gap(self, own: float) -> float:
        """How far below the best of the others, as a share of it; negative when above."""
        return 1.0 - own / self.best


def peers_of(state: State, device: DeviceState, precision: str) -> Peers | None:
    """The other GPUs of the same model, None where none of them has a trusted rate."""
    if device.identity.kind != "gpu":
        return None
    rates = [
        result.rate_ops_per_second
        for other in state.gpus()
        if other is not device and _equal(other, device)
        if (result := trusted(other, precision)) is not None
    ]
    known = tuple(rate for rate in rates if rate)
    return Peers(known) if known else None


def _equal(one: DeviceState, other: DeviceState) -> bool:
    """Same name, memory, SMs and slicing."""
    first, second = one.identity, other.identity
    return (first.name, first.sm_count, first.memory_total_bytes, first.mig) == (
        second.name,
        second.sm_count,
        second.memory_total_bytes,
        second.mig,
    )

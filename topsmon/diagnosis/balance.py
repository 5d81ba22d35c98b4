"""How to split a batch over unequal devices, and how to pay less for communication.

Split: the share of a device is the smaller of its share of the memory and its share of the measured
rates, normalised. Memory alone is the wrong key: a card with twice the memory and half the speed
would hold up all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from topsmon.distributed.bus import ALL_REDUCE, seconds_on_bus

TARGET_SHARE = 0.10
"""Share of the step for communication that is worth no accumulation. Chosen."""
FP32_BYTES = 4


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One device: its memory in bytes, and its rate in ops/s in the type that training uses."""

    label: str
    memory_bytes: float
    rate_ops_per_second: float


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A device's shares, each 0..1: of all memory, of all rates, and of the batch."""

    label: str
    memory: float
    rate: float
    batch: float


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A split of the batch. Step times are in units of an ideal split by rates alone.

    `uneven`: the shares differ enough to be worth it.
    """

    shares: tuple[Share, ...]
    step_advised: float
    step_even: float
    step_by_memory: float

    @property
    def uneven(self) -> bool:
        """True where equal parts would cost more than 5 %."""
        return self.step_even > 1.05 * self.step_advised


def split(members: Sequence[Member]) -> Split | None:
    """The split, None for fewer than two devices or one without memory or speed."""
    memory = math.fsum(one.memory_bytes for one in members)
    rates = math.fsum(one.rate_ops_per_second for one in members)
    if len(members) < 2 or any(one.memory_bytes <= 0 for one in members):
        return None
    if any(not one.rate_ops_per_second > 0 for one in members):
        return None
    parts = [
        (one.label, one.memory_bytes / memory, one.rate_ops_per_second / rates) for one in members
    ]
    total = math.fsum(min(by_memory, by_rate) for _, by_memory, by_rate in parts)
    shares = tuple(
        Share(label=name, memory=by_memory, rate=by_rate, batch=min(by_memory, by_rate) / total)
        for name, by_memory, by_rate in parts
    )
    return Split(
        shares=shares,
        step_advised=max(one.batch / one.rate for one in shares),
        step_even=max(1.0 / len(shares) / one.rate for one in shares),
        step_by_memory=max(one.memory / one.rate for one in shares),
    )


def samples(shares: Sequence[Share], batch: int) -> tuple[int, ...]:
    """Whole samples for each device that add up to the batch: by the largest remainders."""
    exact = [one.batch * batch for one in shares]
    whole = [math.floor(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda at: whole[at] - exact[at])
    for at in order[: batch - sum(whole)]:
        whole[at] += 1
    return tuple(whole)


def gradient_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """What each rank multiplies its mean loss by, n_i x world / N, before DDP takes a plain mean.

    Without it a sample in a small part counts more than one in a large part.
    """
    total = sum(counts)
    return tuple(count * len(counts) / total for count in counts)


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """The all-reduce of the gradients once: 2 (n - 1) / n x bytes / busbw.

    What backward hides of it is not known here, so that it is the most that it can cost.
    """

    gradient_bytes: float
    ranks: int
    busbw_bytes_per_second: float
    seconds: float

    def share(self, compute_seconds: float, micro_batches: int = 1) -> float:
        """Of a step with so many micro-batches of `compute_seconds` each, paid once."""
        return self.seconds / (micro_batches * compute_seconds + self.seconds)

    def micro_batches(self, compute_seconds: float, target: float = TARGET_SHARE) -> int:
        """The fewest micro-batches that bring the share down to the target."""
        needed = self.seconds * (1.0 - target) / (target * compute_seconds)
        return max(1, math.ceil(needed - 1e-9))

    def enough_compute_seconds(self, target: float = TARGET_SHARE) -> float:
        """The least computing between two all-reduces that keeps the share down to the target."""
        return self.seconds * (1.0 - target) / target


def communication(
    parameters: int,
    ranks: int,
    busbw_bytes_per_second: float,
    bytes_per_gradient: int = FP32_BYTES,
) -> Communication:
    """The cost of reducing the gradients of so many parameters."""
    size = float(parameters) * bytes_per_gradient
    return Communication(
        gradient_bytes=size,
        ranks=ranks,
        busbw_bytes_per_second=busbw_bytes_per_second,
        seconds=seconds_on_bus(ALL_REDUCE, ranks, size, busbw_bytes_per_second),
    )


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for a job over several devices. `compute_seconds`: one micro-batch without waiting.

    `parameters_source` says where the count is from. `bus_bytes` is the payload that the bus
    bandwidth was measured at.
    """

    split: Split | None = None
    parameters: int | None = None
    parameters_source: str = ""
    communication: Communication | None = None
    bus_bytes: int | None = None
    compute_seconds: float | None = None
    compute_source: str = ""
    communication_share: float | None = None
    micro_batches: int | None = None

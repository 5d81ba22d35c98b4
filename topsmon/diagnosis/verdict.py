"""What bounds a kernel, from shares of time and of capacity: one fixed order of rules.

Each rule is true, false or, where an input is missing, not known. The first that is not false
decides: a true one is the verdict, and one that is not known ends in "cannot tell", since what
comes after it may not be claimed either. So a missing input never reads as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal[
    "idle",
    "throttled",
    "stalled",
    "memory",
    "tensor",
    "fp32",
    "fp64",
    "fp16",
    "integer",
    "latency",
    "mixed",
    "cannot tell",
]
Pipe = Literal["fp32", "fp64", "fp16", "integer"]
PIPES: tuple[Pipe, ...] = ("fp32", "fp64", "fp16", "integer")
"""Arithmetic that is not done by Tensor Cores, in the order in which it is named."""

Fact = bool | None
"""True, false, or not known."""

IDLE = 0.05
"""Below this share of everything nothing but upkeep runs."""
THROTTLED = 0.10
"""A slowdown halves the clock (nvml.h): 10 % of the time cost 5 % of the work."""
STALLED = 0.70
"""The engine rests for the other 30 % of the time: more than launching kernels costs."""
NEAR = 0.70
"""From this share of what a kernel can reach on, a unit counts as what bounds the work."""
MEMORY_NEAR = 0.75
LOW = 0.30
"""Every unit below: they wait, whatever for."""
FEW_SMS = 0.50


@dataclass(frozen=True)
class Reach:
    """The shares of their peaks that good kernels reach, measured here or published.

    DRAM: about 80 % of the theoretical bandwidth is the most that is achieved (NVIDIA DCGM
    documentation, profiling metrics). Arithmetic: matrix products reach 60 to 70 % of the peak.
    """

    dram: float = 0.80
    tensor: float = 0.70
    pipe: float = 0.70


@dataclass(frozen=True)
class Activity:
    """Means over several readings, 0..1, None where not known.

    `throttled`: share of time in which heat, the hardware, the power supply or a lowered limit held
    the clocks down. `engine`: share of time in which any kernel ran. `sm`: SMs that held a warp.
    The others: shares of the peak of the memory, the Tensor Cores and the other arithmetic units.
    """

    throttled: float | None = None
    engine: float | None = None
    sm: float | None = None
    dram: float | None = None
    tensor: float | None = None
    fp32: float | None = None
    fp64: float | None = None
    fp16: float | None = None
    integer: float | None = None


class Rule(NamedTuple):
    """One rule as far as it is known, and the inputs that it looks at."""

    kind: Kind
    holds: Fact
    inputs: tuple[str, ...]


class Verdict(NamedTuple):
    """The kind, and the inputs for want of which nothing can be told."""

    kind: Kind
    missing: tuple[str, ...] = ()


PUBLISHED = Reach()


def judge(activity: Activity, reach: Reach = PUBLISHED) -> Verdict:
    """Return the first rule that holds; "cannot tell" where that is not known."""
    for rule in _rules(activity, reach):
        if rule.holds:
            return Verdict(rule.kind)
        if rule.holds is None:
            missing = [name for name in rule.inputs if getattr(activity, name) is None]
            return Verdict("cannot tell", tuple(missing))
    return Verdict("mixed")


def _rules(activity: Activity, reach: Reach) -> list[Rule]:
    dram, tensor = activity.dram, activity.tensor
    idle = [below(value, IDLE) for value in (activity.engine, activity.sm, dram)]
    enough = MEMORY_NEAR * reach.dram
    pipes = [
        Rule(name, at_least(getattr(activity, name), NEAR * reach.pipe), (name,)) for name in PIPES
    ]
    units = (dram, tensor, *(getattr(activity, name) for name in PIPES))
    return [
        Rule("idle", all_of(*idle), ("engine", "sm", "dram")),
        Rule("throttled", at_least(activity.throttled, THROTTLED), ("throttled",)),
        Rule(
            "stalled",
            all_of(below(activity.engine, STALLED), below(dram, enough)),
            ("engine", "dram"),
        ),
        Rule(
            "memory",
            # Next to the Tensor Cores, memory is what bounds when it is the busier of the two.
            any_of(
                at_least(dram, reach.dram),
                all_of(at_least(dram, enough), not_less(dram, tensor)),
            ),
            ("dram", "tensor"),
        ),
        Rule("tensor", at_least(tensor, NEAR * reach.tensor), ("tensor",)),
        *pipes,
        Rule(
            "latency", all_of(*(below(value, LOW) for value in units)), ("dram", "tensor", *PIPES)
        ),
    ]


def at_least(value: float | None, limit: float) -> Fact:
    """Value >= limit, not known for a missing value."""
    return None if value is None else value >= limit


def below(value: float | None, limit: float) -> Fact:
    """Value < limit, not known for a missing value."""
    return None if value is None else value < limit


def not_less(one: float | None, other: float | None) -> Fact:
    """One >= other, not known if either is missing."""
    return None if one is None or other is None else one >= other


def all_of(*facts: Fact) -> Fact:
    """False if any is false, else not known if any is not known."""
    if False in facts:
        return False
    return None if None in facts else True


def any_of(*facts: Fact) -> Fact:
    """True if any is true, else not known if any is not known."""
    if True in facts:
        return True
    return None if None in facts else False

"""Sizes where nobody knows the speed beforehand: small first, larger while calls are short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ..errors import NoMemoryError
from .context import Context

SHORTEST_CALL_SECONDS = 0.002
TRIES = 3


class Case(Protocol):
    """One size. `work` in any unit that grows with time, `needed_bytes` of memory in all."""

    @property
    def work(self) -> float:
        """What a call has to do."""
        ...

    @property
    def needed_bytes(self) -> float:
        """Memory for operands, results and their check."""
        ...


class Runnable(Protocol):
    """Operands with the call that works on them."""

    def run(self) -> Any:
        """Make the call."""
        ...


CaseT = TypeVar("CaseT", bound=Case)
RunnableT = TypeVar("RunnableT", bound=Runnable)


def call_limit(bench: Context) -> float:
    """Seconds that a call should take at most: a probe makes dozens, and a stop waits for one."""
    return max(bench.device.call_limit_seconds / 4 * bench.time_scale, SHORTEST_CALL_SECONDS)


def seconds_of(bench: Context, run_call: Callable[[], Any]) -> float:
    """Seconds of a warm call, the best of a few.

    On a CPU others may hold up one thread of several, which says nothing of the size: a few calls
    on one thread alone count as well.
    """
    timer = bench.timer()
    timer.batch(run_call, 1)
    bench.checkpoint()
    with bench.device.one_thread():
        alone = timer.batch(run_call, TRIES)
    bench.checkpoint()
    return max(min(*alone, *timer.batch(run_call, TRIES)), 1e-9)


def largest(
    bench: Context,
    cases: Sequence[CaseT],
    build: Callable[[CaseT], RunnableT],
) -> RunnableT:
    """Build the largest of some cases, in ascending order, whose call stays under the limit.

    Each is tried only if it should by the best rate so far: a call cannot be interrupted, and some
    library paths are a hundred times slower than others. The smallest is taken for granted.
    Raises `NoMemoryError`.
    """
    budget, limit = bench.budget_bytes(), call_limit(bench)
    chosen: RunnableT | None = None
    rate = 0.0
    for case in cases:
        if case.needed_bytes > budget or (chosen is not None and case.work > rate * limit):
            break
        chosen = None  # its memory is wanted for the next
        bench.checkpoint()
        chosen = build(case)
        rate = max(rate, case.work / seconds_of(bench, chosen.run))
    if chosen is None:
        raise NoMemoryError(f"{budget / 2**20:.0f} MiB of memory are too little")
    return chosen

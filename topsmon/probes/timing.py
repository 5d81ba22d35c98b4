"""How a call is timed, apart from what is called: clocks and calls come from outside."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

MIN_CALLS = 3
MAX_BATCH = 64


class Spread(NamedTuple):
    """Median and quartiles of call times in seconds, over `calls` of them."""

    median: float
    lower: float
    upper: float
    calls: int


def spread(seconds: Sequence[float]) -> Spread:
    """Median and quartiles, the quartiles by linear interpolation (numpy's default)."""
    if len(seconds) == 1:
        return Spread(seconds[0], seconds[0], seconds[0], 1)
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return Spread(median, lower, upper, len(seconds))


class Usage(NamedTuple):
    """CPU time received, and time spent ready to run but waiting for a core.

    Both are shares of wall time x threads; None where there is no meaning or no reading.
    """

    received: float | None = None
    waited: float | None = None


class Timer(Protocol):
    """Times calls: a batch is enqueued at once and waited for once."""

    def batch(self, run_call: Callable[[], None], count: int) -> list[float]:
        """Make `count` calls; returns seconds per call, of at least one of them."""
        ...

    def reset(self) -> None:
        """Forget what was counted so far."""
        ...

    def usage(self, threads: int) -> Usage:
        """CPU time since `reset`, with `threads` running."""
        ...


class CallTimer:
    """For a CPU: a monotonic clock around each call, and the process's CPU time beside it.

    `wait_clock` gives the seconds that this process's threads have waited for a core so far; it may
    be slow and is read once a window.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
        wait_clock: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._wait_clock = wait_clock
        self.reset()

    def reset(self) -> None:
        """Forget what was counted so far."""
        self._wall = 0.0
        self._cpu = 0.0
        self._waited = self._wait_clock()
        self._began = self._clock()

    def batch(self, run_call: Callable[[], None], count: int) -> list[float]:
        """Make `count` calls; returns seconds per call."""
        seconds = []
        for _ in range(count):
            cpu_before = self._cpu_clock()
            before = self._clock()
            run_call()
            elapsed = self._clock() - before
            self._cpu += self._cpu_clock() - cpu_before
            self._wall += elapsed
            seconds.append(elapsed)
        return seconds

    def usage(self, threads: int) -> Usage:
        """CPU time received within the calls, waiting over the whole window."""
        if self._wall <= 0:
            return Usage()
        window = self._clock() - self._began
        now, before = self._wait_clock(), self._waited
        known = now is not None and before is not None and window > 0
        waited = (now or 0.0) - (before or 0.0)
        return Usage(
            self._cpu / (self._wall * threads), waited / (window * threads) if known else None
        )


class EventTimer:
    """For a GPU: device events between the calls of a batch, one wait at its end.

    While the queue holds work the launch costs nothing; only before the first call of a batch is it
    empty, so that interval is left out where enough others remain. `new_event` makes an object like
    torch.cuda.Event(enable_timing=True).
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event

    def reset(self) -> None:
        """Nothing is counted."""

    def batch(self, run_call: Callable[[], None], count: int) -> list[float]:
        """Make `count` calls; returns seconds per call."""
        events = [self._new_event() for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            run_call()
            event.record()
        events[-1].synchronize()
        milliseconds = [events[at].elapsed_time(events[at + 1]) for at in range(count)]
        kept = milliseconds[1:] if count >= 3 else milliseconds
        return [value / 1e3 for value in kept]

    def usage(self, threads: int) -> Usage:  # noqa: ARG002 - a GPU has no threads
        """The CPU does not count."""
        return Usage()


class Plan(NamedTuple):
    """Seconds of warming up and of measuring, and of work enqueued between two waits."""

    warm_up: float
    window: float
    queue: float


class Burst(NamedTuple):
    """Seconds of each timed call, and of the whole window."""

    seconds: list[float]
    window: float
    usage: Usage


def measure(
    run_call: Callable[[], None],
    timer: Timer,
    plan: Plan,
    *,
    threads: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    checkpoint: Callable[[], None] = lambda: None,
    begin: Callable[[], None] = lambda: None,
    between: Callable[[], None] = lambda: None,
) -> Burst:
    """Warm up by work done, then time calls for `plan.window` seconds and at least three calls.

    The first call may load code, tune and allocate for seconds: it is timed by nobody and does not
    count as warming up. `checkpoint` may raise to abandon; `begin` runs before the timed calls and
    `between` after each batch of them, outside their time.
    """
    timer.batch(run_call, 1)
    warm: list[float] = []
    batch = 1
    while sum(warm) < plan.warm_up or not warm:
        checkpoint()
        warm += timer.batch(run_call, batch)
        batch = batch_size(min(warm), plan.queue)
    begin()
    timer.reset()
    seconds: list[float] = []
    began = clock()
    while len(seconds) < MIN_CALLS or clock() - began < plan.window:
        checkpoint()
        seconds += timer.batch(run_call, batch)
        between()
    return Burst(seconds, clock() - began, timer.usage(threads))


def batch_size(call_seconds: float, queue_seconds: float) -> int:
    """Calls that may be enqueued at once: a stop waits for all of them."""
    return max(1, min(MAX_BATCH, int(queue_seconds / max(call_seconds, 1e-9))))

"""What every probe of the laboratory gets: the device, timed windows, budgets, and the conditions.

A probe measures through `Context.measure` alone, so that clock, power, throttle reasons and CPU
share are known for all of its windows; the runner adds them to the probe's result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .. import caches, machine, nvml, timing, verdict
from ..devices import ProbeDevice, Watch

MEMORY_SHARE = 0.2
MEMORY_CAP_BYTES = 4 << 30
"""More than a burst in the background may take: somebody asked for this measurement."""
CHUNK_ELEMENTS = 1 << 20
"""Numbers made, copied or compared between two chances to stop: some ms on one CPU core."""
ODD_MULTIPLIER = -7046029254386353131
"""2**64 divided by the golden ratio, as a signed number: it spreads a count over all bits."""
MOST_DISTURBED = 0.1
"""Share of the measured time that others may disturb before the whole result is not trusted."""
SHORTEST_WINDOW_SECONDS = 0.005
REST_PIECE_SECONDS = 0.02


class Disturbance(NamedTuple):
    """How the CPU served one measurement of `seconds`."""

    use: verdict.CpuUse
    seconds: float


class Context:
    """One probe's view of the device.

    `time_scale` (0..1] shortens all windows alike. `memory_limit` caps the memory in bytes.
    `checkpoint` is called between any two pieces of work and may raise: a probe lets it pass.
    """

    def __init__(
        self,
        device: ProbeDevice,
        checkpoint: Callable[[], None] = lambda: None,
        *,
        time_scale: float = 1.0,
        memory_limit: int | None = None,
        memory_scale: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self.device = device
        self.place = device.place
        self.is_gpu = device.facts.kind == "gpu"
        self.checkpoint = checkpoint
        self.clock = clock
        self.time_scale = time_scale
        self._memory_limit = memory_limit
        self._memory_scale = memory_scale
        self._watch: Watch | None = None
        self._disturbances: list[Disturbance] = []

    def budget_bytes(self) -> float:
        """Device memory for all tensors of the probe together."""
        return self._budget(self.device.free_bytes())

    def host_budget_bytes(self) -> float:
        """The same for memory of the host."""
        return self._budget(machine.free_memory_bytes())

    def _budget(self, free: int | None) -> float:
        budget = float(MEMORY_CAP_BYTES) if free is None else free * MEMORY_SHARE
        if self._memory_limit is not None:
            budget = min(budget, self._memory_limit)
        return min(budget, MEMORY_CAP_BYTES) * self._memory_scale

    def last_level_bytes(self) -> int | None:
        """Size of the last cache before DRAM, over all cores in use; None if unknown."""
        if self.is_gpu:
            return self.device.cache_bytes or None
        return caches.last_level_bytes(caches.read(machine.allowed_cpus()))

    def timer(self) -> timing.Timer:
        """The device's own timer: CUDA events, or a monotonic clock around each call."""
        return self.device.timer()

    def wall_timer(self) -> timing.Timer:
        """A monotonic clock around each call, also on a GPU: the call has to synchronise."""
        if not self.is_gpu:
            return self.device.timer()
        return timing.CallTimer(self.clock, wait_clock=machine.seconds_waited)

    def watch(self) -> Watch:
        """A fresh watch of clock and power, for a probe that compares two of its windows."""
        return self.device.watch()

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def measure(
        self,
        run_call: Callable[[], Any],
        seconds: float = 0.1,
        *,
        threads: int | None = None,
        timer: timing.Timer | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> timing.Spread:
        """Warm up, then time calls for `seconds` times `time_scale` and at least three calls.

        `run_call` is a batch of work of at most some 20 ms; between two of them the probe can be
        stopped. `threads`: how many can be at work on a CPU, all of the device's by default.
        `between` is called between timed calls, when the device has done what was asked of it.
        """
        return timing.spread(self._seconds(run_call, seconds, threads, timer, between))

    def compare(
        self,
        calls: Mapping[str, Callable[[], Any]],
        seconds: float = 0.1,
        *,
        rounds: int = 3,
        threads: int | None = None,
        timer: timing.Timer | None = None,
    ) -> dict[str, timing.Spread]:
        """Measure several calls in turn, `seconds` each over all rounds, so that drift hits all."""
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, run_call in calls.items():
                times[name] += self._seconds(run_call, seconds / rounds, threads, timer)
        return {name: timing.spread(found) for name, found in times.items()}

    def _seconds(
        self,
        run_call: Callable[[], Any],
        seconds: float,
        threads: int | None,
        timer: timing.Timer | None,
        look: Callable[[], None] = lambda: None,
    ) -> list[float]:
        def between() -> None:
            self._between()
            look()

        window = max(seconds * self.time_scale, SHORTEST_WINDOW_SECONDS)
        warm_up = min(self.device.quick_plan.warm_up, window / 4)
        count = threads or self.device.threads or 1
        burst = timing.measure(
            run_call,
            timer or self.timer(),
            timing.Plan(warm_up, window, self.device.plan.queue),
            threads=count,
            clock=self.clock,
            checkpoint=self.checkpoint,
            begin=self._begin,
            between=between,
        )
        if self._cpu_matters(burst.usage):
            use = verdict.cpu_use(*burst.usage, count, self.device.quota)
            self._disturbances.append(Disturbance(use, burst.window))
        return burst.seconds

    def _cpu_matters(self, usage: timing.Usage) -> bool:
        """Whether the CPU time of a window says something: waiting for a GPU needs none."""
        if not self.is_gpu:
            return usage.received is not None
        return (usage.waited or 0.0) >= verdict.MOST_WAITING

    def rest(self, seconds: float, between: Callable[[], None] = lambda: None) -> None:
        """Do nothing for `seconds` times `time_scale`; `between` is called now and again."""
        until = self.clock() + seconds * self.time_scale
        while self.clock() < until:
            self.checkpoint()
            between()
            self._sleep(REST_PIECE_SECONDS)

    def random(self, *shape: int, dtype: Any = torch.float32) -> Any:
        """Random normal numbers on the device, drawn a million at a time and then repeated.

        A CPU draws them on one thread; a bandwidth does not depend on which numbers they are.
        """
        count = math.prod(shape)
        flat = torch.empty(count, dtype=dtype, device=self.place)
        block = torch.randn(min(count, CHUNK_ELEMENTS), device=self.place).to(dtype)
        for piece in self.pieces(flat):
            piece.copy_(block[: piece.numel()])
        return flat.view(*shape)

    def pieces(self, flat: Any, count: int = CHUNK_ELEMENTS) -> Sequence[Any]:
        """A vector in pieces with a checkpoint before each."""
        return _Checked(torch.split(flat, count), self.checkpoint)

    def _begin(self) -> None:
        if self._watch is None:
            self._watch = self.device.watch()
            self._watch.begin()

    def _between(self) -> None:
        if self._watch is not None:
            self._watch.between()

    def conditions(self) -> dict[str, Any]:
        """End watching; returns the fields of a `probe` event that every probe shares."""
        watch, self._watch = self._watch, None
        held = watch.finish() if watch is not None else nvml.Held()
        share, threads, complaint = sum_up(self._disturbances)
        return {
            "held_clock_mhz": held.clock_mhz,
            "held_clock_source": held.source,
            "clock_event_mask": held.event_mask,
            "power_watts": held.power_watts,
            "cpu_share": share,
            "threads": threads,
            "invalid_reason": complaint,
            "note": held.note,
            "torch_version": str(torch.__version__),
        }


class _Checked(Sequence[Any]):
    def __init__(self, items: Sequence[Any], checkpoint: Callable[[], None]) -> None:
        self._items = items
        self._checkpoint = checkpoint

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, at: Any) -> Any:
        self._checkpoint()
        return self._items[at]


def sum_up(disturbances: Sequence[Disturbance]) -> tuple[float | None, int | None, str]:
    """CPU share weighted by time, the most threads that ran, and the complaint if there is one."""
    total = sum(one.seconds for one in disturbances)
    if not total:
        return None, None, ""
    share = sum((one.use.share or 0.0) * one.seconds for one in disturbances) / total
    threads = max(one.use.threads or 1 for one in disturbances)
    blamed = [one for one in disturbances if one.use.complaint]
    if sum(one.seconds for one in blamed) <= MOST_DISTURBED * total:
        return share, threads, ""
    return share, threads, min(blamed, key=lambda one: one.use.share or 0.0).use.complaint


def fill_distinct(bench: Context, flat: Any) -> None:
    """Fill bytes so that no eight in a row repeat: a lost or doubled packet changes the data."""
    start = 0
    for piece in bench.pieces(flat.view(torch.int64)):
        torch.arange(start, start + piece.numel(), out=piece)
        piece.mul_(ODD_MULTIPLIER)
        start += piece.numel()


def same(bench: Context, one: Any, other: Any) -> bool:
    """True if two vectors are equal in every bit of every element."""
    count = CHUNK_ELEMENTS * 4 // one.element_size()
    pairs = zip(bench.pieces(one, count), torch.split(other, count))
    return all(torch.equal(first, second) for first, second in pairs)


def relative_error(got: Any, expected: Any) -> float:
    """Frobenius norm of (got - expected) over that of expected, in FP64; NaN if not finite."""
    wide = expected.to(torch.float64)
    wrong = float((got.to(torch.float64) - wide).norm())
    norm = float(wide.norm())
    if not (math.isfinite(wrong) and math.isfinite(norm)):
        return math.nan
    if norm == 0:
        return 0.0 if wrong == 0 else math.inf
    return wrong / norm


def judged(error: float, limit: float) -> dict[str, Any]:
    """The fields correct, relative_error and error_limit of a `probe` event; NaN is not correct."""
    return {"correct": error <= limit, "relative_error": error, "error_limit": limit}


def per_second(name: str, amount: float, spread: timing.Spread) -> dict[str, float]:
    """Values `<name>_per_second` from the median, with `_low_` and `_high_` from the quartiles.

    `name` ends with what is counted ("copy_bytes"); `amount` is that count per call. `<stem>_calls`
    is how many calls they are from.
    """
    stem, _, unit = name.rpartition("_")
    return {
        f"{name}_per_second": amount / spread.median,
        f"{stem}_low_{unit}_per_second": amount / spread.upper,
        f"{stem}_high_{unit}_per_second": amount / spread.lower,
        f"{stem}_calls": float(spread.calls),
    }

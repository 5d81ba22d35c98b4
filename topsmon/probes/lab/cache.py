"""The cache ladder: read bandwidth over the working set, from the first cache to DRAM.

Every row of a matrix is the same stretch of memory (a view with stride 0), so that one call sums it
again and again: the call's own cost, which exceeds a pass over a small cache, counts once.
On a CPU each thread has its own stretch; the working set is that of all threads together.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .. import caches, machine
from ..errors import NoMemoryError, UnsupportedError
from .context import Context, judged, relative_error

NAME = "cache"
SECONDS = 2.0
OPT_IN = False

SMALLEST_BYTES = 16 << 10
"""Of one thread on a CPU."""
SMALLEST_GPU_BYTES = 4 << 20
"""Beyond the first-level caches of the multiprocessors, up to 256 KiB each but read by all."""
CALL_BYTES = 64 << 20
"""Read by one call, for each thread."""
GPU_CALL_BYTES = 1 << 30
LAST_MULTIPLE = 4
WINDOW_SECONDS = 0.05
ERROR_LIMIT = 1e-5
SHORTEST_PASS_SECONDS = 20e-6
"""Of a single pass on a GPU: shorter ones would time the launch."""
STEP = 1.15
"""A cache this much faster than the next one shows as a step."""

Points = Sequence[tuple[float, float]]


class Level(NamedTuple):
    """A cache level in values' names, and its size in bytes over all threads."""

    name: str
    size_bytes: int


def working_sets(smallest: int, last_level: int, budget: float) -> list[int]:
    """Doubling sizes in bytes from the smallest to 4 times the last-level cache or the budget."""
    sizes = []
    size = smallest
    while size < 2 * LAST_MULTIPLE * last_level and size <= budget:
        sizes.append(size)
        size *= 2
    return sizes


def cpu_levels(found: frozenset[caches.Cache], threads: int) -> list[Level]:
    """Levels of a CPU: caches of one core times threads, but no more than all of a kind hold."""
    levels = []
    for level, size in sorted(caches.per_core_bytes(found).items()):
        whole = sum(cache.size_bytes for cache in found if cache.level == level)
        levels.append(Level(f"l{level}", min(size * threads, whole)))
    if levels:
        levels[-1] = levels[-1]._replace(name="last_level")
    return levels


def by_level(points: Points, levels: Sequence[Level]) -> dict[str, float | None]:
    """Bytes/s of each level and of DRAM: the median of the points that surely belong to it.

    Those fill at most half of their cache and at least twice the one before; DRAM begins at four
    times the last one. None where there is no such point.
    """
    values: dict[str, float | None] = {}
    below = 0
    for level in levels:
        inside = [rate for size, rate in points if 2 * below <= size <= level.size_bytes / 2]
        values[f"{level.name}_bytes_per_second"] = statistics.median(inside) if inside else None
        below = level.size_bytes
    outside = [rate for size, rate in points if size >= LAST_MULTIPLE * below]
    values["dram_bytes_per_second"] = statistics.median(outside) if outside else None
    return values


def remarks(values: Mapping[str, float | None]) -> list[str]:
    """Say where the ladder has no step: something else than that cache was measured there."""
    known = [(name[: -len("_bytes_per_second")], rate) for name, rate in values.items() if rate]
    return [
        f"no step from {name} to {following}: what sums, not {name}, may be the limit"
        for (name, rate), (following, slower) in zip(known, known[1:])
        if rate < STEP * slower
    ]


def run(bench: Context) -> dict[str, Any]:
    """Bandwidth of each level, in bytes/s, and the whole curve."""
    levels = _levels(bench)
    threads = bench.device.threads or 1
    smallest = SMALLEST_GPU_BYTES if bench.is_gpu else SMALLEST_BYTES * threads
    sizes = working_sets(smallest, levels[-1].size_bytes, bench.budget_bytes())
    if not sizes:
        raise NoMemoryError(f"{smallest / 2**20:.1f} MiB of memory cannot be had")
    stretch = bench.random(sizes[-1] // 4).abs_()
    points: list[tuple[float, float]] = []
    error = 0.0
    for size in sizes:
        rate, wrong = _read(bench, stretch[: size // 4], threads, levels[-1].size_bytes)
        error = max(error, wrong)
        if rate is not None:
            points.append((float(size), rate))
    values = by_level(points, levels)
    return {
        **judged(error, ERROR_LIMIT),
        "values": values,
        "unavailable": {
            name: "no working set of this measurement belongs to it alone"
            for name, value in values.items()
            if value is None
        },
        "series": {"bytes_per_second_over_bytes": points},
        "labels": {level.name: f"{level.size_bytes / 2**20:g} MiB" for level in levels},
        "method": (
            "FP32 sums over the same memory again and again"
            + ("" if bench.is_gpu else f", a stretch of its own for each of {threads} threads")
            + f"; working sets double; bytes read, {bench.device.timing_words}; adding may limit "
            "the fastest level, whose figure is a lower bound"
        ),
        "note": "; ".join(remarks(values)),
    }


def _levels(bench: Context) -> list[Level]:
    if bench.is_gpu:
        size = bench.last_level_bytes()
        levels = [Level("l2", size)] if size else []
    else:
        levels = cpu_levels(caches.read(machine.allowed_cpus()), bench.device.threads or 1)
    if not levels:
        raise UnsupportedError("the sizes of the caches are unknown here")
    return levels


def _read(
    bench: Context, stretch: Any, threads: int, last_level: int
) -> tuple[float | None, float]:
    """Bytes/s of summing a stretch, None where a call is too short to tell; error of the sums."""
    size = stretch.numel() * 4
    if not bench.is_gpu:
        passes = max(1, CALL_BYTES * threads // size)
    else:
        # Rows are summed side by side: beyond the cache they would share what one of them fetched.
        passes = max(1, GPU_CALL_BYTES // size) if 2 * size <= last_level else 1
    rows = stretch.view(threads, 1, -1).expand(-1, passes, -1)
    sums = torch.empty(threads, passes, device=bench.place)
    spread = bench.measure(lambda: torch.sum(rows, -1, out=sums), WINDOW_SECONDS)
    exact = torch.stack([piece.double().sum() for piece in bench.pieces(stretch)]).sum()
    error = relative_error(sums.double().sum(0), exact.expand(passes))
    if bench.is_gpu and passes == 1 and spread.median < SHORTEST_PASS_SECONDS:
        return None, error
    return size * passes / spread.median, error

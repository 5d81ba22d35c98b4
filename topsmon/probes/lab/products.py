"""GEMMs for probes that need one: operands beyond the cache, in the precision's own mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .. import gemm as gemms
from .. import schedule, verdict
from ..errors import NoMemoryError, UnsupportedError
from ..precisions import Gemm, all_gemms
from ..schedule import Shape
from .context import Context


class Product:
    """One GEMM of a shape (M, N, K), called through `run` with sets of operands in turn."""

    def __init__(self, bench: Context, gemm: Gemm, shape: Shape) -> None:
        budget = bench.budget_bytes()
        needed = gemms.needed_bytes(gemm, shape)
        if needed > budget:
            raise NoMemoryError(f"{budget / 2**20:.0f} MiB of memory are too little for {shape}")
        size = gemms.set_bytes(gemm, shape)
        count = gemms.count_sets(size, bench.device.cache_bytes, budget)
        self.shape = shape
        self.operations = schedule.operations(shape)
        self._gemm = gemm
        self._checkpoint = bench.checkpoint
        self._sets = [
            gemms.make_operands(gemm, shape, bench.place, bench.checkpoint) for _ in range(count)
        ]
        self.calls = 0
        self._last: list[Any] = []

    def run(self) -> Any:
        """Multiply once; returns the result."""
        operands = self._sets[self.calls % len(self._sets)]
        self.calls += 1
        result = self._gemm.run(operands)
        self._last[:] = operands, result
        return result

    def check(self) -> verdict.Check:
        """Hold the latest result, of which there must be one, against FP64 on sampled rows."""
        operands, result = self._last
        return gemms.check(self._gemm, operands, result, self._checkpoint)


@contextlib.contextmanager
def precision(bench: Context, key: str) -> Iterator[Gemm]:
    """A precision with the library switched to it. Raises `UnsupportedError`."""
    gemm = all_gemms()[key]
    refusal = gemm.refusal(bench.device.facts)
    if refusal is not None:
        raise UnsupportedError(refusal)
    with gemm.mode():
        yield gemm


def main_precision(bench: Context) -> str:
    """The precision that people train in on this device: BF16, FP16 before it, FP32 on a CPU."""
    if not bench.is_gpu:
        return "fp32"
    return "bf16" if (bench.device.facts.capability or (0, 0)) >= (8, 0) else "fp16"


def largest_square(bench: Context, gemm: Gemm, sizes: tuple[int, ...], limit_seconds: float) -> int:
    """The largest of some sizes N, in ascending order, whose N x N x N call stays under the limit.

    The smallest one is taken for granted. On a CPU one thread is timed and all are reckoned with:
    short calls on several threads take as long as the one that waits for its core.
    """
    timer = bench.timer()
    threads = bench.device.threads or 1
    affordable = [
        size
        for size in sizes
        if size == sizes[0] or gemms.needed_bytes(gemm, (size,) * 3) <= bench.budget_bytes()
    ]
    rate = 0.0
    with bench.device.one_thread():
        for size in affordable:
            work = schedule.operations((size, size, size))
            if rate and work > rate * bench.device.call_limit_seconds:
                break
            product = Product(bench, gemm, (size, size, size))
            bench.checkpoint()
            timer.batch(product.run, 1)
            rate = max(rate, work / max(min(timer.batch(product.run, 3)), 1e-9))
    within = rate * threads * limit_seconds
    fitting = [size for size in affordable if schedule.operations((size,) * 3) <= within]
    return max(fitting, default=sizes[0])

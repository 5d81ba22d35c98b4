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
        self._turn = 0
        self._last: tuple[Any, Any] | None = None

    def run(self) -> Any:
        """Multiply once; returns the result."""
        operands = self._sets[self._turn % len(self._sets)]
        self._turn += 1
        result = self._gemm.run(operands)
        self._last = operands, result
        return result

    def check(self) -> verdict.Check:
        """Hold the latest result against FP64, on sampled rows."""
        operands, result = self._last or (None, self.run())
        if operands is None:
            return self.check()
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

    Each size is tried only if its call should do by the rate so far: a call cannot be interrupted.
    The smallest one is taken for granted.
    """
    timer = bench.timer()
    chosen, rate = sizes[0], 0.0
    for size in sizes:
        shape = (size, size, size)
        if rate and schedule.operations(shape) / rate > limit_seconds:
            break
        if size != sizes[0] and gemms.needed_bytes(gemm, shape) > bench.budget_bytes():
            break
        product = Product(bench, gemm, shape)
        bench.checkpoint()
        timer.batch(product.run, 1)
        rate = product.operations / max(min(timer.batch(product.run, 3)), 1e-9)
        chosen = size
    return chosen

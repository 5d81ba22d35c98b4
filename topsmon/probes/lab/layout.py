"""What the order of numbers in memory is worth: a convolution's channels, a GEMM's right side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from .. import gemm as gemms
from .. import timing, verdict
from ..precisions import Gemm, Operands, all_gemms
from .context import Context, judged
from .convolution import Convolution, shapes
from .products import main_precision, precision
from .sizing import largest

NAME = "layout"
SECONDS = 2.0
OPT_IN = False

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
WINDOW_SECONDS = 0.15


class Square(NamedTuple):
    """N x N x N in a precision."""

    size: int
    gemm: Gemm

    @property
    def work(self) -> float:
        """Operations of a call."""
        return 2.0 * self.size**3

    @property
    def needed_bytes(self) -> float:
        """Operands with the right side twice, two results, and the check."""
        return 2 * gemms.needed_bytes(self.gemm, (self.size, self.size, self.size))


class Sides:
    """One product, its right side a contiguous (K, N) matrix or the view of a contiguous (N, K)."""

    def __init__(self, bench: Context, square: Square) -> None:
        self.size = square.size
        self._gemm = square.gemm
        self._checkpoint = bench.checkpoint
        shape = (self.size, self.size, self.size)
        self.column_major = gemms.make_operands(square.gemm, shape, bench.place, bench.checkpoint)
        a, b, _, scales = self.column_major
        out = square.gemm.out_for(self.size, self.size, bench.place)
        self.row_major = Operands(a, b.contiguous(), out, scales)

    def run(self) -> Any:
        """Multiply by the row-major side: if one is much slower, it is this."""
        return self._gemm.run(self.row_major)

    def run_column_major(self) -> Any:
        """Multiply by the column-major side."""
        return self._gemm.run(self.column_major)

    def checks(self) -> list[verdict.Check]:
        """Both results held against FP64."""
        return [
            gemms.check(self._gemm, operands, self._gemm.run(operands), self._checkpoint)
            for operands in (self.row_major, self.column_major)
        ]


def worst(checks: Iterable[verdict.Check]) -> verdict.Check:
    """A wrong one if there is any, else the one with the largest error."""
    return min(checks, key=lambda check: (check.correct, -check.error))


def _compared(
    times: dict[str, timing.Spread], before: str, after: str, prefix: str = ""
) -> dict[str, float]:
    return {
        f"{prefix}{before}_seconds": times[before].median,
        f"{prefix}{after}_seconds": times[after].median,
        f"{prefix}{after}_speedup_ratio": times[before].median / times[after].median,
    }


class _Found(NamedTuple):
    values: dict[str, float]
    checks: list[verdict.Check]
    shape: str


def _channels(bench: Context, gemm: Gemm) -> _Found:
    first = largest(
        bench, shapes(gemm), lambda shape: Convolution(bench, gemm, shape, torch.contiguous_format)
    )
    last = Convolution(bench, gemm, first.shape, torch.channels_last)
    times = bench.compare({"contiguous": first.run, "channels_last": last.run}, WINDOW_SECONDS)
    checks = [verdict.Check(one.error(), gemm.error_limit) for one in (first, last)]
    return _Found(_compared(times, "contiguous", "channels_last"), checks, first.shape.words())


def _sides(bench: Context, gemm: Gemm, prefix: str = "") -> _Found:
    sides = largest(
        bench, [Square(size, gemm) for size in SIZES], lambda square: Sides(bench, square)
    )
    times = bench.compare(
        {"row_major": sides.run, "column_major": sides.run_column_major}, WINDOW_SECONDS
    )
    values = _compared(times, "row_major", "column_major", prefix)
    return _Found(values, sides.checks(), f"N = {sides.size}")


def run(bench: Context) -> dict[str, Any]:
    """Seconds in either layout, and how many times faster the second is."""
    key = main_precision(bench)
    with precision(bench, key) as gemm:
        channels = _channels(bench, gemm)
        sides = _sides(bench, gemm)
    found = {"convolution": channels, "product": sides}
    unavailable = {}
    try:
        found["int8_product"] = _sides(bench, all_gemms()["int8"], "int8_")
    except RuntimeError as error:
        if verdict.kind_of_failure(error) != "library":
            raise
        unavailable["int8_column_major_speedup_ratio"] = verdict.in_one_line(error)
    check = worst(check for one in found.values() for check in one.checks)
    return {
        **judged(check.error, check.limit),
        "values": {name: value for one in found.values() for name, value in one.values.items()},
        "labels": {
            "precision": key,
            **{f"{name}_shape": one.shape for name, one in found.items()},
        },
        "unavailable": unavailable,
        "method": (
            "conv2d with input and weight both contiguous or both channels_last; N x N x N with "
            "the right side row-major (contiguous K x N) or column-major (the transposed view of "
            "N x K); changing the layout is not timed; taking turns, median of calls "
            f"{bench.device.timing_words}"
        ),
    }

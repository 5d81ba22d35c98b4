"""Many small products one by one against all of them in one batched call."""

from __future__ import annotations

from typing import Any

import torch

from .context import Context, judged, relative_error
from .products import precision

NAME = "batching"
SECONDS = 0.8
OPT_IN = False

COUNT = 256
SIZE = 64
ERROR_LIMIT = 1e-5
"""Of FP32 products whose sums over 64 run in another order."""
WINDOW_SECONDS = 0.25


def run(bench: Context) -> dict[str, Any]:
    """Seconds for all products, one call each and in one call."""
    a, b = (bench.random(COUNT, SIZE, SIZE) for _ in range(2))
    one_by_one, batched = torch.empty_like(a), torch.empty_like(a)
    triples = list(zip(a, b, one_by_one))

    def small_calls() -> None:
        for left, right, out in triples:
            torch.mm(left, right, out=out)

    with precision(bench, "fp32"):
        times = bench.compare(
            {"small": small_calls, "batched": lambda: torch.bmm(a, b, out=batched)}, WINDOW_SECONDS
        )
    small, whole = times["small"].median, times["batched"].median
    work = 2.0 * COUNT * SIZE**3
    error = relative_error(batched, torch.bmm(a.double(), b.double()))
    return {
        **judged(max(error, relative_error(batched, one_by_one)), ERROR_LIMIT),
        "values": {
            "small_calls_seconds": small,
            "batched_seconds": whole,
            "speedup_ratio": small / whole,
            "small_calls_ops_per_second": work / small,
            "batched_ops_per_second": work / whole,
        },
        "labels": {"shape": f"{COUNT} products of {SIZE}x{SIZE} by {SIZE}x{SIZE}, FP32"},
        "method": (
            f"{COUNT} calls of torch.mm against one of torch.bmm, taking turns, median of calls "
            f"{bench.device.timing_words}; the results are compared with each other and with FP64"
        ),
    }

"""Copying while computing: a copy and GEMMs alone, and both at once on two streams."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedError
from . import streams
from .context import Context, fill_distinct, same
from .products import Product, main_precision, precision

NAME = "overlap"
SECONDS = 1.0
OPT_IN = False

SIZE = 2048
COPY_BYTES = 64 << 20
WINDOW_SECONDS = 0.2
MOST_GEMMS = 200


def efficiency(copy: float, compute: float, both: float) -> float:
    """Share of the shorter one that was hidden behind the other: 1 all of it, 0 none of it."""
    return (copy + compute - both) / min(copy, compute)


def run(bench: Context) -> dict[str, Any]:
    """Seconds of a copy to the device, of computing, and of both at once."""
    if not bench.is_gpu:
        raise UnsupportedError("a CPU has no copy engine that works beside it")
    key = main_precision(bench)
    size = min(COPY_BYTES, int(bench.budget_bytes() / 2)) // 8 * 8
    host = streams.pinned(size)
    fill_distinct(bench, host)
    block = torch.empty(size, dtype=torch.uint8, device=bench.place)
    with precision(bench, key) as gemm:
        product = Product(bench, gemm, (SIZE, SIZE, SIZE))

        def copy() -> None:
            block.copy_(host, non_blocking=True)

        copy_alone = bench.measure(copy, WINDOW_SECONDS)
        once = bench.measure(product.run, WINDOW_SECONDS / 2)
        # As long as the copy: then a full overlap halves the time, and none doubles it.
        count = max(1, min(MOST_GEMMS, round(copy_alone.median / once.median)))

        def compute() -> None:
            for _ in range(count):
                product.run()

        block.zero_()
        both = streams.side_by_side(compute, copy)
        times = bench.compare({"copy": copy, "compute": compute, "both": both}, 3 * WINDOW_SECONDS)
        both()
        bench.synchronize()
        checked = product.check()
    copied = same(bench, block.cpu(), host)
    seconds = {name: spread.median for name, spread in times.items()}
    return {
        "correct": checked.correct and copied,
        "relative_error": checked.error,
        "error_limit": gemm.error_limit,
        "invalid_reason": "" if copied else "the copied data differ",
        "values": {
            **{f"{name}_seconds": value for name, value in seconds.items()},
            "overlap_ratio": efficiency(seconds["copy"], seconds["compute"], seconds["both"]),
        },
        "labels": {"precision": key, "work": f"{size >> 20} MiB and {count} GEMMs of {SIZE}"},
        "method": (
            f"{size >> 20} MiB from pinned memory and {count} {key} GEMMs of {SIZE}x{SIZE}x{SIZE}, "
            f"alone and on two streams, taking turns, median of calls {bench.device.timing_words}"
        ),
    }

"""The rate of square GEMMs at sizes next to each other: what a multiple of 8, 16 or 64 is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .context import Context, judged
from .products import Product, largest_square, main_precision, precision

NAME = "alignment"
SECONDS = 1.5
OPT_IN = False

BASES = (256, 512, 1024, 2048, 4096)
OFFSETS = (-1, 0, 8, 16, 64)
"""From a base divisible by 256: an odd size, the base, sizes divisible by 8, 16 and 64 at most."""
CALL_SECONDS = 0.01
WORTH_SAYING = 0.03
"""Share by which one size must be slower than another; less is noise."""
WINDOW_SECONDS = 0.2


def divisor(size: int) -> int:
    """The largest power of two up to 64 that divides a size."""
    return min(64, size & -size)


def remarks(rates: Mapping[int, float]) -> str:
    """Say where a size that divides better is not the faster one, and what to use."""
    odd = [size for size in rates if size % 2]
    eights = [size for size in rates if divisor(size) == 8]
    words = [
        f"{eight} is a multiple of 8 and {1 - rates[eight] / rates[size]:.0%} slower than the odd "
        f"{size}: a multiple of 8 is not enough here, use multiples of 64"
        for eight in eights
        for size in odd
        if rates[eight] < (1 - WORTH_SAYING) * rates[size]
    ]
    return "; ".join(words)


def run(bench: Context) -> dict[str, Any]:
    """Operations/s at each size, measured in turns."""
    key = main_precision(bench)
    with precision(bench, key) as gemm:
        base = largest_square(bench, gemm, BASES, CALL_SECONDS * bench.time_scale)
        products = {
            size: Product(bench, gemm, (size, size, size))
            for size in (base + offset for offset in OFFSETS)
        }
        times = bench.compare(
            {str(size): product.run for size, product in products.items()}, WINDOW_SECONDS
        )
        checks = [product.check() for product in products.values()]
    rates = {
        size: product.operations / times[str(size)].median for size, product in products.items()
    }
    best = max(rates, key=rates.__getitem__)
    return {
        **judged(max(check.error for check in checks), gemm.error_limit),
        "correct": all(check.correct for check in checks),
        "values": {f"rate_{size}_ops_per_second": rate for size, rate in rates.items()},
        "series": {
            "rate_ops_per_second_over_n": [(float(size), rates[size]) for size in sorted(rates)]
        },
        "labels": {"best_n": str(best), "base_n": str(base), "precision": key},
        "method": (
            f"{gemm.call}, {key}, N x N x N with N = {', '.join(map(str, rates))}, right side "
            f"column-major, taking turns, median of calls {bench.device.timing_words}"
        ),
        "note": remarks(rates),
    }

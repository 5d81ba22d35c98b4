"""What is left of the boost: the rate of a short burst, and the rate after ten seconds of work."""

from __future__ import annotations

import statistics
from typing import Any

from .. import nvml
from .context import Context, judged
from .products import Product, largest_square, main_precision, precision

NAME = "sustained"
SECONDS = 12.0
OPT_IN = True

SIZES = (256, 512, 1024, 2048, 4096, 8192)
CALL_SECONDS = 0.02
REST_SECONDS = 0.5
BURST_SECONDS = 0.25
STRETCHES = 20
STRETCH_SECONDS = 0.5
LAST_STRETCHES = 6
SHORT_SECONDS = 5.0
"""Less work than this heats nothing up and uses up no power budget."""


def run(bench: Context) -> dict[str, Any]:
    """Rates and clocks of the burst and of the last three of ten seconds."""
    key = main_precision(bench)
    with precision(bench, key) as gemm:
        size = largest_square(bench, gemm, SIZES, CALL_SECONDS)
        product = Product(bench, gemm, (size, size, size))
        bench.rest(REST_SECONDS)
        burst_rate, burst_held = _stretch(bench, product, BURST_SECONDS)
        began = bench.clock()
        rates, helds, points = [], [], []
        for _ in range(STRETCHES):
            rate, held = _stretch(bench, product, STRETCH_SECONDS)
            rates.append(rate)
            helds.append(held)
            points.append((bench.clock() - began, rate))
        worked = bench.clock() - began
        checked = product.check()
    sustained = statistics.median(rates[-LAST_STRETCHES:])
    clocks = [held.clock_mhz for held in helds[-LAST_STRETCHES:] if held.clock_mhz is not None]
    sustained_clock = statistics.median(clocks) if clocks else None
    return {
        **judged(checked.error, gemm.error_limit),
        "values": {
            "burst_rate_ops_per_second": burst_rate,
            "sustained_rate_ops_per_second": sustained,
            "sustained_ratio": sustained / burst_rate,
            "burst_clock_mhz": burst_held.clock_mhz,
            "sustained_clock_mhz": sustained_clock,
            "work_seconds": worked,
        },
        "unavailable": {
            name: "the clock cannot be read"
            for name, value in (
                ("burst_clock_mhz", burst_held.clock_mhz),
                ("sustained_clock_mhz", sustained_clock),
            )
            if value is None
        },
        "series": {"rate_ops_per_second_over_seconds": points},
        "labels": {"precision": key, "shape": f"{size}x{size}x{size}"},
        "method": (
            f"{gemm.call}, {key}, {size}x{size}x{size}: {BURST_SECONDS * bench.time_scale:.2g} s "
            f"after a rest against the last {LAST_STRETCHES} of {STRETCHES} stretches of work"
        ),
        "note": (
            f"only {worked:.1f} s of work: too short for heat or a power limit to show"
            if worked < SHORT_SECONDS
            else ""
        ),
    }


def _stretch(bench: Context, product: Product, seconds: float) -> tuple[float, nvml.Held]:
    """Operations/s over a stretch of work, and what clock and power were held meanwhile."""
    watch = bench.watch()
    watch.begin()
    try:
        spread = bench.measure(product.run, seconds, between=watch.between)
    finally:
        held = watch.finish()
    return product.operations / spread.median, held

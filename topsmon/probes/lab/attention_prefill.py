"""Attention over a whole prompt at once: as compute-bound as a large GEMM."""

from __future__ import annotations

from typing import Any

from .attention import Attention, Shape, measured
from .context import Context, judged
from .products import main_precision, precision
from .sizing import largest

NAME = "attention_prefill"
SECONDS = 1.5
OPT_IN = False

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
HEADS, HEAD_SIZE = 32, 128
HEADS_ON_CPU, HEAD_SIZE_ON_CPU = 8, 64
WINDOW_SECONDS = 0.2


def shapes(element_bytes: float, *, gpu: bool) -> list[Shape]:
    """One prompt in growing lengths, with the heads of a model that suits the device."""
    heads, size = (HEADS, HEAD_SIZE) if gpu else (HEADS_ON_CPU, HEAD_SIZE_ON_CPU)
    return [Shape(1, heads, length, length, size, element_bytes) for length in LENGTHS]


def run(bench: Context) -> dict[str, Any]:
    """Operations/s without a mask, and what a causal mask saves."""
    key = main_precision(bench)
    with precision(bench, key) as gemm:
        attention = largest(
            bench,
            shapes(gemm.element_bytes, gpu=bench.is_gpu),
            lambda shape: Attention(bench, gemm, shape),
        )
        both = bench.compare(
            {"full": attention.run, "causal": attention.run_causal}, WINDOW_SECONDS
        )
        attention.run()
        error = attention.error()
        attention.run_causal()
        causal_error = attention.error(causal=True)
    shape, full, causal = attention.shape, both["full"], both["causal"]
    return {
        **judged(max(error, causal_error), gemm.error_limit),
        "correct": error <= gemm.error_limit and causal_error <= gemm.error_limit,
        "values": {
            **measured(shape, full),
            "causal_seconds": causal.median,
            "causal_speedup_ratio": full.median / causal.median,
            "causal_rate_ops_per_second": shape.causal_flops / causal.median,
        },
        "labels": {"precision": key, "shape": shape.words()},
        "method": (
            "scaled_dot_product_attention without a mask; FLOPs = 4 x B x H x S x S x D, bytes = "
            "queries, keys, values and result once; with a causal mask 2 x B x H x S x (S+1) x D; "
            f"taking turns, median of calls {bench.device.timing_words}"
        ),
    }

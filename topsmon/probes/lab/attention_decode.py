"""Attention of one new token over a long key-value cache: bound by memory bandwidth."""

from __future__ import annotations

import math
from typing import Any

from .attention import Attention, Shape, measured
from .context import Context, judged
from .memory import CACHE_MULTIPLE, complaint
from .products import main_precision, precision
from .sizing import largest

NAME = "attention_decode"
SECONDS = 1.5
OPT_IN = False

SIZES = ((1, 128), (1, 512), (1, 2048), (4, 2048), (4, 4096), (16, 4096))
"""Sequences and the positions behind each."""
HEADS, HEAD_SIZE = 32, 128
HEADS_ON_CPU, HEAD_SIZE_ON_CPU = 8, 64
WINDOW_SECONDS = 0.25


def shapes(element_bytes: float, *, gpu: bool) -> list[Shape]:
    """One query a sequence, with the heads of a model that suits the device."""
    heads, size = (HEADS, HEAD_SIZE) if gpu else (HEADS_ON_CPU, HEAD_SIZE_ON_CPU)
    return [Shape(batch, heads, 1, keys, size, element_bytes) for batch, keys in SIZES]


def count_sets(shape: Shape, cache: int | None, budget: float) -> int:
    """Key-value caches to take in turn: the device's own cache shall hold a quarter at most."""
    wanted = math.ceil(CACHE_MULTIPLE * (cache or 0) / shape.cache_bytes)
    return max(1, min(wanted, 1 + int((budget - shape.needed_bytes) / shape.bytes_moved)))


def run(bench: Context) -> dict[str, Any]:
    """Bytes/s of the key-value cache read, and operations/s."""
    key = main_precision(bench)
    cache = bench.last_level_bytes()
    with precision(bench, key) as gemm:
        first = largest(
            bench,
            shapes(gemm.element_bytes, gpu=bench.is_gpu),
            lambda shape: Attention(bench, gemm, shape),
        )
        shape = first.shape
        count = count_sets(shape, cache, bench.budget_bytes())
        sets = [first, *(Attention(bench, gemm, shape) for _ in range(count - 1))]
        turn = 0

        def run_call() -> None:
            nonlocal turn
            sets[turn % count].run()
            turn += 1

        times = bench.measure(run_call, WINDOW_SECONDS)
        error = sets[(turn - 1) % count].error()
    reason = complaint(int(count * shape.cache_bytes), cache)
    return {
        **judged(error, gemm.error_limit),
        "values": {
            **measured(shape, times),
            "tokens_per_second": shape.batch / times.median,
            "cache_bytes": shape.cache_bytes,
        },
        "labels": {"precision": key, "shape": shape.words()},
        "valid": not reason,
        "invalid_reason": reason,
        "method": (
            f"scaled_dot_product_attention, one query a sequence, {count} key-value caches in turn;"
            " FLOPs = 4 x B x H x S x D, bytes = keys, values, query and result once; one layer, "
            f"weights not included; median of calls {bench.device.timing_words}"
        ),
    }

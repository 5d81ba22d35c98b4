"""DRAM bandwidth: copy, triad, read and write over buffers that no cache can hold."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..errors import NoMemoryError
from .context import Context, judged, per_second, relative_error, same

NAME = "memory"
SECONDS = 2.0
OPT_IN = False

CACHE_MULTIPLE = 4
LEAST_BYTES = 256 << 20
LEAST_BYTES_ON_CPU = 64 << 20
BUFFERS = 3
USELESS_BYTES = 1 << 20
FACTOR = 3.0
ERROR_LIMIT = 1e-6
"""FP32 rounds the product and the sum once each: at most 1.2e-7 of a result's size."""
WINDOW_SECONDS = 0.2
SHIFT = 12345
"""By which the triad's second factor is moved, so that it differs from the first."""
CHECKED_STRETCHES = 32
CHECKED_ELEMENTS = 1 << 16


def buffer_bytes(cache: int | None, budget: float, *, gpu: bool) -> int:
    """Bytes of one of three buffers: four times the cache where memory allows, in whole KiB."""
    wanted = max(LEAST_BYTES if gpu else LEAST_BYTES_ON_CPU, CACHE_MULTIPLE * (cache or 0))
    return int(min(wanted, budget / BUFFERS)) // 1024 * 1024


def complaint(size: int, cache: int | None) -> str:
    """Why the figures would be those of the cache; "" if the buffers are large enough."""
    if cache is None or size >= CACHE_MULTIPLE * cache:
        return ""
    return (
        f"buffers of {size >> 20} MiB are under {CACHE_MULTIPLE} times the last-level cache of "
        f"{cache >> 20} MiB, for want of free memory: the cache served a part"
    )


def run(bench: Context) -> dict[str, Any]:
    """Copy, triad, read and write bandwidth in bytes/s."""
    cache = bench.last_level_bytes()
    size = buffer_bytes(cache, bench.budget_bytes(), gpu=bench.is_gpu)
    if size < USELESS_BYTES:
        raise NoMemoryError(f"{size * BUFFERS / 2**20:.1f} MiB of memory are too little")
    a = bench.random(size // 4)
    b = torch.empty_like(a)
    copy = bench.measure(lambda: b.copy_(a), WINDOW_SECONDS)
    copied = same(bench, b, a)
    c = torch.roll(b, SHIFT)
    triad = bench.measure(lambda: torch.add(b, c, alpha=FACTOR, out=a), WINDOW_SECONDS)
    error = _triad_error(bench, a, b, c)
    read = bench.measure(lambda: torch.sum(a), WINDOW_SECONDS)
    write = bench.measure(lambda: b.fill_(FACTOR), WINDOW_SECONDS)
    filled = all(bool((piece == FACTOR).all()) for piece in bench.pieces(b))
    reason = complaint(size, cache)
    wrong = [
        words
        for words, fine in (
            ("copied data differ", copied),
            (f"the triad is wrong by {error:.1e}", error <= ERROR_LIMIT),
            ("filled data differ", filled),
        )
        if not fine
    ]
    return {
        **judged(error, ERROR_LIMIT),
        "correct": not wrong,
        "values": {
            **per_second("copy_bytes", 2 * size, copy),
            **per_second("triad_bytes", 3 * size, triad),
            **per_second("read_bytes", size, read),
            **per_second("write_bytes", size, write),
            "buffer_bytes": float(size),
        },
        "valid": not reason,
        "invalid_reason": "; ".join(filter(None, (reason, *wrong))),
        "method": (
            f"FP32 buffers of {size >> 20} MiB; bytes as STREAM counts them: copy 2N, triad "
            "(a = b + 3c) 3N, read (a sum) and write (a fill) N; lines that a store first reads "
            f"(write-allocate) are not counted; median of calls {bench.device.timing_words}"
        ),
        "note": "" if cache else "the size of the last-level cache is unknown",
    }


def _triad_error(bench: Context, a: Any, b: Any, c: Any) -> float:
    """Relative error of a = b + 3c in stretches taken at random, and in the last one."""
    last = max(0, a.numel() - CHECKED_ELEMENTS)
    starts = [*torch.randint(0, last + 1, (CHECKED_STRETCHES - 1,)).tolist(), last]
    errors = []
    for start in starts:
        bench.checkpoint()
        got, x, y = (buffer[start : start + CHECKED_ELEMENTS] for buffer in (a, b, c))
        errors.append(relative_error(got, x.double() + FACTOR * y.double()))
    return math.nan if any(map(math.isnan, errors)) else max(errors)

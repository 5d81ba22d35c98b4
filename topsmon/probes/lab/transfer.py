"""Copies between host and GPU, from pinned and pageable memory, and the link's state under load."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..errors import NoMemoryError, UnsupportedError
from . import streams
from .context import Context, fill_distinct, per_second, same

NAME = "transfer"
SECONDS = 2.0
OPT_IN = False

BLOCK_BYTES = 256 << 20
LEAST_BYTES = 16 << 20
"""Smaller blocks measure the start of a copy."""
WINDOW_SECONDS = 0.2
LINK_COPIES = 8
"""Enqueued before the link is read: some 40 ms of copies, so that it is at work meanwhile."""


def run(bench: Context) -> dict[str, Any]:
    """Bytes/s in both directions for pinned and pageable memory; link generation and width."""
    if not bench.is_gpu:
        raise UnsupportedError("a CPU has no link to copy over: its memory is the host's")
    size = min(BLOCK_BYTES, int(bench.budget_bytes()), int(bench.host_budget_bytes() / 3))
    size = size // 8 * 8
    if size < LEAST_BYTES:
        raise NoMemoryError(f"a block of {size / 2**20:.0f} MiB is too small to measure a link")
    pinned = streams.pinned(size)
    fill_distinct(bench, pinned)
    data = pinned.clone()
    pageable = pinned.clone()
    block = torch.empty(size, dtype=torch.uint8, device=bench.place)
    values: dict[str, float | None] = {}
    wrong = []
    for kind, host in (("pinned", pinned), ("pageable", pageable)):
        block.zero_()
        into = bench.measure(partial(_copy, block, host), WINDOW_SECONDS)
        host.zero_()
        back = bench.measure(partial(_copy, host, block), WINDOW_SECONDS)
        bench.synchronize()
        if not same(bench, host, data):
            wrong.append(f"data that went through {kind} memory came back changed")
        values.update(per_second(f"h2d_{kind}_bytes", size, into))
        values.update(per_second(f"d2h_{kind}_bytes", size, back))
    link, why_not = _link(bench, partial(_copy, block, pinned))
    return {
        "values": {**values, **link, "block_bytes": float(size)},
        "unavailable": {name: why_not for name, value in link.items() if value is None},
        "correct": not wrong,
        "invalid_reason": "; ".join(wrong),
        "method": (
            f"blocks of {size >> 20} MiB, median of calls {bench.device.timing_words}; "
            "link state read while pinned copies were under way"
        ),
    }


def _copy(target: Any, source: Any) -> None:
    """Enqueue a copy; CUDA itself waits for one from or to pageable memory, which it stages."""
    target.copy_(source, non_blocking=True)


def _link(bench: Context, copy: Callable[[], None]) -> tuple[dict[str, float | None], str]:
    """PCIe generation and width while copies run, and why they are missing."""
    names = ("pcie_generation", "pcie_width", "pcie_generation_max", "pcie_width_max")
    nothing: dict[str, float | None] = dict.fromkeys(names)
    if streams.integrated():
        return nothing, "the GPU shares the CPU's memory: copies cross no PCIe link"
    driver = bench.device.driver
    if driver is None:
        return nothing, "the driver's library cannot be read"
    bench.checkpoint()
    copy()
    bench.synchronize()
    for _ in range(LINK_COPIES):
        copy()
    link = driver.pcie_link()
    bench.synchronize()
    return dict(zip(names, (_number(value) for value in link))), "the driver does not tell"


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)

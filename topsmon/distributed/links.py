"""Copies between host and GPU, each rank alone and all at once: a shared switch shows only then."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .collectives import Group, agree
from .diary import Diary

BLOCK_BYTES = 256 << 20
COPIES = 4


def measure(group: Group, local_rank: int, local_world_size: int, diary: Diary) -> dict[str, float]:
    """Bytes/s of pinned copies to and from this rank's GPU; all ranks of all machines take part."""
    diary.stage("copies from the host")
    host = torch.ones(BLOCK_BYTES, dtype=torch.uint8).pin_memory()
    block = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=group.place)
    pairs = {"h2d": (block, host), "d2h": (host, block)}
    turns = int(agree(group, local_world_size))
    found: dict[str, float] = {}
    for name, (target, source) in pairs.items():
        _rate(target, source)
        for turn in range(turns):
            dist.barrier(group=group.control)
            if turn == local_rank:
                found[f"{name}_alone_bytes_per_second"] = _rate(target, source)
        dist.barrier(group=group.control)
        found[f"{name}_together_bytes_per_second"] = _rate(target, source)
        dist.barrier(group=group.control)
    return found


def _rate(target: Any, source: Any) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(COPIES):
        target.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    return BLOCK_BYTES * COPIES / (float(start.elapsed_time(end)) / 1e3)

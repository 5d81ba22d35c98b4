"""Data caches of the CPUs in use, from sysfs.

The kernel describes the files in Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "": 1}


class Cache(NamedTuple):
    """One data or unified cache. `cpus` names the CPUs that share it, as the kernel prints them."""

    level: int
    size_bytes: int
    cpus: str


def read(cpus: Iterable[int], root: Path = Path("/")) -> frozenset[Cache]:
    """The distinct data caches of these CPUs; empty where the kernel tells nothing."""
    found = set()
    for cpu in cpus:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
        for index in folder.glob("index*"):
            try:
                kind, level, size, shared = (
                    (index / name).read_text(encoding="ascii").strip()
                    for name in ("type", "level", "size", "shared_cpu_list")
                )
            except OSError:
                continue
            match = re.fullmatch(r"(\d+)([KMG]?)", size)
            if kind != "Instruction" and level.isdigit() and match:
                found.add(Cache(int(level), int(match[1]) * UNITS[match[2]], shared))
    return frozenset(found)


def per_core_bytes(caches: Iterable[Cache]) -> dict[int, int]:
    """Size of the cache that one core sees, by level; the smallest where cores differ."""
    sizes: dict[int, int] = {}
    for cache in caches:
        sizes[cache.level] = min(cache.size_bytes, sizes.get(cache.level, cache.size_bytes))
    return sizes


def last_level_bytes(caches: Iterable[Cache]) -> int | None:
    """Capacity of the last level, all its slices together; None if nothing is known."""
    known = list(caches)
    last = max((cache.level for cache in known), default=None)
    if last is None:
        return None
    return sum(cache.size_bytes for cache in known if cache.level == last)

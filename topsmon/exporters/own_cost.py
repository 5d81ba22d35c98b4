"""What topsmon itself costs: CPU time and memory of the exporter and of its children."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import psutil

from topsmon.exporters.families import Families


def add_cost(families: Families, children: Sequence[int]) -> None:
    """Add the cost. `children` are the PIDs of those alive; those that ended are counted too."""
    spent = os.times()
    ended = spent.children_user + spent.children_system
    alive, memory = _of_children(children)
    text = "CPU time that topsmon has taken."
    families.counter("exporter_cpu_seconds", text, {"part": "exporter"}, spent.user + spent.system)
    families.counter("exporter_cpu_seconds", text, {"part": "children"}, ended + alive)
    text = "Memory that topsmon holds (resident)."
    own = None
    with contextlib.suppress(psutil.Error):
        own = psutil.Process().memory_info().rss
    families.gauge("exporter_resident_memory_bytes", text, {"part": "exporter"}, own)
    families.gauge("exporter_resident_memory_bytes", text, {"part": "children"}, memory)


def _of_children(children: Sequence[int]) -> tuple[float, int]:
    seconds, memory = 0.0, 0
    for pid in children:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            times = process.cpu_times()
            seconds += times.user + times.system
            memory += process.memory_info().rss
    return seconds, memory

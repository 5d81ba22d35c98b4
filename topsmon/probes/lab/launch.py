"""What starting work costs: a kernel launched by itself, many in one CUDA graph, an eager op."""

from __future__ import annotations

from typing import Any

import torch

from . import streams
from .context import Context

NAME = "launch"
SECONDS = 0.6
OPT_IN = False

LAUNCHES = 200
"""In one timed stretch, between two waits for the device."""
WINDOW_SECONDS = 0.12


class Counter:
    """A number on the device that every launch adds one to: proof that all of them ran."""

    def __init__(self, place: Any) -> None:
        self._count = torch.zeros(1, dtype=torch.int64, device=place)
        self._one = torch.ones(1, dtype=torch.int64, device=place)
        self.expected = 0

    def add(self, times: int) -> None:
        """Launch the smallest kernel there is so many times."""
        self.expected += times
        add, one = self._count.add_, self._one
        for _ in range(times):
            add(one)

    def start_over(self) -> None:
        """Forget what was counted."""
        self._count.zero_()
        self.expected = 0

    def all_ran(self) -> bool:
        """True if the device counted as many as were launched."""
        return int(self._count.item()) == self.expected


def run(bench: Context) -> dict[str, Any]:
    """Seconds per launch, by itself and in a graph; on a CPU seconds per eager operation."""
    counter = Counter(bench.place)

    def launch(times: int) -> None:
        counter.add(times)
        bench.synchronize()

    timer = bench.wall_timer()
    eager = bench.measure(lambda: launch(LAUNCHES), WINDOW_SECONDS, threads=1, timer=timer)
    name = "launch" if bench.is_gpu else "eager_op"
    values: dict[str, float] = {
        f"{name}_seconds": eager.median / LAUNCHES,
        f"{name}_low_seconds": eager.lower / LAUNCHES,
        f"{name}_high_seconds": eager.upper / LAUNCHES,
        f"{name}_calls": float(eager.calls),
    }
    if not bench.is_gpu:
        return {
            "values": values,
            "correct": counter.all_ran(),
            "method": f"in-place addition of one INT64 number, {LAUNCHES} in a loop of Python",
        }
    trip = bench.measure(lambda: launch(1), WINDOW_SECONDS, timer=timer)
    fine = counter.all_ran()
    replay = streams.capture(lambda: counter.add(LAUNCHES))
    bench.synchronize()
    counter.start_over()

    def launch_graph() -> None:
        counter.expected += LAUNCHES
        replay()
        bench.synchronize()

    graph = bench.measure(launch_graph, WINDOW_SECONDS, timer=timer)
    return {
        "values": {
            **values,
            "round_trip_seconds": trip.median,
            "graph_launch_seconds": graph.median / LAUNCHES,
            "graph_gain_ratio": eager.median / graph.median,
        },
        "correct": fine and counter.all_ran(),
        "method": (
            f"additions of one INT64 number by the wall clock: {LAUNCHES} launched from Python and "
            "waited for once, one launched and waited for (round trip), as many in one CUDA graph"
        ),
    }

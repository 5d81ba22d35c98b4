"""The few CUDA means that probes need beyond tensors: pinned memory, a second stream, graphs.

Apart from this file the probes know tensors and times only, so that their logic runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

GRAPH_WARM_UP_CALLS = 3
"""Libraries set up their work spaces in the first calls; a capture must not see that."""


def pinned(count: int) -> Any:
    """Page-locked bytes of the host: without them a copy is staged and waits for the CPU."""
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)


def capture(work: Callable[[], Any]) -> Callable[[], None]:
    """Record what `work` launches in a CUDA graph; returns the call that launches all of it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(GRAPH_WARM_UP_CALLS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


def side_by_side(here: Callable[[], Any], there: Callable[[], Any]) -> Callable[[], None]:
    """A call that launches `here` on the current stream and `there` on a second one, and joins."""
    side = torch.cuda.Stream()

    def run_call() -> None:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            there()
        here()
        main.wait_stream(side)

    return run_call


def integrated() -> bool:
    """True where the GPU shares the memory of the CPU: nothing crosses a PCIe link then."""
    return bool(getattr(torch.cuda.get_device_properties(0), "is_integrated", False))

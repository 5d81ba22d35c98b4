"""One step of a graph network on a random graph: rows of senders added up by receiver."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..errors import NoMemoryError
from .context import Context, judged, relative_error
from .memory import CACHE_MULTIPLE, LEAST_BYTES, LEAST_BYTES_ON_CPU, USELESS_BYTES, complaint
from .sizing import largest

NAME = "message_passing"
SECONDS = 1.5
OPT_IN = False

FEATURES = 64
"""Numbers a node has: a row of 256 bytes in FP32."""
ROW_BYTES = FEATURES * 4
INDEX_BYTES = 8
EDGES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
CHUNKS = 8
"""Sets of edges taken in turn, so that a call does not find the rows of the last one cached."""
CHECKED_NODES = 64
ERROR_LIMIT = 1e-5
"""Of FP32 sums in any order."""
WINDOW_SECONDS = 0.3


class Step(NamedTuple):
    """`edges` handled by one call, each from one of `nodes` to another, at random."""

    edges: int
    nodes: int

    @property
    def flops(self) -> float:
        """One addition per edge and feature."""
        return float(self.edges * FEATURES)

    @property
    def bytes_moved(self) -> float:
        """Per edge: five rows and two indices.

        The sender's row is read, the message written and read again, the receiver's row read and
        written; rows are random, so that none is counted as found in a cache.
        """
        return float(self.edges * (5 * ROW_BYTES + 2 * INDEX_BYTES))

    @property
    def work(self) -> float:
        """What a call has to do: its edges."""
        return float(self.edges)

    @property
    def needed_bytes(self) -> float:
        """Nodes before and after, messages, and the indices of all chunks."""
        rows = 2 * self.nodes + self.edges
        return float(rows * ROW_BYTES + self.edges * CHUNKS * 2 * INDEX_BYTES)


def count_nodes(cache: int | None, budget: float, *, gpu: bool) -> int:
    """Nodes whose rows before and after the step together are four times the cache, if they fit."""
    floor = LEAST_BYTES if gpu else LEAST_BYTES_ON_CPU
    size = min(max(floor, CACHE_MULTIPLE * (cache or 0)), budget / 2)
    return int(size // (2 * ROW_BYTES))


class Graph:
    """Node features, sums by receiver, and edges in chunks."""

    def __init__(self, bench: Context, features: Any, sums: Any, step: Step) -> None:
        def ends() -> Any:
            bench.checkpoint()
            return torch.randint(0, features.shape[0], (step.edges,), device=features.device)

        self.step = step
        self.features, self.sums = features, sums
        self.edges = [(ends(), ends()) for _ in range(CHUNKS)]
        self.messages = torch.empty(step.edges, FEATURES, device=features.device)
        self._turn = 0

    def run(self) -> Any:
        """Handle the next chunk."""
        senders, receivers = self.edges[self._turn % CHUNKS]
        self._turn += 1
        torch.index_select(self.features, 0, senders, out=self.messages)
        return self.sums.index_add_(0, receivers, self.messages)

    def error(self, bench: Context) -> float:
        """Relative error of some receivers' sums after one chunk alone.

        The reference looks for the edges of each node and adds up their rows in FP64.
        """
        for piece in bench.pieces(self.sums.view(-1)):
            piece.zero_()
        senders, receivers = self.edges[self._turn % CHUNKS]
        self.run()
        nodes = receivers[torch.randperm(len(receivers))[:CHECKED_NODES].to(receivers.device)]
        expected = []
        for node in nodes:
            bench.checkpoint()
            rows = self.features[senders[receivers == node]]
            expected.append(rows.to(torch.float64).sum(0))
        return relative_error(self.sums[nodes], torch.stack(expected))


def run(bench: Context) -> dict[str, Any]:
    """Bytes/s moved by gathering and adding up, and additions/s."""
    cache = bench.last_level_bytes()
    nodes = count_nodes(cache, bench.budget_bytes(), gpu=bench.is_gpu)
    if 2 * nodes * ROW_BYTES < USELESS_BYTES:
        raise NoMemoryError(f"{nodes * 2 * ROW_BYTES / 2**20:.1f} MiB of memory are too little")
    features = bench.random(nodes, FEATURES)
    sums = torch.zeros(nodes, FEATURES, device=bench.place)
    graph = largest(
        bench,
        [Step(edges, nodes) for edges in EDGES],
        lambda step: Graph(bench, features, sums, step),
    )
    times = bench.measure(graph.run, WINDOW_SECONDS)
    step = graph.step
    reason = complaint(2 * nodes * ROW_BYTES, cache)
    return {
        **judged(graph.error(bench), ERROR_LIMIT),
        "values": {
            "bytes_per_second": step.bytes_moved / times.median,
            "rate_ops_per_second": step.flops / times.median,
            "intensity_flops_per_byte": step.flops / step.bytes_moved,
            "edges_per_second": step.edges / times.median,
            "seconds": times.median,
            "flops": step.flops,
            "bytes": step.bytes_moved,
        },
        "labels": {
            "precision": "fp32",
            "shape": f"{nodes} nodes of {FEATURES} features, {step.edges} random edges a call",
        },
        "valid": not reason,
        "invalid_reason": reason,
        "method": (
            "index_select of the senders' rows, index_add_ to the receivers', FP32; FLOPs = edges "
            "x features, bytes per edge = five rows and two 8-byte indices (row read, message "
            "written and read, sum read and written), caches not considered; median of calls "
            f"{bench.device.timing_words}"
        ),
    }

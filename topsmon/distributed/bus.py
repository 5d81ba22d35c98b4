"""Algorithm and bus bandwidth by the definitions of nccl-tests (its doc/PERFORMANCE.md).

algbw = S / t; busbw = algbw x a factor that depends on the operation and the number of ranks, so
that it can be held against the speed of the links whatever the number of ranks. S in bytes is the
buffer of an all-reduce, a broadcast and a send, the whole output of an all-gather and the whole
input of a reduce-scatter.
"""

from __future__ import annotations

ALL_REDUCE = "all-reduce"
ALL_GATHER = "all-gather"
REDUCE_SCATTER = "reduce-scatter"
BROADCAST = "broadcast"
PEER_TO_PEER = "peer-to-peer"
OPERATIONS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, PEER_TO_PEER)
"""In the order of measuring. Peer-to-peer: each rank sends to the next and receives from the one
before it at the same time, as nccl-tests' sendrecv does."""


def bus_factor(operation: str, ranks: int) -> float:
    """The factor from algbw to busbw. ValueError: no such operation, or fewer than one rank."""
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: at least one is needed")
    if operation == ALL_REDUCE:
        return 2.0 * (ranks - 1) / ranks
    if operation in (ALL_GATHER, REDUCE_SCATTER):
        return (ranks - 1) / ranks
    if operation in (BROADCAST, PEER_TO_PEER):
        return 1.0
    raise ValueError(f"no operation is called {operation!r}; there are: {', '.join(OPERATIONS)}")


def algorithm_bandwidth(size_bytes: float, seconds: float) -> float:
    """Bytes per second of one operation of `size_bytes`."""
    return size_bytes / seconds


def bus_bandwidth(operation: str, ranks: int, size_bytes: float, seconds: float) -> float:
    """Bytes per second on each rank's links."""
    return algorithm_bandwidth(size_bytes, seconds) * bus_factor(operation, ranks)


def seconds_on_bus(operation: str, ranks: int, size_bytes: float, busbw: float) -> float:
    """The time of one operation at a bus bandwidth in bytes per second."""
    return size_bytes * bus_factor(operation, ranks) / busbw

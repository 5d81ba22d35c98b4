"""Collective operations over sizes: how long each takes on this rank, and whether it is right."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .bus import ALL_GATHER, ALL_REDUCE, BROADCAST, OPERATIONS, PEER_TO_PEER, REDUCE_SCATTER
from .diary import Diary
from .faults import Fault

KIB, MIB = 1 << 10, 1 << 20
CPU_SIZES = (32 * KIB, MIB, 16 * MIB, 64 * MIB)
GPU_SIZES = (32 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
ELEMENT_BYTES = 4
PERIOD = 251
"""The pattern of whole numbers repeats after so many: a prime, so that no shift of a power of two
goes unseen. Sums over 4096 ranks stay exact in FP32."""
PIECE_ELEMENTS = 1 << 22
WINDOW_SECONDS = 0.25
LEAST_CALLS, MOST_CALLS = 3, 50
WARM_UP_CALLS = 2
MEMORY_SHARE = 0.4
"""Of what is free, at most this for the buffers of one operation."""
BUFFERS = 2


class Group(NamedTuple):
    """The ranks and how they talk: `data` is measured, `control` agrees on what to do."""

    rank: int
    size: int
    data: Any
    control: Any
    place: Any

    @property
    def is_gpu(self) -> bool:
        """True where the buffers lie on GPUs."""
        return bool(self.place.type == "cuda")


class Buffers(NamedTuple):
    """One operation of one size: `fill` makes its input, `call` runs it, `right` checks it."""

    fill: Callable[[], None]
    call: Callable[[], None]
    right: Callable[[], bool]


def sizes_up_to(largest: int | None, *, gpu: bool) -> tuple[int, ...]:
    """The payloads to measure in bytes: the usual ones, or those below `largest` and `largest`."""
    usual = GPU_SIZES if gpu else CPU_SIZES
    if largest is None:
        return usual
    return (*(size for size in usual if size < largest), largest)


def measure(group: Group, sizes: tuple[int, ...], diary: Diary, fault: Fault) -> dict[str, Any]:
    """All operations over all sizes: fields `collectives` and `unsupported` of the report.

    Raises RuntimeError where a rank is lost or the time is over.
    """
    found: list[dict[str, Any]] = []
    unsupported: dict[str, str] = {}
    diary.report["collectives"], diary.report["unsupported"] = found, unsupported
    room = -agree(group, -_room(group))
    for operation in OPERATIONS:
        for size in sizes:
            if size * BUFFERS > room * MEMORY_SHARE:
                unsupported[f"{operation} {size}"] = "too little free memory"
                continue
            diary.stage(f"{operation} {in_words(size)}")
            try:
                found.append(_measure_one(operation, group, size, diary, fault))
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                if "support" not in str(error).lower():
                    raise
                unsupported[operation] = str(error).splitlines()[0][:200]
                break
    return {"collectives": found, "unsupported": unsupported}


def in_words(size: int) -> str:
    """65536 -> "64 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def _room(group: Group) -> float:
    if group.is_gpu:
        return float(torch.cuda.mem_get_info(group.place)[0])
    from ..probes.machine import free_memory_bytes

    free = free_memory_bytes()
    return float("inf") if free is None else free / group.size


def agree(group: Group, value: float) -> float:
    """The largest of all ranks' values."""
    told = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group.control)
    return float(told[0])


def _measure_one(
    operation: str, group: Group, size: int, diary: Diary, fault: Fault
) -> dict[str, Any]:
    count = max(1, size // (ELEMENT_BYTES * group.size)) * group.size
    buffers = _BUILDERS[operation](group, count)
    timed = _gpu_seconds if group.is_gpu else _cpu_seconds

    def once() -> float:
        buffers.fill()
        fault.strike(operation)
        diary.steps += 1
        return timed(buffers.call)

    dist.barrier(group=group.control)
    warm = [once() for _ in range(WARM_UP_CALLS)]
    estimate = max(agree(group, warm[-1]), 1e-9)
    calls = int(min(max(WINDOW_SECONDS / estimate, LEAST_CALLS), MOST_CALLS))
    dist.barrier(group=group.control)
    seconds = [once() for _ in range(calls)]
    right = buffers.right()
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return {
        "operation": operation,
        "bytes": count * ELEMENT_BYTES,
        "seconds": median,
        "low_seconds": lower,
        "high_seconds": upper,
        "calls": calls,
        "correct": right,
    }


def _cpu_seconds(call: Callable[[], None]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def _gpu_seconds(call: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


# Buffers ------------------------------------------------------------------------------------------


def _all_reduce(group: Group, count: int) -> Buffers:
    source, buffer = _numbers(group, count, group.rank), _room_for(group, count)
    total = sum(range(group.size))
    return Buffers(
        lambda: _copy(buffer, source),
        lambda: dist.all_reduce(buffer, group=group.data),
        lambda: _is(buffer, 0, group.size, total),
    )


def _all_gather(group: Group, count: int) -> Buffers:
    share = count // group.size
    source, buffer = _numbers(group, share, group.rank), _room_for(group, count)
    return Buffers(
        lambda: _clear(buffer),
        lambda: dist.all_gather_into_tensor(buffer, source, group=group.data),
        lambda: all(_is(part, 0, 1, rank) for rank, part in enumerate(torch.split(buffer, share))),
    )


def _reduce_scatter(group: Group, count: int) -> Buffers:
    share = count // group.size
    source, buffer = _numbers(group, count, group.rank), _room_for(group, share)
    total = sum(range(group.size))
    return Buffers(
        lambda: _clear(buffer),
        lambda: dist.reduce_scatter_tensor(buffer, source, group=group.data),
        lambda: _is(buffer, group.rank * share, group.size, total),
    )


def _broadcast(group: Group, count: int) -> Buffers:
    source = _numbers(group, count, 0)
    buffer = source if group.rank == 0 else _room_for(group, count)
    return Buffers(
        lambda: None if group.rank == 0 else _clear(buffer),
        lambda: dist.broadcast(buffer, src=0, group=group.data),
        lambda: _is(buffer, 0, 1, 0),
    )


def _peer_to_peer(group: Group, count: int) -> Buffers:
    source, buffer = _numbers(group, count, group.rank), _room_for(group, count)
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size

    def call() -> None:
        both = [
            dist.P2POp(dist.isend, source, after, group.data),
            dist.P2POp(dist.irecv, buffer, before, group.data),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return Buffers(lambda: _clear(buffer), call, lambda: _is(buffer, 0, 1, before))


_BUILDERS: dict[str, Callable[[Group, int], Buffers]] = {
    ALL_REDUCE: _all_reduce,
    ALL_GATHER: _all_gather,
    REDUCE_SCATTER: _reduce_scatter,
    BROADCAST: _broadcast,
    PEER_TO_PEER: _peer_to_peer,
}


# Values -------------------------------------------------------------------------------------------


def _room_for(group: Group, count: int) -> Any:
    return torch.zeros(count, dtype=torch.float32, device=group.place)


def _numbers(group: Group, count: int, plus: int) -> Any:
    """0, 1, ... 250, 0, 1, ... each plus a number."""
    buffer = _room_for(group, count)
    for start, piece in _pieces(buffer):
        piece.copy_(_pattern(start, piece)).add_(plus)
    return buffer


def _is(buffer: Any, first: int, times: int, plus: int) -> bool:
    """True if the buffer holds the pattern from place `first` on, times a number plus another."""
    return all(
        torch.equal(piece, _pattern(first + start, piece).mul_(times).add_(plus))
        for start, piece in _pieces(buffer)
    )


def _pieces(buffer: Any) -> Iterator[tuple[int, Any]]:
    for start in range(0, buffer.numel(), PIECE_ELEMENTS):
        yield start, buffer[start : start + PIECE_ELEMENTS]


def _pattern(start: int, like: Any) -> Any:
    places = torch.arange(start, start + like.numel(), device=like.device)
    return places.remainder_(PERIOD).to(torch.float32)


def _copy(target: Any, source: Any) -> None:
    target.copy_(source)


def _clear(target: Any) -> None:
    target.fill_(-1.0)

"""Documents of ranks as their program writes them, for judges and texts."""

from __future__ import annotations

from typing import Any

from topsmon import events
from topsmon.checks import Moment
from topsmon.checks.collective import Surroundings, judge
from topsmon.checks.model import select_ranks
from topsmon.distributed.bus import OPERATIONS, bus_bandwidth
from topsmon.launcher.document import Measurement, RankDevice, RankRate, RankReport, Ranks, RankTime

MOMENT = Moment(time=1_700_000_100.0, monotonic=100.0)
GIB = 1 << 30
H200 = {
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "sm_count": 132,
    "memory_total_bytes": 150_000_000_000,
    "memory_free_bytes": 149_000_000_000,
}
A100_PCIE = {
    "name": "NVIDIA A100-PCIE-40GB",
    "compute_capability": "8.0",
    "sm_count": 108,
    "memory_total_bytes": 42_000_000_000,
    "memory_free_bytes": 41_000_000_000,
}


def gpu(index: int, **fields: Any) -> RankDevice:
    return RankDevice(
        **{"kind": "gpu", "index": index, "uuid": f"GPU-{index:04d}", **H200, **fields}
    )


def cpu(**fields: Any) -> RankDevice:
    memory = {"memory_total_bytes": 4 * GIB, "memory_free_bytes": 2 * GIB}
    return RankDevice(**{"kind": "cpu", "name": "AMD EPYC", "threads": 1, **memory, **fields})


def report(
    rank: int, rate: float | None = 800e12, *, device: RankDevice | None = None, **fields: Any
) -> RankReport:
    own = device or gpu(rank)
    gemm = fields.pop("gemm", {})
    precision = "fp32" if own.kind == "cpu" else "bf16"
    told = {
        "rank": rank,
        "host": "node0",
        "pid": 1000 + rank,
        "ended": "finished",
        "stage": "done",
        "steps": 100,
        "device": own,
        "gemm": None
        if rate is None
        else RankRate(precision=precision, rate_ops_per_second=rate, correct=True, **gemm),
    }
    return RankReport(**{**told, **fields})


def measurement(operation: str, ranks: int, size: int, busbw: float) -> Measurement:
    """A measurement whose bus bandwidth is `busbw` bytes/s."""
    seconds = size * bus_bandwidth(operation, ranks, 1.0, 1.0) / busbw
    return Measurement(
        operation=operation,
        bytes=size,
        seconds=seconds,
        algbw_bytes_per_second=size / seconds,
        busbw_bytes_per_second=busbw,
        correct=True,
        calls=9,
    )


def document(*reports: RankReport, busbw: float = 380e9, **fields: Any) -> Ranks:
    """All ranks with every operation at 32 KiB and 1 GiB."""
    count = fields.get("world_size", len(reports))
    told: dict[str, Any] = {
        "world_size": count,
        "backend": "nccl",
        "nccl_version": "2.27.3",
        "nodes": 1,
        "launcher": "torchrun",
        "measurements": tuple(
            measurement(operation, count, size, busbw if size == GIB else busbw / 300)
            for operation in OPERATIONS
            for size in (32 << 10, GIB)
        ),
        "ranks": tuple(
            reports
            if any(one.collectives for one in reports)
            else (
                RankReport(
                    **{
                        **{name: getattr(one, name) for name in one.__struct_fields__},
                        "collectives": (
                            RankTime(operation="all-reduce", bytes=GIB, seconds=0.1, correct=True),
                        ),
                    }
                )
                for one in reports
            )
        ),
    }
    return Ranks(**{**told, **fields})


def verdicts(
    ranks: Ranks, *only: str, surroundings: Surroundings | None = None
) -> list[events.CheckResult]:
    checks = select_ranks(only)
    return list(judge(ranks, MOMENT, checks, source="node0", surroundings=surroundings))


def verdict(ranks: Ranks, check: str, **options: Any) -> events.CheckResult:
    (result,) = verdicts(ranks, check, **options)
    return result

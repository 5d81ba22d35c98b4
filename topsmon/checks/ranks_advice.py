"""Advice for a job over several ranks, from what they have measured."""

from __future__ import annotations

import math
import socket

from topsmon import events
from topsmon.diagnosis import balance
from topsmon.distributed.bus import ALL_REDUCE
from topsmon.launcher.document import Ranks
from topsmon.units import plain

BUCKET_BYTES = 25 << 20
"""DDP reduces gradients in buckets of 25 MiB (torch.nn.parallel.DistributedDataParallel)."""


def advise(
    ranks: Ranks, parameters: int | None = None, step_seconds: float | None = None
) -> balance.Balance:
    """Split of the batch and cost of communication, as far as it was measured.

    Without a count of parameters those of the newest recorded run are taken.
    """
    source, compute_source = "given", "given"
    if parameters is None:
        recorded = _recorded()
        if recorded is not None:
            parameters, seconds, source = recorded
            if step_seconds is None and seconds is not None:
                step_seconds, compute_source = seconds, source
    found = _communication(ranks, parameters)
    if parameters is None or found is None:
        return balance.Balance(split=_split(ranks))
    cost, bus_bytes = found
    known = step_seconds is not None
    return balance.Balance(
        split=_split(ranks),
        parameters=parameters,
        parameters_source=source,
        communication=cost,
        bus_bytes=bus_bytes,
        compute_seconds=step_seconds,
        compute_source=compute_source if known else "",
        communication_share=cost.share(step_seconds) if step_seconds is not None else None,
        micro_batches=cost.micro_batches(step_seconds) if step_seconds is not None else None,
    )


def _split(ranks: Ranks) -> balance.Split | None:
    members = [
        balance.Member(
            label=report.label,
            memory_bytes=float(report.device.memory_free_bytes or 0),
            rate_ops_per_second=report.gemm.rate_ops_per_second,
        )
        for report in ranks.ranks
        if report.device is not None and report.gemm is not None and report.gemm.valid
    ]
    return balance.split(members) if len(members) == ranks.world_size else None


def _communication(
    ranks: Ranks, parameters: int | None
) -> tuple[balance.Communication, int] | None:
    """At the measured size nearest to DDP's buckets, or to all gradients where they are fewer."""
    measured = ranks.of(ALL_REDUCE)
    if parameters is None or not measured:
        return None
    payload = min(parameters * balance.FP32_BYTES, BUCKET_BYTES)
    nearest = min(measured, key=lambda one: abs(math.log(one.bytes / payload)))
    busbw = nearest.busbw_bytes_per_second
    return balance.communication(parameters, ranks.world_size, busbw), nearest.bytes


def _recorded() -> tuple[int, float | None, str] | None:
    """Parameters of the newest recorded run, its step time if it ran alone, and its name.

    The time of a step of several ranks holds communication already.
    """
    from topsmon.training.source import TrainingRuns

    source = TrainingRuns(socket.gethostname())
    runs: dict[str, events.Run] = {}
    steps: dict[str, float | None] = {}
    try:
        for event in source.poll():
            if isinstance(event, events.Run):
                runs[event.run] = event
            elif isinstance(event, events.RunSample):
                steps[event.run] = event.window.step_seconds
    finally:
        source.close()
    known = [run for run in runs.values() if run.parameters]
    if not known:
        return None
    newest = max(known, key=lambda run: run.started)
    alone = newest.world_size in (None, 1)
    assert newest.parameters is not None
    words = f"run of PID {newest.pid}" + (f", {plain(newest.model, 40)}" if newest.model else "")
    return newest.parameters, steps.get(newest.run) if alone else None, words

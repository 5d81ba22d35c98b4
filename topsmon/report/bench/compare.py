"""Two benchmarks beside each other: what became slower, given the noise of both.

A precision is compared by one shape that both runs measured, the fastest of both together, so that
neither run's luck picks it. `noise` has the rule for how large a change must be. A changed driver,
torch or power limit does not forbid a verdict: it is named beside it, for it may be the reason.
What does forbid one is a number that answers another question: disturbed, wrong, of an earlier
session, emulated or simulated in one run only, with other shapes or another number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from topsmon import __version__
from topsmon.diagnosis.words import number
from topsmon.report.bench import noise
from topsmon.report.bench.comparison import (
    SCHEMA_VERSION,
    Change,
    Comparison,
    DeviceComparison,
    Row,
    Verdict,
)
from topsmon.report.bench.model import BenchDevice, BenchDocument
from topsmon.report.bench.pairs import Pair, device_pairs

HALVED = math.log(2)
"""Where even half the rate would be noise, "no difference" would say nothing."""


def compare(old: BenchDocument, new: BenchDocument) -> Comparison:
    """Compare two benchmarks, device by device."""
    partners = list(_partners(old, new))
    pairs = [device_pairs(one, other, old, new) for one, other, _ in partners]
    count = sum(pair.gain is not None for device in pairs for pair in device)
    taken_old = {one.device for one, _, _ in partners}
    taken_new = {other.device for _, other, _ in partners}
    return Comparison(
        schema_version=SCHEMA_VERSION,
        before_unix_seconds=old.time_unix_seconds,
        now_unix_seconds=new.time_unix_seconds,
        changed=tuple(_changes(_run_conditions(old), _run_conditions(new))),
        devices=tuple(
            DeviceComparison(
                device=other.device,
                label=other.label,
                name=other.name,
                matched_by=matched_by,
                changed=tuple(_changes(_device_conditions(one), _device_conditions(other))),
                rows=tuple(_judged(pair, count) for pair in found),
                only_before=tuple(sorted(_names(one) - _names(other) - set(other.not_measured))),
                only_now=tuple(sorted(_names(other) - _names(one))),
            )
            for (one, other, matched_by), found in zip(partners, pairs, strict=True)
        ),
        only_before=tuple(_named(one) for one in old.devices if one.device not in taken_old),
        only_now=tuple(_named(one) for one in new.devices if one.device not in taken_new),
        version=__version__,
    )


# Devices and conditions ---------------------------------------------------------------------------


def _partners(
    old: BenchDocument, new: BenchDocument
) -> Iterator[tuple[BenchDevice, BenchDevice, str]]:
    """Devices of both runs: by UUID, else by name and index where a UUID fits nothing."""
    by_uuid = {one.uuid: one for one in old.devices if one.uuid is not None}
    exact = {one.uuid for one in new.devices if one.uuid in by_uuid}
    free = {(one.kind, one.name, one.index): one for one in old.devices if one.uuid not in exact}
    for other in new.devices:
        if other.uuid is not None and other.uuid in by_uuid:
            yield by_uuid[other.uuid], other, "UUID"
        elif (one := free.pop((other.kind, other.name, other.index), None)) is not None:
            yield one, other, "name" if other.kind == "cpu" else "name and index"


def _named(device: BenchDevice) -> str:
    return f"{device.label} {device.name}" + (f" {device.uuid}" if device.uuid else "")


def _names(device: BenchDevice) -> set[str]:
    """Names of what was measured."""
    values = (*device.bandwidths, *device.latencies)
    return {one.precision for one in device.precisions} | {one.probe for one in values}


def _run_conditions(document: BenchDocument) -> dict[str, str | None]:
    return {
        "host": document.hostname,
        "driver": document.driver_version,
        "CUDA": document.cuda_version,
        "topsmon": document.topsmon_version,
    }


def _device_conditions(device: BenchDevice) -> dict[str, str | None]:
    conditions = device.conditions

    def amount(value: float | None, unit: str) -> str | None:
        return None if value is None else f"{number(value)} {unit}".rstrip()

    def switch(value: bool | None) -> str | None:
        return None if value is None else ("yes" if value else "no")

    return {
        "board's UUID": device.uuid,
        "MIG": switch(device.mig),
        "torch": conditions.torch_version,
        "threads": amount(conditions.threads, ""),
        "power limit": amount(conditions.power_limit_watts, "W"),
        "highest clock": amount(conditions.sm_clock_max_mhz, "MHz"),
        "clocks set": switch(conditions.clocks_set),
        "ECC": switch(conditions.ecc_enabled),
        "link": conditions.pcie or None,
    }


def _changes(before: dict[str, str | None], now: dict[str, str | None]) -> Iterator[Change]:
    """What is known in both and differs."""
    for condition, one in before.items():
        other = now[condition]
        if one is not None and other is not None and one != other:
            yield Change(condition=condition, before=one, now=other)


# Verdicts -----------------------------------------------------------------------------------------


def _judged(pair: Pair, comparisons: int) -> Row:
    """The row with its verdict, if so many values are compared in all."""
    if pair.gain is None:
        return pair.row
    most = noise.limit(pair.parts, comparisons)
    verdict: Verdict = "no difference"
    reason, remarks = "", list(_odd_shapes(pair, most))
    if abs(pair.gain) > most:
        verdict = "improvement" if pair.gain > 0 else "regression"
        remarks = [*_clock_remarks(pair, most), *remarks]
    elif most >= HALVED:
        verdict, reason = "cannot tell", "too noisy: a factor of two would not show"
    return msgspec.structs.replace(
        pair.row,
        verdict=verdict,
        reason=reason,
        noise_ratio=_as_ratio(most, pair.row),
        remarks=tuple(remarks),
    )


def _odd_shapes(pair: Pair, most: float) -> Iterator[str]:
    """The other shapes that changed by more or less than the one shown, beyond the noise."""
    shown = pair.gain or 0.0
    odd = [
        f"{shape} {math.expm1(gain):+.1%}"
        for shape, gain in pair.others
        if abs(gain - shown) > most
    ]
    if odd:
        yield f"other shapes changed otherwise: {', '.join(odd)}"


def _as_ratio(most: float, row: Row) -> float:
    """The limit as a share of what was before, on the side to which the value has moved."""
    fell = row.change_ratio is not None and row.change_ratio < 0
    return -math.expm1(-most) if fell else math.expm1(most)


def _clock_remarks(pair: Pair, most: float) -> Iterator[str]:
    """Whether the clock that was held accounts for a change."""
    if pair.clock_gain is None or pair.gain is None:
        return
    rest = pair.gain - pair.clock_gain
    if abs(rest) <= most:
        yield f"the clock explains it: {pair.clocks}"
    else:
        yield f"the clock does not explain it: {pair.clocks}"

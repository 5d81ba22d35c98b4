"""Judges over all of a device's bursts, and over equal devices: throttling and stragglers."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from topsmon import events
from topsmon.checks.context import Context
from topsmon.checks.rates import chosen_limit
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events, throttle
from topsmon.diagnosis.causes import explain
from topsmon.diagnosis.peers import peers_of
from topsmon.diagnosis.slow import PREFERENCE
from topsmon.diagnosis.trust import trusted
from topsmon.diagnosis.words import label, nvidia_smi
from topsmon.report.check_document import BY_SETTING
from topsmon.units import PRECISIONS, bandwidth, percent, plain, rate

COPY = "copy_bytes_per_second"
ALIKE = 0.01
"""Gaps this close are one and the same."""


def judge_throttling(context: Context) -> events.CheckResult | None:
    """No thermal, hardware or power brake slowdown in the bursts. A power cap alone is no fault.

    One burst may meet a change of the performance state, so that a fault needs two bursts, or two
    samples in a row.
    """
    device = context.board
    bursts = list(_burst_masks(device))
    masks = [sample.clock_event_mask for sample in _samples(context)]
    known = [mask for mask in masks if mask is not None]
    if not bursts and not known:
        return context.unreadable("clock_event_mask")
    everything = _union(itertools.chain(bursts, known)) & ~clock_events.GPU_IDLE
    confirmed = _twice(bursts) | _in_a_row(masks)
    faults = throttle.faults_in(confirmed & clock_events.FAULTS)
    once = throttle.faults_in(everything & clock_events.FAULTS)
    told: dict[str, Any] = {
        "value_text": clock_events.names(everything),
        "evidence": tuple(_evidence(context, len(bursts), everything)),
    }
    if not once:
        return context.implausible() or context.result("PASS", **told)
    kinds = faults or once
    return context.result(
        "FAIL" if faults else "WARN",
        cause=" and ".join(kind.cause for kind in kinds)
        + ("" if faults else ": seen once, it may have been a change of the performance state"),
        remedy=" ".join(kind.remedy for kind in kinds),
        command=nvidia_smi(context.state, device, f"-q -d {kinds[0].sections}", changes=False),
        **told,
    )


def _samples(context: Context) -> tuple[events.DeviceSample, ...]:
    return context.seen.loaded or context.seen.samples or tuple(context.board.recent)


def _burst_masks(device: DeviceState) -> Iterator[int]:
    """One mask a burst: every shape of every precision, every laboratory probe."""
    for known in device.rates.values():
        results = known.by_shape.values() or ([known.latest] if known.latest else [])
        for result in results:
            if result.clock_event_mask is not None:
                yield result.clock_event_mask
    for probe in device.probes.values():
        if probe.clock_event_mask is not None:
            yield probe.clock_event_mask


def _union(masks: Iterator[int] | itertools.chain[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def _twice(masks: list[int]) -> int:
    """Bits that two masks share; all bits where there is only one burst to go by."""
    if len(masks) == 1:
        return masks[0]
    return _union(iter([one & other for one, other in itertools.combinations(masks, 2)]))


def _in_a_row(masks: list[int | None]) -> int:
    """Bits that two consecutive samples share."""
    pairs = [
        older & newer
        for older, newer in itertools.pairwise(masks)
        if older is not None and newer is not None
    ]
    return _union(iter(pairs))


def _evidence(context: Context, bursts: int, mask: int) -> Iterator[str]:
    yield f"{bursts} bursts, {len(_samples(context))} samples"
    if not mask & clock_events.FAULTS:
        return
    device = context.board
    clocks = [sample.sm_clock_mhz for sample in _samples(context) if sample.sm_clock_mhz]
    if clocks:
        most = device.identity.sm_clock_max_mhz
        yield f"{min(clocks):.0f} MHz" + (f" (max {most})" if most else "")
    degrees = [
        sample.temperature_celsius
        for sample in _samples(context)
        if sample.temperature_celsius is not None
    ]
    if degrees:
        limit = device.identity.temperature_slowdown_celsius
        yield f"{max(degrees):.0f} C" + (f" (slowdown at {limit} C)" if limit else "")
    if device.identity.uuid:
        yield plain(device.identity.uuid, 80)


@dataclass(frozen=True)
class Compared:
    """One quantity of a device beside those of its equals."""

    key: str
    name: str
    own: float
    others: tuple[float, ...]

    @property
    def gap(self) -> float:
        """How far below the best of the others, as a share of it; negative when above."""
        return 1.0 - self.own / max(self.others)

    def text(self, value: float) -> str:
        """A value of this quantity with its unit."""
        return rate(value, self.key) if self.key in PRECISIONS else bandwidth(value)


def judge_peers(context: Context) -> events.CheckResult | None:
    """No equal GPU is faster by more than the limits: the best is what this one should do."""
    device, check = context.board, context.check
    equals = [other for other in context.state.gpus() if _equal(device, other)]
    if not equals:
        return context.result("NO-VERDICT", cause="no equal GPU to compare with")
    compared = list(_compared(context, equals))
    if not compared:
        return context.missing("no valid rate of this GPU and an equal one")
    worst = _worst(compared)
    assert check.pass_from is not None
    assert check.fail_from is not None
    told: dict[str, Any] = {
        "value": worst.gap,
        "unit": "ratio",
        "value_text": f"{worst.name} {_signed(worst.gap)}",
        "threshold_text": f"within {percent(check.pass_from, 0)}",
        "pass_limit": check.pass_from,
        "fail_limit": check.fail_from,
    }
    if worst.gap <= check.pass_from:
        return context.result("PASS", **told)
    cause, remedy, command = _why(context, worst)
    return context.result(
        "FAIL" if worst.gap > check.fail_from else "WARN",
        cause=cause,
        remedy=remedy,
        command=command,
        evidence=tuple(_peer_evidence(context, worst, compared)),
        **told,
    )


def _worst(compared: list[Compared]) -> Compared:
    """The largest gap; of those about as large, the precision that people look at first."""
    largest = max(quantity.gap for quantity in compared)
    near = [quantity for quantity in compared if quantity.gap >= largest - ALIKE]
    order = {key: place for place, key in enumerate(PREFERENCE)}
    return min(near, key=lambda quantity: order.get(quantity.key, len(order)))


def _equal(device: DeviceState, other: DeviceState) -> bool:
    """Same name, memory, SMs and slicing."""
    if other is device or other.identity.kind != device.identity.kind:
        return False
    one, two = device.identity, other.identity
    return (one.name, one.sm_count, one.memory_total_bytes, one.mig) == (
        two.name,
        two.sm_count,
        two.memory_total_bytes,
        two.mig,
    )


def _compared(context: Context, equals: list[DeviceState]) -> Iterator[Compared]:
    device = context.board
    for key, precision in PRECISIONS.items():
        own, peers = trusted(device, key), peers_of(context.state, device, key)
        if own is not None and own.rate_ops_per_second and peers is not None:
            yield Compared(key, precision.label, own.rate_ops_per_second, peers.rates)
    own_copy = _copy_rate(device)
    others = [value for other in equals if (value := _copy_rate(other))]
    if own_copy and others:
        yield Compared(COPY, "DRAM copy", own_copy, tuple(others))


def _copy_rate(device: DeviceState) -> float | None:
    probe = device.probes.get("memory")
    return probe.values.get(COPY) if probe is not None and probe.valid else None


def _signed(gap: float) -> str:
    return f"{percent(gap)} below the best" if gap > 0 else "at the best"


def _why(context: Context, worst: Compared) -> tuple[str, str, str]:
    device = context.board
    result = trusted(device, worst.key) if worst.key in PRECISIONS else None
    if result is None:
        return (
            "its memory is slower than that of its equals",
            "Compare memory clocks and ECC modes of the GPUs; check for other work on it.",
            nvidia_smi(context.state, device, "-q -d CLOCK,ECC", changes=False),
        )
    ceiling = device.ceiling(worst.key)
    best = max(worst.others)
    share = best / ceiling.ops_per_second if ceiling is not None else None
    cause = explain(context.state, device, result, share)
    chosen = f"; {BY_SETTING}" if chosen_limit(result, cause) else ""
    return f"straggler: {cause.text}{chosen}", cause.remedy, cause.command


def _peer_evidence(context: Context, worst: Compared, compared: list[Compared]) -> Iterator[str]:
    device, others = context.board, worst.others
    if device.identity.uuid:
        yield plain(device.identity.uuid, 80)
    who = f"the other {len(others)} equal GPUs" if len(others) > 1 else "the other equal GPU"
    yield (
        f"{worst.text(worst.own)}; {who}: {worst.text(min(others))} to {worst.text(max(others))}, "
        f"median {worst.text(statistics.median(others))}"
    )
    own = trusted(device, worst.key) if worst.key in PRECISIONS else None
    if own is not None and own.held_clock_mhz is not None:
        watts = f", {own.power_watts:.0f} W" if own.power_watts is not None else ""
        sample = device.sample
        heat = sample.temperature_celsius if sample is not None else None
        yield f"held {own.held_clock_mhz:.0f} MHz{watts}" + (
            f", {heat:.0f} C" if heat is not None else ""
        )
    mean = statistics.fmean((worst.own, *others))
    yield f"a synchronous job on these GPUs loses {percent(1.0 - worst.own / mean, 0)}"
    low = [
        f"{label(quantity.key) if quantity.key in PRECISIONS else quantity.name} "
        f"{percent(quantity.gap, 0)}"
        for quantity in compared
        if quantity is not worst and quantity.gap > (context.check.pass_from or 0.0)
    ]
    if low:
        yield f"below the best as well: {', '.join(low)}"

"""Rule: achieved far below what the board should do, or below its equals; and why.

One finding a device, about its worst precision; the others are evidence. Severity "fail" needs a
rate that is far off *and* no setting that explains it: a limit that someone chose is no defect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events
from topsmon.diagnosis.causes import Cause, explain
from topsmon.diagnosis.expected import Expected, expectation
from topsmon.diagnosis.peers import SPREAD, Peers, peers_of
from topsmon.diagnosis.trust import trusted
from topsmon.diagnosis.words import finding, label, of_ceiling
from topsmon.state import State
from topsmon.units import percent, plain, rate

PREFERENCE = ("bf16", "fp16", "fp8", "tf32", "fp32", "fp16_acc16", "fp4", "fp64", "int8")
"""Which of several equally bad precisions is named first."""


@dataclass(frozen=True)
class Verdict:
    """One precision of one device: 2 far off, 1 below expectation."""

    level: int
    result: events.RateMeasured
    achieved: float
    expected: Expected | None
    peers: Peers | None

    @property
    def against_peers(self) -> bool:
        """True when the equals are the stronger evidence."""
        return self.peers is not None and self.peers.gap(self.achieved) > SPREAD


def slow(state: State, _now: float) -> Iterator[events.Finding]:
    """The devices with a rate below expectation."""
    for device in state.ordered():
        verdicts = [
            verdict for key in PREFERENCE if (verdict := judge(state, device, key)) is not None
        ]
        for verdict in sorted(verdicts, key=lambda verdict: -verdict.level):
            cause = explain(state, device, verdict.result, _expected_share(device, verdict))
            if cause.by_design and verdict.level < 2:
                continue  # the board's own power cap under load is normal
            yield _finding(device, verdict, cause, verdicts)
            break


def _expected_share(device: DeviceState, verdict: Verdict) -> float | None:
    ceiling = device.ceiling(verdict.result.precision)
    if verdict.expected is None or ceiling is None:
        return None
    return verdict.expected.enough / ceiling.ops_per_second


def judge(state: State, device: DeviceState, precision: str) -> Verdict | None:
    """None where the rate is as expected, or where nobody can say."""
    result = trusted(device, precision)
    if result is None or result.rate_ops_per_second is None:
        return None
    achieved = result.rate_ops_per_second
    expected, peers = expectation(device, precision), peers_of(state, device, precision)
    level = 0
    if expected is not None and achieved < expected.enough:
        level = 2 if achieved < expected.far_off and not expected.library_only else 1
    if peers is not None and peers.gap(achieved) > SPREAD:
        level = 2
    return Verdict(level, result, achieved, expected, peers) if level else None


def _finding(
    device: DeviceState, worst: Verdict, cause: Cause, verdicts: list[Verdict]
) -> events.Finding:
    blameless = cause.configured or worst.level < 2
    by_peers = worst.against_peers and (
        worst.expected is None or worst.achieved >= worst.expected.enough
    )
    result = finding(
        worst.result,
        device,
        code="rate-below-peers" if by_peers else "rate-below-expected",
        severity="warn" if blameless else "fail",
        word="SLOW",
        title=_title(device, worst),
        cause=cause.text,
        evidence=(*_evidence(device, worst), *_others(device, worst, verdicts)),
        remedy=cause.remedy,
        command=cause.command,
        basis=_basis(worst),
    )
    return _explained(result, cause)


def _explained(result: events.Finding, cause: Cause) -> events.Finding:
    """One finding instead of two: the cause's own finding takes over the numbers of the rate."""
    own = cause.finding
    if own is None:
        return result
    return msgspec.structs.replace(
        result,
        code=own.code,
        word=own.word if own.severity != "info" else result.word,
        severity="fail" if "fail" in (own.severity, result.severity) else "warn",
        evidence=(*result.evidence, *own.evidence),
        basis=f"{result.basis}; {own.basis}",
    )


def _title(device: DeviceState, worst: Verdict) -> str:
    precision, ceiling = worst.result.precision, device.ceiling(worst.result.precision)
    if ceiling is not None:
        compared = of_ceiling(worst.achieved, ceiling.ops_per_second, precision)
        return f"{label(precision)} {compared} ({percent(device.ratio(precision))})"
    assert worst.peers is not None
    gap = percent(worst.peers.gap(worst.achieved), 0)
    return f"{label(precision)} {rate(worst.achieved, precision)}, {gap} below its equals"


def _evidence(device: DeviceState, worst: Verdict) -> list[str]:
    precision, ceiling = worst.result.precision, device.ceiling(worst.result.precision)
    lines = []
    if worst.peers is not None:
        lines.append(_peer_line(worst, worst.peers, ceiling))
    if worst.expected is not None:
        lines.append(
            f"expected at least {rate(worst.expected.enough, precision)}: {worst.expected.words}"
        )
    held = device.held_ceiling(precision)
    if held is not None and worst.result.held_clock_mhz is not None:
        lines.append(
            f"held {worst.result.held_clock_mhz:.0f} MHz: {percent(device.held_ratio(precision))} "
            f"of the {rate(held, precision)} there"
        )
    lines.extend(_conditions(device, worst.result))
    if device.identity.uuid:
        lines.append(plain(device.identity.uuid, 80))
    return lines


def _peer_line(worst: Verdict, peers: Peers, ceiling: events.Ceiling | None) -> str:
    precision, count = worst.result.precision, len(peers.rates)
    who = f"the other {count} equal GPUs" if count > 1 else "the other equal GPU"
    if ceiling is not None:
        low, high = min(peers.rates) / ceiling.ops_per_second, peers.best / ceiling.ops_per_second
        spread = percent(low) if count == 1 else f"{percent(low)}-{percent(high)}"
        line = f"{who}: {spread}"
    else:
        line = f"{who}: best {rate(peers.best, precision)}"
    return f"{line}, median {rate(peers.median, precision)}"


def _conditions(device: DeviceState, result: events.RateMeasured) -> list[str]:
    """Power, temperature and clocks event reasons around the burst."""
    parts = []
    sample = device.sample
    watts = result.power_watts if result.power_watts is not None else None
    if watts is not None:
        parts.append(f"{watts:.0f} W")
    if sample is not None and sample.temperature_celsius is not None:
        parts.append(f"{sample.temperature_celsius:.0f} C")
    if result.clock_event_mask:
        parts.append(clock_events.names(result.clock_event_mask))
    return [f"in the burst: {', '.join(parts)}"] if parts else []


def _others(device: DeviceState, worst: Verdict, verdicts: list[Verdict]) -> list[str]:
    names = [
        f"{label(verdict.result.precision)} {percent(device.ratio(verdict.result.precision))}"
        for verdict in verdicts
        if verdict is not worst
    ]
    return [f"low as well: {', '.join(names)}"] if names else []


def _basis(worst: Verdict) -> str:
    parts = []
    if worst.expected is not None and worst.achieved < worst.expected.enough:
        parts.append(worst.expected.basis)
    if worst.against_peers:
        parts.append(f"more than {SPREAD:.0%} below the best equal GPU (huggingface/gpu-fryer)")
    return "; ".join(parts)

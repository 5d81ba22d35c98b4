"""The judge of each rank's own rate against the best of equal devices."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from topsmon import events
from topsmon.checks.ranks_context import RanksContext
from topsmon.diagnosis import clock_events, throttle
from topsmon.diagnosis.words import label
from topsmon.launcher.document import RankRate, RankReport
from topsmon.units import percent, plain, rate

INDICATIVE = "indicative only: a processor that others use"
BUSY = 0.9
"""A rank that received less than this share of its CPU time was disturbed."""
OTHER_WORK = "Free the cores of that rank of other work; bind ranks to cores of their own."

COMPARE_POWER = (
    "Compare power limits (nvidia-smi -q -d POWER), inlet temperatures and cooling of the equal "
    "GPUs."
)
COMPARE = (
    "Compare clocks, power limits, temperatures and other work of the equal GPUs: nvidia-smi "
    "-q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE; topsmon check on that machine tells more."
)


def judge_stragglers(context: RanksContext) -> Iterator[events.CheckResult]:
    """No rank is slower than the best rank with an equal device by more than the limits.

    The best is the reference: of two ranks a median would hide the slow one.
    """
    measured = [one for one in context.document.ranks if one.gemm is not None]
    for report in measured:
        equals = [one for one in measured if one is not report and _kind(one) == _kind(report)]
        if equals:
            yield _compared(context, report, (report, *equals))
        else:
            yield context.result(
                "NO-VERDICT",
                label=report.label,
                device=report.label,
                cause="no rank with an equal device to compare with",
                **_own(_gemm(report)),
            )


def _gemm(report: RankReport) -> RankRate:
    assert report.gemm is not None
    return report.gemm


def _kind(report: RankReport) -> tuple[object, ...]:
    device, gemm = report.device, _gemm(report)
    if device is None:
        return (None, gemm.precision)
    memory = None if device.kind == "cpu" else device.memory_total_bytes
    return (device.kind, device.name, device.sm_count, memory, gemm.precision, device.threads)


def _own(gemm: RankRate) -> dict[str, Any]:
    value = gemm.rate_ops_per_second
    return {"value": value, "unit": "ops/s", "value_text": rate(value, gemm.precision)}


def _compared(
    context: RanksContext, report: RankReport, equals: Sequence[RankReport]
) -> events.CheckResult:
    check, gemm = context.check, _gemm(report)
    assert check.pass_from is not None
    assert check.fail_from is not None
    rates = [_gemm(one).rate_ops_per_second for one in equals]
    best = max(rates)
    gap = 1.0 - gemm.rate_ops_per_second / best
    good = best * (1.0 - check.pass_from)
    told: dict[str, Any] = {
        **_own(gemm),
        "label": report.label,
        "device": report.label,
        "pass_limit": good,
        "fail_limit": None if check.experimental else best * (1.0 - check.fail_from),
        "threshold_text": f">= {rate(good, gemm.precision)}",
    }
    if gap <= check.pass_from:
        return context.result("PASS", **told)
    why, remedy = _why(context, report)
    words = f"straggler: {percent(gap)} below the best of {len(equals)} equal ranks"
    return context.result(
        "FAIL" if gap > check.fail_from else "WARN",
        cause="; ".join(part for part in (words, why) if part),
        remedy=remedy,
        evidence=tuple(_evidence(context, report, equals, rates)),
        **told,
    )


def _why(context: RanksContext, report: RankReport) -> tuple[str, str]:
    """What slows a rank as far as it has told, and what to do."""
    gemm = _gemm(report)
    if context.check.experimental:
        if gemm.cpu_share is not None and gemm.cpu_share < BUSY:
            share = percent(gemm.cpu_share, 0)
            return f"it received {share} of its CPU time; {INDICATIVE}", OTHER_WORK
        return INDICATIVE, OTHER_WORK
    mask = gemm.clock_event_mask or 0
    faults = throttle.faults_in(mask & clock_events.FAULTS)
    if faults:
        remedy = " ".join(fault.remedy for fault in faults)
        return " and ".join(fault.cause for fault in faults), remedy
    if mask & clock_events.SW_POWER_CAP:
        return "at its power limit", COMPARE_POWER
    return "", COMPARE


def _evidence(
    context: RanksContext,
    report: RankReport,
    equals: Sequence[RankReport],
    rates: Sequence[float],
) -> Iterator[str]:
    gemm = _gemm(report)
    yield from context.identity(report)
    others = [_gemm(one).rate_ops_per_second for one in equals if one is not report]
    who = f"the other {len(others)} equal ranks" if len(others) > 1 else "the other equal rank"
    span = rate(min(others), gemm.precision)
    if len(others) > 1:
        span += f" to {rate(max(others), gemm.precision)}, median "
        span += rate(statistics.median(others), gemm.precision)
    yield f"{label(gemm.precision)} {rate(gemm.rate_ops_per_second, gemm.precision)}; {who}: {span}"
    if gemm.held_clock_mhz is not None:
        watts = f", {gemm.power_watts:.0f} W" if gemm.power_watts is not None else ""
        yield f"held {gemm.held_clock_mhz:.0f} MHz{watts}"
    if gemm.clock_event_mask is not None:
        yield f"clocks event reasons: {plain(clock_events.names(gemm.clock_event_mask), 100)}"
    cost = 1.0 - min(rates) / statistics.fmean(rates)
    yield f"a synchronous job runs at the slowest rank's pace: it loses {percent(cost)}"

"""Judges of matrix products: each rate against what the board should reach, gain, correctness."""

from __future__ import annotations

from typing import Any

from topsmon import events
from topsmon.checks.context import Context, by_limits
from topsmon.checks.model import table
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events
from topsmon.diagnosis.causes import Cause, explain
from topsmon.diagnosis.expected import Expected, expectation
from topsmon.diagnosis.trust import trusted
from topsmon.diagnosis.words import label
from topsmon.units import percent, plain, rate

NOTHING_COMPUTED = "Check the driver, the kernel log (Xid) and the torch build."
SYNC_BOOST = 0x10
GAIN_CEILINGS = 1.5
"""Only where the ceilings themselves are this far apart can FP16 accumulation gain anything."""


def judge_rate(context: Context) -> events.CheckResult | None:
    """One precision's best rate."""
    device, precision = context.board, context.check.needs
    result = _measured(context, precision)
    if isinstance(result, events.CheckResult):
        return result
    expected = expectation(device, precision)
    told = _told(device, result, expected)
    distrust = _distrust(context, result, told)
    if distrust is not None:
        return distrust
    if expected is None:
        return context.result("NO-VERDICT", cause=_no_expectation(device, precision), **told)
    if (result.rate_ops_per_second or 0.0) >= expected.enough:
        return context.result("PASS", cause=_above_rated(device, result), **told)
    return _low(context, result, expected, told)


def _measured(context: Context, precision: str) -> events.RateMeasured | events.CheckResult:
    """This session's result, or the answer where there is none."""
    known = context.board.rates[precision]
    result = known.wrong or known.best
    if result is None or known.is_remembered:
        if known.unsupported is not None:
            return context.result("UNSUPPORTED", cause=plain(known.unsupported, 200))
        return context.missing()
    if result.rate_ops_per_second is None and result.correct is not False:
        return context.missing(result.invalid_reason or "no rate was read")
    return result


def _distrust(
    context: Context, result: events.RateMeasured, told: dict[str, Any]
) -> events.CheckResult | None:
    """The answer for a rate that no limit may judge: wrong, zero, disturbed, emulated, too high."""
    if result.correct is False:
        return context.result(
            "FAIL",
            cause="the result is wrong, so this is no rate",
            remedy="See the check 'correctness'.",
            **told,
        )
    if not (result.rate_ops_per_second or 0.0) > 0:
        return context.result(
            "FAIL",
            cause="the measured rate is 0: nothing was computed",
            remedy=NOTHING_COMPUTED,
            **told,
        )
    if not result.valid:
        return context.disturbed(result.invalid_reason, told)
    if result.emulated:
        return context.result("EMULATED", cause=plain(result.note, 200), **told)
    doubt = _impossible(context.board, result)
    if doubt is not None:
        return context.result(
            "INVALID",
            cause=doubt,
            remedy="Compare with the ceiling's source: topsmon specs",
            unknown=True,
            **told,
        )
    return None


def _low(
    context: Context,
    result: events.RateMeasured,
    expected: Expected,
    told: dict[str, Any],
) -> events.CheckResult:
    """Below expectation: why, and whose doing it is."""
    device, achieved = context.board, result.rate_ops_per_second or 0.0
    mask = result.clock_event_mask or 0
    if mask & SYNC_BOOST and not mask & clock_events.FAULTS:
        return context.result(
            "INVALID",
            cause="throttled by another GPU: clocks follow its sync boost group",
            remedy="Look at the other GPUs of the group, then check again.",
            unknown=True,
            **told,
        )
    ceiling = device.ceiling(result.precision)
    share = expected.enough / ceiling.ops_per_second if ceiling is not None else None
    cause = explain(context.state, device, result, share)
    far_off = achieved < expected.far_off and not expected.library_only
    return context.result(
        "FAIL" if far_off and not chosen_limit(result, cause) else "WARN",
        cause=_library_words(expected, cause),
        remedy=cause.remedy,
        command=cause.command,
        **told,
    )


def chosen_limit(result: events.RateMeasured, cause: Cause) -> bool:
    """True where the driver shows that someone lowered the limit: no defect of the board."""
    if not cause.configured:
        return False
    return cause.finding is not None or bool(
        (result.clock_event_mask or 0) & clock_events.CLOCKS_SETTING
    )


def _library_words(expected: Expected, cause: Cause) -> str:
    if expected.library_only and "library path" not in cause.text:
        return f"library path, or {cause.text}"
    return cause.text


def _told(
    device: DeviceState, result: events.RateMeasured, expected: Expected | None
) -> dict[str, Any]:
    """The numbers of a rate, whatever its verdict."""
    precision, achieved = result.precision, result.rate_ops_per_second
    told: dict[str, Any] = {
        "value": achieved,
        "unit": "ops/s",
        "value_text": rate(achieved, precision),
        "evidence": tuple(_evidence(device, result)),
        "basis": "no published figure and no class for this board and precision",
    }
    ceiling = device.ceiling(precision)
    if ceiling is not None and achieved is not None:
        told["ratio"] = achieved / ceiling.ops_per_second
    if expected is not None:
        told |= {
            "threshold_text": f">= {rate(expected.enough, precision)}",
            "pass_limit": expected.enough,
            "fail_limit": None if expected.library_only else expected.far_off,
            "basis": f"{expected.words}; {expected.basis}",
        }
    return told


def _evidence(device: DeviceState, result: events.RateMeasured) -> list[str]:
    precision, lines = result.precision, []
    ceiling, held = device.ceiling(precision), held_ceiling(device, result)
    achieved = result.rate_ops_per_second
    if ceiling is not None and achieved is not None:
        of = percent(achieved / ceiling.ops_per_second)
        lines.append(f"{of} of the rated {rate(ceiling.ops_per_second, precision)}")
    if held and achieved is not None:
        lines.append(
            f"held {result.held_clock_mhz:.0f} MHz: {percent(achieved / held)} of the "
            f"{rate(held, precision)} there"
        )
    parts = []
    if result.shape is not None:
        parts.append("x".join(str(side) for side in result.shape))
    if result.power_watts is not None:
        parts.append(f"{result.power_watts:.0f} W")
    if result.clock_event_mask:
        parts.append(clock_events.names(result.clock_event_mask))
    if result.cpu_share is not None:
        parts.append(f"CPU share {result.cpu_share:.2f}")
    if parts:
        lines.append(", ".join(parts))
    return lines


def held_ceiling(device: DeviceState, result: events.RateMeasured) -> float | None:
    """Ceiling in ops/s at the clock held during this burst: ops per clock x held clock."""
    return _ceiling_at(device.ceiling(result.precision), result.held_clock_mhz)


def _ceiling_at(ceiling: events.Ceiling | None, clock_mhz: float | None) -> float | None:
    if ceiling is None or not clock_mhz:
        return None
    if ceiling.ops_per_clock is not None:
        return ceiling.ops_per_clock * clock_mhz * 1e6
    if ceiling.rated_clock_mhz:
        return ceiling.ops_per_second * clock_mhz / ceiling.rated_clock_mhz
    return None


def _impossible(device: DeviceState, result: events.RateMeasured) -> str | None:
    """Why a rate cannot be: more than the hardware can do at its clock. None where it can."""
    ceiling, achieved = device.ceiling(result.precision), result.rate_ops_per_second
    if ceiling is None or achieved is None or ceiling.origin == "range":
        return None
    shares = table().impossible
    gpu = device.identity.kind == "gpu"
    held = held_ceiling(device, result)
    highest = _ceiling_at(ceiling, device.identity.sm_clock_max_mhz) if gpu else None
    if held is not None:
        limit, share, words = held, shares.held_clock, "what the held clock allows"
    elif highest is not None:
        limit, share, words = highest, shares.max_clock, "what the highest clock allows"
    else:
        limit, share, words = ceiling.ops_per_second, shares.no_clock, "the rated ceiling"
    if achieved <= share * limit:
        return None
    return (
        f"{percent(achieved / limit)} of {words} ({rate(limit, result.precision)}): another path "
        "ran, or ceiling or clock is wrong"
    )


def _above_rated(device: DeviceState, result: events.RateMeasured) -> str:
    ceiling, achieved = device.ceiling(result.precision), result.rate_ops_per_second or 0.0
    if ceiling is None or achieved <= ceiling.ops_per_second:
        return ""
    if result.held_clock_mhz is None or not ceiling.rated_clock_mhz:
        return "above the rated ceiling, which is at the rated boost clock"
    return (
        f"above the rated ceiling: boosts to {result.held_clock_mhz:.0f} MHz, rated "
        f"{ceiling.rated_clock_mhz:.0f}"
    )


def _no_expectation(device: DeviceState, precision: str) -> str:
    if device.identity.kind == "cpu":
        return "no figures are published for this processor"
    ceilings = device.ceilings
    if ceilings is not None and ceilings.unknown is not None:
        return plain(f"no ceiling known: {ceilings.unknown}", 200)
    if device.identity.mig:
        return "a MIG slice: no figures are published for it"
    absent = device.absence(precision)
    if absent:
        return plain(absent, 200)
    return "nobody published what this board should reach"


def judge_accumulation_gain(context: Context) -> events.CheckResult | None:
    """FP16 accumulation is faster where the board is made for it (GeForce)."""
    device, check = context.board, context.check
    measured = _measured(context, check.needs)
    if isinstance(measured, events.CheckResult):
        return measured
    if measured.correct is False:
        return context.result("FAIL", cause="the result is wrong: see the check 'correctness'")
    short, long = trusted(device, check.needs), trusted(device, check.beside)
    achieved = short.rate_ops_per_second if short is not None else None
    beside = long.rate_ops_per_second if long is not None else None
    if short is None or not achieved or not beside:
        reason = measured.invalid_reason or f"no valid {label(check.beside)} rate to compare with"
        return context.result(
            "INVALID",
            cause=plain(reason, 200),
            remedy=f"See the check '{check.beside}', then check again.",
            unknown=True,
        )
    gain = achieved / beside
    told: dict[str, Any] = {
        "value": gain,
        "unit": "ratio",
        "value_text": f"{gain:.2f}x",
        "ratio": device.ratio(check.needs),
        "evidence": (f"{rate(achieved, check.needs)}, {_error_of(short)}",),
    }
    if not _made_to_gain(device, check.needs, check.beside):
        return context.result("NO-VERDICT", cause="this board is not made to gain from it", **told)
    told |= {"threshold_text": f">= {check.pass_from:g}x", "pass_limit": check.pass_from}
    state = by_limits(gain, check)
    cause = "allow_fp16_accumulation is worth it here, at the cost of accuracy"
    if state != "PASS":
        cause = plain(short.note, 200) or "library path: the kernel gains little"
    return context.result(state, cause=cause, **told)


def _made_to_gain(device: DeviceState, short: str, long: str) -> bool:
    one, other = device.ceiling(short), device.ceiling(long)
    if one is None or other is None:
        return False
    return one.ops_per_second >= GAIN_CEILINGS * other.ops_per_second


def judge_correctness(context: Context) -> events.CheckResult | None:
    """Every result agrees with FP64 within the limit of its precision."""
    device = context.board
    wrong = [known.wrong for known in device.rates.values() if known.wrong is not None]
    wrong_probes = [probe for probe in device.probes.values() if probe.correct is False]
    if wrong or wrong_probes:
        cpu = device.identity.kind == "cpu"
        names = [label(result.precision) for result in wrong]
        names += [plain(probe.probe, 20) for probe in wrong_probes]
        uuid = device.identity.uuid
        return context.result(
            "FAIL",
            value_text=f"{len(names)} wrong",
            cause=f"silent corruption: {', '.join(names)}",
            evidence=(*(_error_of(result) for result in wrong), *((uuid,) if uuid else ())),
            remedy=(
                "Stop trusting results of this machine; test its memory; try another torch build."
                if cpu
                else context.check.remedy
            ),
            command="" if cpu else "dcgmi diag -r 3",
        )
    right = [
        result
        for known in device.rates.values()
        if not known.is_remembered and (result := known.best) is not None and result.correct
    ]
    # Agreement of results that took no work to compute proves nothing.
    checked = [result for result in right if result.rate_ops_per_second != 0]
    if not checked and right:
        return context.result(
            "INVALID",
            cause="every measured rate is 0: nothing was computed that could be wrong",
            remedy=NOTHING_COMPUTED,
            unknown=True,
        )
    if not checked:
        return context.missing()
    closest = max(checked, key=_share_of_limit)
    return context.result(
        "PASS",
        value=float(len(checked)),
        unit="count",
        value_text=f"{len(checked)} right",
        evidence=(f"closest to its limit: {_error_of(closest)}",),
    )


def _share_of_limit(result: events.RateMeasured) -> float:
    return (result.relative_error or 0.0) / (result.error_limit or 1.0)


def _error_of(result: events.RateMeasured) -> str:
    error = "not finite" if result.relative_error is None else f"{result.relative_error:.1e}"
    limit = "" if result.error_limit is None else f", limit {result.error_limit:.0e}"
    shape = "" if result.shape is None else " " + "x".join(str(side) for side in result.shape)
    return f"{label(result.precision)}{shape}: relative error {error}{limit}"

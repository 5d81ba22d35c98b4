"""One precision of a benchmark: the best shape beside ceilings, FP32, expectation and power."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topsmon import events
from topsmon.ceilings import held
from topsmon.ceilings.measured import at_top_clock
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events
from topsmon.diagnosis.causes import explain
from topsmon.diagnosis.expected import Expected, expectation
from topsmon.report.bench.model import Burst, Energy, PrecisionResult
from topsmon.report.bench.words import shape_words
from topsmon.report.shown import NOTHING_COMPUTED, ceiling_word
from topsmon.state import State
from topsmon.units import PRECISIONS, plain, rate, watts

REFERENCE = "fp32"
IN_THE_BURST = "power read during the burst: indicative"
"""A driver may average its reading over a second, a burst is shorter."""


def result(
    state: State, device: DeviceState, key: str, energy: Energy | None
) -> PrecisionResult | None:
    """What was measured of one precision; None where there is no number.

    A wrong result of this session is never replaced by a later right one.
    """
    known, precision = device.rates[key], PRECISIONS[key]
    measured = known.wrong or known.best
    if measured is None or (measured.rate_ops_per_second is None and measured.correct is not False):
        return None
    best = burst(measured)
    ceiling, expected = device.ceiling(key), expectation(device, key)
    at_clock = _at_held_clock(ceiling, best)
    per_joule, meter = _efficiency(best, key, energy)
    speedup, why_no_speedup = _speedup(device, key, best)
    found = PrecisionResult(
        precision=key,
        label=precision.label,
        unit=precision.unit,
        best=best,
        bursts=tuple(_by_rate(burst(one) for one in known.by_shape.values())),
        remembered=known.wrong is None and known.is_remembered,
        iqr_ratio=best.iqr_ratio,
        ceiling_key=ceiling.precision if ceiling is not None else None,
        ceiling_ops_per_second=ceiling.ops_per_second if ceiling is not None else None,
        ceiling_low_ops_per_second=ceiling.ops_per_second_low if ceiling is not None else None,
        ceiling_origin=ceiling.origin if ceiling is not None else "",
        ceiling_source=plain(ceiling.source, 200) if ceiling is not None else "",
        rated_clock_mhz=ceiling.rated_clock_mhz if ceiling is not None else None,
        ratio=_over(best, ceiling.ops_per_second if ceiling is not None else None),
        ceiling_at_held_clock_ops_per_second=at_clock,
        ratio_at_held_clock=_over(best, at_clock),
        speedup_over_fp32_ratio=speedup,
        rated_speedup_over_fp32_ratio=_rated_speedup(device, key),
        expected_ops_per_second=expected.enough if expected is not None else None,
        expected_words=expected.words if expected is not None else "",
        expected_basis=expected.basis if expected is not None else "",
        ops_per_joule=per_joule,
        ops_per_joule_source=meter,
        remarks=tuple(_remarks(state, device, measured, best, expected)),
    )
    reasons = {
        "iqr_ratio": "no quartiles",
        "ratio": _no_ratio(device, key, best),
        "ratio_at_held_clock": _no_held_ratio(device, key, best),
        "speedup_over_fp32_ratio": why_no_speedup,
        "ops_per_joule": "no power was read",
    }
    missing = {name: why for name, why in reasons.items() if getattr(found, name) is None}
    return msgspec.structs.replace(found, unavailable=missing)


def burst(measured: events.RateMeasured) -> Burst:
    """An event as it is saved."""
    mask = measured.clock_event_mask
    return Burst(
        rate_ops_per_second=measured.rate_ops_per_second,
        shape=measured.shape,
        rate_low_ops_per_second=measured.rate_low_ops_per_second,
        rate_high_ops_per_second=measured.rate_high_ops_per_second,
        calls=measured.calls,
        burst_seconds=measured.burst_seconds,
        time_unix_seconds=measured.time,
        correct=measured.correct,
        relative_error=measured.relative_error,
        error_limit=measured.error_limit,
        valid=measured.valid,
        invalid_reason=plain(measured.invalid_reason, 300),
        emulated=measured.emulated,
        held_clock_mhz=measured.held_clock_mhz,
        held_clock_source=plain(measured.held_clock_source, 100),
        clock_event_mask=mask,
        clock_events="" if mask is None else clock_events.names(mask),
        power_watts=measured.power_watts,
        cpu_share=measured.cpu_share,
        threads=measured.threads,
        method=plain(measured.method, 300),
        torch_version=plain(measured.torch_version, 60),
        note=plain(measured.note, 500),
    )


def _by_rate(bursts: Iterator[Burst]) -> list[Burst]:
    return sorted(bursts, key=lambda one: -(one.rate_ops_per_second or 0.0))


def _over(best: Burst, ceiling: float | None) -> float | None:
    """Rate / ceiling; None for a wrong result, which is no rate."""
    if best.rate_ops_per_second is None or best.correct is False or not ceiling:
        return None
    return best.rate_ops_per_second / ceiling


def _at_held_clock(ceiling: events.Ceiling | None, best: Burst) -> float | None:
    if ceiling is None or best.held_clock_mhz is None:
        return None
    return held(ceiling, best.held_clock_mhz)


def _no_ratio(device: DeviceState, key: str, best: Burst) -> str:
    if best.correct is False:
        return "the result is wrong"
    return plain(device.absence(key) or "no ceiling is known", 200)


def _no_held_ratio(device: DeviceState, key: str, best: Burst) -> str:
    if device.ceiling(key) is not None and best.held_clock_mhz is None:
        return "the held clock was not read"
    return _no_ratio(device, key, best)


def _speedup(device: DeviceState, key: str, best: Burst) -> tuple[float | None, str]:
    """Measured rate over that of FP32, or why there is none."""
    known = device.rates[REFERENCE]
    reference = known.wrong or known.best
    if reference is None or reference.rate_ops_per_second is None:
        return None, "FP32 was not measured"
    if known.is_remembered is not device.rates[key].is_remembered:
        return None, "one of the two is from an earlier session"
    if not burst(reference).trusted:
        return None, "the FP32 rate is not valid"
    if not best.trusted or best.rate_ops_per_second is None:
        return None, "the rate is not valid"
    return best.rate_ops_per_second / reference.rate_ops_per_second, ""


def _rated_speedup(device: DeviceState, key: str) -> float | None:
    one, reference = device.ceiling(key), device.ceiling(REFERENCE)
    if one is None or reference is None or not reference.ops_per_second:
        return None
    return one.ops_per_second / reference.ops_per_second


def _efficiency(best: Burst, key: str, energy: Energy | None) -> tuple[float | None, str]:
    """Operations per joule and the meter: that of the energy probe, else the burst's power."""
    if energy is not None and energy.valid and energy.precision == key:
        return energy.ops_per_joule, energy.source
    if best.correct is False or best.rate_ops_per_second is None or not best.power_watts:
        return None, ""
    return best.rate_ops_per_second / best.power_watts, IN_THE_BURST


def _remarks(
    state: State,
    device: DeviceState,
    measured: events.RateMeasured,
    best: Burst,
    expected: Expected | None,
) -> Iterator[str]:
    key = measured.precision
    if best.correct is False:
        yield f"WRONG RESULT, so this is no rate: {_error(best)}"
    elif best.nothing_computed:
        yield NOTHING_COMPUTED
    elif not best.valid:
        yield f"not valid: {best.invalid_reason or 'no reason is given'}"
    zero = [
        shape_words(one.shape)
        for one in device.rates[key].by_shape.values()
        if one.rate_ops_per_second == 0 and one.shape != best.shape
    ]
    if zero and not best.nothing_computed:
        yield f"{NOTHING_COMPUTED}: {', '.join(zero)}"
    if best.emulated:
        yield "emulated"
    if device.rates[key].is_remembered and device.rates[key].wrong is None:
        yield "of an earlier session, not measured now"
    limits = (best.clock_event_mask or 0) & ~clock_events.GPU_IDLE
    if limits:
        yield f"{clock_events.names(limits)} in the burst{_at_the_limit(device, best, limits)}"
    if expected is not None:
        yield from _below_expected(state, device, measured, expected)
    yield from _above_rated(device, key, best)
    if best.note:
        yield from best.note.split("; ")


def _below_expected(
    state: State, device: DeviceState, measured: events.RateMeasured, expected: Expected
) -> Iterator[str]:
    """A native, valid rate that is too low, and why as far as the measurements tell."""
    achieved, key = measured.rate_ops_per_second or 0.0, measured.precision
    if not burst(measured).trusted or measured.emulated or achieved >= expected.enough:
        return
    ceiling = device.ceiling(key)
    share = expected.enough / ceiling.ops_per_second if ceiling is not None else None
    cause = plain(explain(state, device, measured, share).text, 300)
    yield f"below the {rate(expected.enough, key)} expected ({expected.words}): {cause}"


def _error(best: Burst) -> str:
    error = "not finite" if best.relative_error is None else f"{best.relative_error:.1e}"
    limit = "" if best.error_limit is None else f", limit {best.error_limit:.0e}"
    return f"relative error {error}{limit}"


def _at_the_limit(device: DeviceState, best: Burst, mask: int) -> str:
    """Power beside its limit, where that is what holds the clock."""
    limit = device.sample.power_limit_watts if device.sample is not None else None
    if not mask & clock_events.SW_POWER_CAP or best.power_watts is None or limit is None:
        return ""
    return f": {watts(best.power_watts)} of {watts(limit)} W"


def _above_rated(device: DeviceState, key: str, best: Burst) -> Iterator[str]:
    ceiling = device.ceiling(key)
    ratio = _over(best, ceiling.ops_per_second if ceiling is not None else None)
    if ceiling is None or ratio is None or ratio <= 1:
        return
    at_clock = _over(best, _at_held_clock(ceiling, best))
    word = ceiling_word(top_clock=at_top_clock(device.ceilings))
    if at_clock is not None and at_clock > 1:
        yield (
            "above even what the held clock allows: another path ran (accumulation, block scales), "
            "or ceiling or clock is wrong"
        )
    elif ceiling.rated_clock_mhz is None or best.held_clock_mhz is None:
        yield f"above the {word} ceiling, whose clock is not known or was not read"
    else:
        yield (
            f"above the {word} ceiling, which is that at {ceiling.rated_clock_mhz:.0f} MHz: held "
            f"{best.held_clock_mhz:.0f} MHz"
        )

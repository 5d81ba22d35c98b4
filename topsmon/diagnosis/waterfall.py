"""Where the operations go: rated ceiling -> ceiling at held clock -> best GEMM -> the running job.

Losses are shares of the rated ceiling, so that they and the achieved ratio add up to 100 %. A boost
above the rated clock is a negative loss: a gain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.diagnosis import clock_events, power
from topsmon.units import PRECISIONS, plain

if TYPE_CHECKING:
    from topsmon.diagnosis.mfu import Mfu

NEGLIGIBLE = 0.02
"""A smaller loss is not worth a cause."""
CLOCK_CODES = ("thermal-slowdown", "power-brake", "hw-slowdown", power.CODE)
JOB_CAUSES = {
    "input-stall": "waits for its input",
    "input-bound": "looks input-bound",
    "consecutive-skips": "steps are skipped",
    "skip-rate": "steps are skipped",
    "host-bound": "host-bound",
    "memory-bound": "memory-bound",
    "busy-not-working": "busy but not working",
}
"""Findings that explain why a job is slower than the best GEMM, in a few words."""
KERNEL_CODES = ("rate-below-expected", "rate-below-peers", "device-shared", "cpu-time-missing")


@dataclass(frozen=True)
class Step:
    """One step: `ops_per_second` is what is left after it, `lost` the share of rated lost in it.

    Both are None where they are not known, because of `unavailable`. `cause` is a few words;
    `finding` explains the loss at length where a rule found one.
    """

    key: str
    label: str
    ops_per_second: float | None
    lost: float | None
    cause: str = ""
    unavailable: str = ""
    finding: events.Finding | None = None


def steps(
    device: DeviceState,
    precision: str,
    findings: Iterable[events.Finding],
    job: Mfu | None = None,
) -> tuple[Step, ...]:
    """The waterfall of one precision on one device; with a `job` on it, down to the job's rate.

    The job is `mfu.of_device(state, device)`.
    """
    runs = job.runs if job is not None else ()
    own = [finding for finding in findings if finding.device == device.key or finding.run in runs]
    rated, held, achieved = _rated(device, precision), _held(device, precision), None
    result, missing = _result(device, precision)
    if result is not None:
        achieved = result.rate_ops_per_second
    found = (
        Step(
            "rated",
            "rated ceiling",
            rated,
            None if rated is None else 0.0,
            unavailable="" if rated is not None else _no_ceiling(device, precision),
        ),
        _held_step(device, precision, rated, held, own),
        _gemm_step(device, precision, rated, held, achieved, missing, own),
    )
    if job is None:
        return found
    left = next((rate for rate in (achieved, held, rated) if rate is not None), None)
    return (*found, _job_step(job, precision, rated, left, own))


def _rated(device: DeviceState, precision: str) -> float | None:
    ceiling = device.ceiling(precision)
    return None if ceiling is None else ceiling.ops_per_second


def _held(device: DeviceState, precision: str) -> float | None:
    result, _ = _result(device, precision)
    return device.held_ceiling(precision) if result is not None else None


def _result(device: DeviceState, precision: str) -> tuple[events.RateMeasured | None, str]:
    """The result that the steps rest on, or None and why."""
    rates = device.rates[precision]
    result = rates.best
    if result is not None and result.correct is False:
        return None, "the result is wrong"
    if result is None or result.rate_ops_per_second is None:
        return None, plain(rates.unsupported, 120) if rates.unsupported else "not measured yet"
    return result, ""


def _no_ceiling(device: DeviceState, precision: str) -> str:
    return plain(device.absence(precision) or "no ceiling known", 120)


def _held_step(
    device: DeviceState,
    precision: str,
    rated: float | None,
    held: float | None,
    own: list[events.Finding],
) -> Step:
    key, label = "held", "at held clock"
    if rated is None:
        return Step(key, label, None, None, unavailable=_no_ceiling(device, precision))
    result, missing = _result(device, precision)
    if held is None or result is None:
        reason = missing or "no clock was read during the burst"
        return Step(key, label, None, None, unavailable=reason)
    lost = 1.0 - held / rated
    if lost < -NEGLIGIBLE:
        return Step(key, label, held, lost, "boost above rated")
    if lost < NEGLIGIBLE:
        return Step(key, label, held, lost)
    finding = _first(own, CLOCK_CODES)
    return Step(key, label, held, lost, _clock_words(device, result), finding=finding)


def _gemm_step(
    device: DeviceState,
    precision: str,
    rated: float | None,
    held: float | None,
    achieved: float | None,
    missing: str,
    own: list[events.Finding],
) -> Step:
    key, label = "gemm", "best GEMM"
    if achieved is None:
        return Step(
            key, label, None, None, unavailable=missing, finding=_first(own, ("wrong-result",))
        )
    if rated is None:
        return Step(key, label, achieved, None, unavailable=_no_ceiling(device, precision))
    before = held if held is not None else rated
    lost = (before - achieved) / rated
    result = device.rates[precision].best
    assert result is not None
    if not result.valid:
        cause = f"not valid: {plain(result.invalid_reason, 100)}"
    elif result.emulated:
        cause = "emulated"
    elif lost < NEGLIGIBLE:
        cause = "" if lost > -NEGLIGIBLE else "above the ceiling: in doubt"
    elif held is None:
        cause = "clock and library"
    else:
        cause = "library and shape"
    return Step(key, label, achieved, lost, cause, finding=_first(own, KERNEL_CODES))


def _job_step(
    job: Mfu,
    precision: str,
    rated: float | None,
    before: float | None,
    own: list[events.Finding],
) -> Step:
    key, label = "job", "the job (MFU)"
    achieved = job.flops_per_second
    if achieved is None:
        return Step(key, label, None, None, unavailable=plain(job.absence, 120))
    if job.precision != precision:
        runs_in = PRECISIONS[job.precision].label if job.precision else "a precision not known"
        return Step(key, label, None, None, unavailable=f"it computes in {runs_in}")
    if not rated or before is None:
        return Step(key, label, achieved, None, unavailable=plain(job.ceiling_absence, 120))
    lost = (before - achieved) / rated
    if job.doubtful:
        return Step(key, label, achieved, lost, "above the ceiling: in doubt")
    if lost < NEGLIGIBLE:
        return Step(key, label, achieved, lost)
    finding = _first(own, tuple(JOB_CAUSES))
    cause = JOB_CAUSES[finding.code] if finding is not None else "the model's own kernels"
    return Step(key, label, achieved, lost, cause, finding=finding)


def _first(findings: list[events.Finding], codes: tuple[str, ...]) -> events.Finding | None:
    return next((finding for finding in findings if finding.code in codes), None)


def _clock_words(device: DeviceState, result: events.RateMeasured) -> str:
    words = _limit_words(device, result.clock_event_mask or 0)
    return words or "clock below rated"


def limited_by(device: DeviceState) -> str:
    """What holds the clocks now, for a narrow column: "SW power cap", "thermal"; "" for nothing."""
    sample = device.sample
    if sample is None or sample.clock_event_mask is None or device.condition != "ok":
        return ""
    return _limit_words(device, sample.clock_event_mask)


def _limit_words(device: DeviceState, mask: int) -> str:
    lowered = power.lowered_limit(device)
    for event in clock_events.decode(mask):
        if event.bit == clock_events.SW_POWER_CAP and lowered is not None:
            return f"power limit {lowered.limit:.0f} W"
        if event.treatment != "quiet":
            return event.short
    return ""

"""What follows from the readings: findings and verdicts."""

from __future__ import annotations

from typing import Literal

from topsmon.events.base import Event

Severity = Literal["info", "warn", "fail"]
CheckState = Literal["PASS", "WARN", "FAIL", "NO-VERDICT", "INVALID", "EMULATED", "UNSUPPORTED"]


class Finding(Event, frozen=True, kw_only=True, tag="finding"):
    """One diagnosed fact: what, how sure, from which numbers, what to do, on whose authority.

    `word` is the state word of the screen (SLOW, HOT, LOST, STALE, FAIL, FULL, SHARED, NAN, SKIP,
    SCALE, GRAD, AMP, WAIT, note). `basis` names the source of the threshold or rule. `device` is
    for hardware; a finding about a training run has the run's key in `run` and no device.
    In a recording a finding comes when it begins and once more, `ended`, when it is over.
    """

    code: str
    severity: Severity
    word: str
    title: str
    device: str | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    command: str = ""
    basis: str = ""
    run: str | None = None
    ended: bool = False


class CheckResult(Event, frozen=True, kw_only=True, tag="check"):
    """Verdict of one check on one device; `device` None: about the machine.

    `value` is in `unit` ("ops/s", "bytes/s", "s", "ratio", "celsius", "watts", "count"), as are the
    limits: as good as expected from `pass_limit` on, `fail_limit` is where a failure begins, None
    where there is none; a lower value is the better one where `lower_is_better`. `ratio` is value /
    ceiling. `unknown` True: what should have been judged could not be measured, so that the whole
    run cannot be called healthy. `experimental`: the limits are chosen, nobody published any; such
    a check never fails.
    """

    device: str | None
    label: str
    check: str
    state: CheckState
    title: str
    value: float | None = None
    unit: str = ""
    value_text: str = ""
    threshold_text: str = ""
    pass_limit: float | None = None
    fail_limit: float | None = None
    lower_is_better: bool = False
    ratio: float | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    command: str = ""
    basis: str = ""
    experimental: bool = False
    unknown: bool = False

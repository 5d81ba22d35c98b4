"""One word and one exit code for all verdicts of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from topsmon import events

Status = Literal["OK", "WARN", "FAIL", "UNKNOWN"]
FailOn = Literal["warn", "fail"]

EXIT_CODES: dict[Status, int] = {"OK": 0, "WARN": 1, "FAIL": 2, "UNKNOWN": 3}
USAGE = 64
INTERRUPTED = 130


def status(results: Iterable[events.CheckResult]) -> Status:
    """FAIL before WARN before UNKNOWN before OK. Nothing judged at all is UNKNOWN, never OK."""
    known = list(results)
    states = {result.state for result in known}
    if "FAIL" in states:
        return "FAIL"
    if "WARN" in states:
        return "WARN"
    if any(result.unknown for result in known) or "PASS" not in states:
        return "UNKNOWN"
    return "OK"


def exit_code(
    results: Iterable[events.CheckResult],
    *,
    fail_on: FailOn = "warn",
    unknown_ok: bool = False,
    interrupted: bool = False,
) -> int:
    """The run's exit code. `fail_on` "fail": warnings count as passed."""
    if interrupted:
        return INTERRUPTED
    known = list(results)
    worst = status(known)
    if worst == "WARN" and fail_on == "fail":
        worst = "UNKNOWN" if any(result.unknown for result in known) else "OK"
    if worst == "UNKNOWN" and unknown_ok:
        worst = "OK"
    return EXIT_CODES[worst]

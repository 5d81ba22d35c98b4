"""What a judge looks at, and the shapes of its answers.

"Could not be measured" is never "healthy" and never "bad": it is NO-VERDICT with `unknown` set, or
INVALID where a number exists that must not be trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topsmon import events
from topsmon.checks.model import Check
from topsmon.device_state import DeviceState
from topsmon.laboratory.observed import NOTHING, Observed
from topsmon.state import State
from topsmon.units import plain

HOST = "host"

READ_AGAIN = (
    "The driver tells what cannot be: compare with nvidia-smi -q, update the driver or reset the "
    "GPU, then check again."
)
SO_MANY = 3
"""Impossible readings from which on nothing that the driver tells of a device is believed."""


@dataclass(frozen=True)
class Moment:
    """When the verdict is given: wall clock and this process's monotonic clock, in seconds."""

    time: float
    monotonic: float


@dataclass(frozen=True)
class Context:
    """One check on one device; `device` None: the machine."""

    state: State
    device: DeviceState | None
    check: Check
    moment: Moment
    seen: Observed = field(default=NOTHING)

    @property
    def board(self) -> DeviceState:
        """The device of a check that is about one."""
        assert self.device is not None
        return self.device

    def result(self, verdict: events.CheckState, **more: Any) -> events.CheckResult:
        """Return a result; an experimental check warns where another would fail."""
        check, device = self.check, self.device
        if check.experimental and verdict == "FAIL":
            verdict = "WARN"
        fields: dict[str, Any] = {
            "title": check.title,
            "basis": check.basis,
            "experimental": check.experimental,
            "lower_is_better": check.lower_is_better,
            **more,
        }
        if verdict in ("WARN", "FAIL"):
            fields.setdefault("remedy", check.remedy)
        for key in ("cause", "remedy"):
            fields[key] = without_keys(fields.get(key, ""))
        return events.CheckResult(
            time=self.moment.time,
            monotonic=self.moment.monotonic,
            source=self.state.host.hostname if self.state.host is not None else "",
            device=device.key if device is not None else None,
            label=device.label if device is not None else HOST,
            check=check.id,
            state=verdict,
            **fields,
        )

    def disturbed(self, reason: str, told: Mapping[str, Any]) -> events.CheckResult:
        """A number that others have spoilt is kept, but not trusted."""
        return self.result(
            "INVALID",
            **{
                **told,
                "cause": plain(reason, 240),
                "remedy": "Check again when nothing else uses the device.",
                "unknown": True,
            },
        )

    def missing(self, reason: str = "") -> events.CheckResult:
        """Something that should have been judged was not measured."""
        if self.seen.refused:
            return self.result(
                "INVALID",
                cause=f"shared: {self.seen.refused}",
                remedy="Free the device, then check again; --force measures beside other work.",
                unknown=True,
            )
        because = reason or self.seen.missing or "not measured yet"
        return self.result("NO-VERDICT", cause=plain(because, 240), unknown=True)

    def unreadable(self, *fields: str) -> events.CheckResult:
        """A reading that the driver does not give: UNSUPPORTED where this device has none."""
        device = self.board
        sources = [device.sample, device.identity]
        reasons = [
            source.unavailable[name]
            for source in sources
            if source is not None
            for name in fields
            if name in source.unavailable
        ]
        if not reasons:
            return self.missing("no reading")
        reason = plain(reasons[0], 240)
        if _CANNOT.search(reason):
            return self.result("UNSUPPORTED", cause=reason)
        if "implausible" in reason:
            return self.result("INVALID", cause=reason, remedy=READ_AGAIN, unknown=True)
        return self.missing(reason)

    def implausible(self) -> events.CheckResult | None:
        """INVALID where a driver tells so much that cannot be that its other words count little."""
        sample = self.board.sample
        doubtful = [
            name
            for name, reason in (sample.unavailable.items() if sample is not None else ())
            if "implausible" in reason
        ]
        if len(doubtful) < SO_MANY:
            return None
        names = ", ".join(_UNIT.sub("", name).replace("_", " ") for name in doubtful[:SO_MANY])
        return self.result(
            "INVALID",
            cause=plain(f"the driver's readings are implausible ({names}, ...)", 240),
            remedy=READ_AGAIN,
            unknown=True,
        )


_CANNOT = re.compile(
    r"not supported|NotSupported|too old|does not report|not reported|has no |no PCIe|no sensor"
)
"""Words of a reading that the device, its driver or its mode will never give."""

_UNIT = re.compile(r"_(watts|mhz|celsius|bytes|ratio|joules)$")

_KEY = re.compile(r"press b( to (measure|try)( again| anyway)?)?", re.IGNORECASE)


def without_keys(text: str) -> str:
    """A remedy of the live screen in words that fit a command: it has no keys to press."""
    return _KEY.sub("check again", text)


def by_limits(value: float, check: Check, scale: float = 1.0) -> events.CheckState:
    """PASS, WARN or FAIL of a value by the check's limits times `scale`."""
    assert check.pass_from is not None
    good, fair = check.pass_from * scale, (check.warn_from or 0.0) * scale
    if check.lower_is_better:
        if value <= good:
            return "PASS"
        return "WARN" if not fair or value <= fair else "FAIL"
    if value >= good:
        return "PASS"
    return "WARN" if value >= fair else "FAIL"

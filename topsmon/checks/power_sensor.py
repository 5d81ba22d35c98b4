"""Judge of the power sensor: the driver's power samples against its own energy counter.

On some boards the samples cover a part of the time only (arXiv 2312.02741), and at rest the two
have been seen 1.7 times apart (ml-energy/zeus issue 181). The counter is the better source.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from topsmon import events
from topsmon.checks.context import Context

LEAST_SECONDS = 1.5
"""The counter is read once a second: over less than this the two cannot be compared."""
STEADY = 0.10
"""Power further from its mean than this: samples may have missed what the counter counted."""


class Powers(NamedTuple):
    """Mean watts over the same `seconds`, by the energy counter and by the power samples."""

    counter: float
    samples: float
    seconds: float

    @property
    def apart(self) -> float:
        """The larger over the smaller, minus 1: 0.1 is 10 %."""
        low, high = sorted((self.counter, self.samples))
        return high / low - 1 if low > 0 else float("inf")

    def text(self) -> str:
        """Both with their sources."""
        return f"energy counter {self.counter:.1f} W, power samples {self.samples:.1f} W"


def compare(samples: Sequence[events.DeviceSample]) -> Powers | None:
    """Compare both sources between the first and the last change of the counter.

    None where either is missing, the time is short, or power was not steady.
    """
    known = [
        (sample.monotonic, sample.energy_joules, sample.power_watts)
        for sample in samples
        if sample.energy_joules is not None and sample.power_watts is not None
    ]
    # A reading is fresh when it changes; between two changes it is only repeated.
    fresh = [
        position
        for position in range(1, len(known))
        if known[position][1] != known[position - 1][1]
    ]
    if len(fresh) < 2:
        return None
    first, last = fresh[0], fresh[-1]
    seconds = known[last][0] - known[first][0]
    watts = [power for _, _, power in known[first : last + 1]]
    mean = statistics.fmean(watts)
    if seconds < LEAST_SECONDS or max(abs(value - mean) for value in watts) > STEADY * mean:
        return None
    return Powers((known[last][1] - known[first][1]) / seconds, mean, seconds)


def judge_power_sensor(context: Context) -> events.CheckResult | None:
    """Both agree under load. At rest, or with changing load, the comparison is information."""
    check, seen = context.check, context.seen
    loaded = compare(seen.loaded)
    powers = loaded or compare(seen.samples or tuple(context.board.recent))
    if powers is None:
        sample = context.board.sample
        if sample is not None and None in (sample.energy_joules, sample.power_watts):
            # A board without one of the two sources is no worse for it.
            unread = context.unreadable("energy_joules", "power_watts")
            return msgspec.structs.replace(unread, unknown=False)
        return context.result("NO-VERDICT", cause="no steady power for long enough to compare")
    assert check.pass_from is not None
    told = {
        "value": powers.apart,
        "unit": "ratio",
        "value_text": f"{powers.apart:.0%} apart",
        "threshold_text": f"<= {check.pass_from:.0%}",
        "pass_limit": check.pass_from,
        "evidence": (f"{powers.text()} over {powers.seconds:.1f} s",),
    }
    if powers.apart <= check.pass_from:
        return context.result("PASS", **told)
    words = f"{powers.text()}: use the counter for efficiency"
    if loaded is None:
        return context.result("NO-VERDICT", cause=f"not under steady load; {words}", **told)
    return context.result("WARN", cause=words, **told)

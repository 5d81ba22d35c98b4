"""What a number is compared with, and what is no number at all."""

from __future__ import annotations

from topsmon import events

RATED, AT_TOP_CLOCK = "rated", "at top clock"
"""What a compute ceiling is called: the second where a measured clock stands for the rated one."""
TOP_CLOCK = "the highest clock measured here, for the rated one is not known"
NOTHING_COMPUTED = "nothing was computed: a rate of 0 is a failure and no slow device"
RATES = ("_bytes_per_second", "_ops_per_second")


def ceiling_word(*, top_clock: bool) -> str:
    """What a compute ceiling is called."""
    return AT_TOP_CLOCK if top_clock else RATED


def nothing_computed(result: events.RateMeasured | events.ProbeResult) -> bool:
    """True for a measured rate of 0, and for a valid, right result that has no rate."""
    if isinstance(result, events.RateMeasured):
        rate = result.rate_ops_per_second
        return rate == 0 or (rate is None and result.valid and result.correct is True)
    return any(
        value == 0
        for key, value in result.values.items()
        if key.endswith(RATES) and not key.endswith(tuple(f"_low{name}" for name in RATES))
    )

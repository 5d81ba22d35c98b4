"""Growth per second of the driver's counters, which are reset, wrap and stand still."""

from __future__ import annotations

from topsmon.devices.nvml import Unavailable

FIRST = Unavailable("two readings are needed", None, "transient")
BACKWARDS = Unavailable("the counter was reset or has wrapped", None, "transient")
MIN_SECONDS = 0.001


def growth(
    before: tuple[float, float], after: tuple[float, float], limit: float, scale: float = 1.0
) -> float | Unavailable:
    """Return growth per second between two readings (time in s, value), times `scale`.

    What shrinks was reset or has wrapped; what grows faster than `limit` cannot be: such an
    interval tells nothing. Times are our own monotonic clock: the driver's time stamps jump with
    the wall clock.
    """
    seconds, grown = after[0] - before[0], after[1] - before[1]
    if grown < 0:
        return BACKWARDS
    if seconds < MIN_SECONDS:
        return FIRST
    rate = grown * scale / seconds
    if not 0 <= rate <= limit:
        return Unavailable(
            f"implausible growth of {rate:.4g} per second from the driver", None, "implausible"
        )
    return rate


class Rate:
    """Growth per second of one counter from reading to reading."""

    def __init__(self, limit: float, scale: float = 1.0) -> None:
        self._limit = limit
        self._scale = scale
        self._before: tuple[float, float] | None = None

    def update(self, value: float, now: float) -> float | Unavailable:
        """Return the rate since the reading before, at monotonic time `now`."""
        before, self._before = self._before, (now, value)
        return FIRST if before is None else growth(before, self._before, self._limit, self._scale)

    def forget(self) -> None:
        """Start anew: the counter was not readable, or is another one now."""
        self._before = None

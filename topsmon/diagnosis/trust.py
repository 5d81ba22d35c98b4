"""Which measured rates may be judged."""

from __future__ import annotations

from topsmon import events
from topsmon.device_state import DeviceState


def trusted(device: DeviceState, precision: str) -> events.RateMeasured | None:
    """This session's best rate if it is valid, right and native, else None.

    A rate of an earlier session tells about that day; an emulated one tells about the library.
    """
    rates = device.rates[precision]
    result = rates.best
    if result is None or rates.is_remembered or device.condition == "lost":
        return None
    if not result.valid or result.correct is False or result.emulated:
        return None
    return result if result.rate_ops_per_second else None

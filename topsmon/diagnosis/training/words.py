"""How findings about runs say things: scales, counts, layers. ASCII only, safe to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

from topsmon.units import NOT_AVAILABLE, duration, plain, significant

NAME_LENGTH = 60
PLAIN_SCALES = (2.0**-3, 2.0**24)
"""Between these a scale is written out, outside as a power of two."""


def scale_text(scale: float | None) -> str:
    """A loss scale: 65536 -> "65536", 2^-20 -> "2^-20", 0 -> "0", 3e30 -> "3e+30"."""
    if scale is None or math.isnan(scale):
        return "N/A"
    low, high = PLAIN_SCALES
    if scale == 0 or low <= scale <= high or not math.isfinite(scale):
        return f"{scale:.10g}"
    fraction, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if fraction == 0.5 else f"{scale:.3g}"


def counted(count: int, one: str, many: str = "") -> str:
    """A count with its noun: "1 step", "1,204 steps"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def number_text(value: float) -> str:
    """A quantity with at most four digits and an exponent where it needs one."""
    return f"{value:.4g}"


def seconds_text(seconds: float | None) -> str:
    """A step's time: "0.412 ms", "215 ms", "1.24 s"."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    if seconds < 1:
        return f"{significant(seconds * 1e3)} ms"
    return f"{significant(seconds)} s" if seconds < 100 else duration(seconds)


def times_text(times: float) -> str:
    """A factor: "65,536 times"."""
    return f"{times:,.0f} times" if times < 1e7 else f"{scale_text(times)} times"


def layer_of(parameter: str) -> str:
    """The module of a parameter: "encoder.0.weight" -> "encoder.0"."""
    return parameter.rpartition(".")[0] or parameter


def names_text(names: Sequence[str], limit: int = 4) -> str:
    """The first names and how many more: "0.weight, 0.bias and 2 more"."""
    shown = ", ".join(plain(name, NAME_LENGTH) for name in names[:limit])
    more = len(names) - limit
    return f"{shown} and {more} more" if more > 0 else shown

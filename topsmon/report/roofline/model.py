"""What a roofline is made of: roofs of compute, slopes of memory, ridge points, points of work.

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009. Work of an arithmetic intensity of I
operations a byte runs at most at min(compute roof, I x bandwidth); both are equal at the ridge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Word = Literal["rated", "held", "measured", "possible"]
"""Where a number comes from: a data sheet, the clock held during a burst, a measurement. What is
"possible" is the roof itself at the intensity of something that was counted and not run."""
PointKind = Literal["gemm", "probe", "layer"]
Bound = Literal["compute", "memory"]


@dataclass(frozen=True)
class Roof:
    """A horizontal line: operations per second of one precision.

    `low_ops_per_second` is the lower end where the rated figure is a range. `trusted` False: the
    number must not be relied on, and `invalid_reason` says why as far as that is known.
    """

    precision: str
    label: str
    unit: str
    word: Word
    ops_per_second: float
    low_ops_per_second: float | None = None
    trusted: bool = True
    detail: str = ""
    invalid_reason: str = ""


@dataclass(frozen=True)
class Slope:
    """A slanted line: bytes per second of one level of memory. `trusted` is as in a roof."""

    name: str
    level: Literal["memory", "cache"]
    word: Word
    bytes_per_second: float
    trusted: bool = True
    detail: str = ""
    invalid_reason: str = ""

    def rate(self, intensity: float) -> float:
        """Operations per second that this memory can feed at an intensity."""
        return self.bytes_per_second * intensity


@dataclass(frozen=True)
class Ridge:
    """Where a slope meets a roof: from this many operations a byte on, compute is the limit.

    `trusted` False: roof or slope must not be relied on.
    """

    precision: str
    label: str
    roof_word: Word
    slope: str
    slope_word: Word
    ops_per_byte: float
    ops_per_second: float
    trusted: bool = True


@dataclass(frozen=True)
class Point:
    """Work at its intensity and rate.

    `precision` None: not known. `roof_ops_per_second` is what the roof (the rated one where there
    is one) allows at this intensity, `bound` which side of it that is. `trusted` is as in a roof,
    `roof_trusted` that of the roof and the slope. `has_ceiling` False: the roof is but the fastest
    of the measurements, so that a share of it tells nothing.
    """

    label: str
    kind: PointKind
    precision: str | None
    word: Word
    ops_per_byte: float
    ops_per_second: float
    roof_ops_per_second: float | None = None
    bound: Bound | None = None
    roof_trusted: bool = True
    has_ceiling: bool = True
    trusted: bool = True
    detail: str = ""
    invalid_reason: str = ""

    @property
    def roof_ratio(self) -> float | None:
        """Rate / roof at this intensity, never clamped; None without a ceiling."""
        if self.roof_ops_per_second is None or not self.has_ceiling:
            return None
        return self.ops_per_second / self.roof_ops_per_second


@dataclass(frozen=True)
class Roofline:
    """All of one device. `focus` is the precision that is drawn in full, the others stand back.
    `at_top_clock`: the roofs called "rated" are at the highest clock measured, as no rated one is
    known.

    `simulated` names the scenario when the numbers come from a simulated driver. `notes` say what
    is missing and why.
    """

    device: str
    device_label: str
    device_name: str
    focus: str
    roofs: tuple[Roof, ...]
    slopes: tuple[Slope, ...]
    ridges: tuple[Ridge, ...]
    points: tuple[Point, ...]
    notes: tuple[str, ...]
    simulated: str | None = None
    at_top_clock: bool = False

    def roof(self, precision: str, word: Word) -> Roof | None:
        """The roof of a precision, None where it is not known."""
        return next(
            (roof for roof in self.roofs if (roof.precision, roof.word) == (precision, word)), None
        )

    def memory(self, word: Word) -> Slope | None:
        """The slope of main memory: of several measured ones the fastest."""
        found = [slope for slope in self.slopes if (slope.level, slope.word) == ("memory", word)]
        return max(found, key=lambda slope: slope.bytes_per_second, default=None)

    def carrier(self, word: Word) -> Slope | None:
        """The slope on which a roof of this word begins: the one of its kind, else the other."""
        rated, measured = self.memory("rated"), self.memory("measured")
        return measured or rated if word == "measured" else rated or measured

"""How far two runs of the same machine may lie apart by chance, from their own spread.

What is compared is the logarithm of new / old. Three things that the runs themselves measured make
it uncertain, and their variances add up:

1. and 2. The spread of the calls of either run, from its quartiles: sigma = IQR / d(n), where
   d(n) = 2 z((0.75 n - 0.125) / (n + 0.25)) is what n normal values have between their quartiles,
   in sigmas, and 1.349 for many (Wan et al. 2014, BMC Medical Research Methodology 14:135, eq. 16).
   It is *not* divided by the root of n, as the standard error of a median (1.2533 sigma / root n)
   would be: the calls of a burst follow each other within a fraction of a second and share its
   clock, heat and neighbours, so that they are no independent trials. A whole run is taken to be
   off by as much as one of its calls is.
3. The drift from burst to burst: by how much the changes of a precision's shapes differ among
   themselves. A change of the device moves all of them alike; what remains is drift. The middle one
   of all precisions of a device stands for them, so that a kernel that changed for one shape does
   not hide a loss elsewhere.

The difference must exceed the noise by Student's t, two-sided, for as many degrees of freedom as
the three variances have together (Welch-Satterthwaite), at a level of 1 % divided by the number of
values compared (Bonferroni): of a hundred comparisons of two whole runs in which nothing changed,
one may call something changed.

Two runs cannot tell how far whole runs lie apart, on a warmer day or in another place of memory. As
long as that is about what calls and bursts differ by, the level holds; at twice as much three or
more in a hundred comparisons of six precisions call something changed. The held clock beside a
verdict shows most of such days.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

FALSE_ALARMS = 0.01
"""Share of comparisons without any change in which something may be called changed."""
LEAST_CALLS = 3
"""A timed window has no fewer: taken where the number of calls was not kept."""
FEW_GROUPS = 3
MOST_DOF = 200
"""Student's t is within 1.5 % of the normal distribution's from here on."""


class Variance(NamedTuple):
    """Of a logarithm of a rate, with the degrees of freedom that it was estimated with."""

    value: float
    dof: float


def of_calls(iqr_ratio: float | None, calls: int | None) -> Variance | None:
    """Variance of one call from the quartiles' distance over the median.

    None where there are no quartiles or they coincide, which no clock gives for real calls.
    """
    if iqr_ratio is None or iqr_ratio <= 0 or (calls is not None and calls < 2):
        return None
    sigma = iqr_ratio / between_quartiles(calls)
    return Variance(sigma**2, (calls or LEAST_CALLS) - 1)


def between_quartiles(calls: int | None) -> float:
    """Expected distance of the quartiles of so many normal values, in sigmas (None: many)."""
    share = 0.75 if calls is None else (0.75 * calls - 0.125) / (calls + 0.25)
    return 2 * statistics.NormalDist().inv_cdf(share)


def of_bursts(groups: Sequence[Sequence[float]]) -> Variance | None:
    """Variance of one shape's change, from the changes of the shapes of each precision.

    None where no precision has two shapes. From three precisions on it is the median of their
    variances, over what the median of such an estimate is (Wilson and Hilferty 1931); a median has
    about half the efficiency of a mean.
    """
    found = [
        Variance(statistics.variance(group), len(group) - 1) for group in groups if len(group) > 1
    ]
    if not found:
        return None
    dof = sum(one.dof for one in found)
    if len(found) < FEW_GROUPS:
        return Variance(sum(one.value * one.dof for one in found) / dof, dof)
    scaled = [one.value / (1 - 2 / (9 * one.dof)) ** 3 for one in found]
    return Variance(statistics.median(scaled), dof / 2)


def limit(parts: Sequence[Variance], comparisons: int) -> float:
    """By how much the logarithms may differ by chance, if so many values are compared."""
    total = sum(part.value for part in parts)
    if total <= 0:
        return 0.0
    dof = total**2 / sum(part.value**2 / part.dof for part in parts)
    return student_limit(FALSE_ALARMS / max(comparisons, 1), dof) * math.sqrt(total)


def student_limit(outside: float, dof: float) -> float:
    """Return t with P(|T| > t) = `outside`; degrees of freedom are rounded down, and at least 1."""
    whole = max(1, min(int(dof), MOST_DOF))
    low, high = 0.0, 1.0
    while student_outside(high, whole) > outside:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if student_outside(middle, whole) > outside:
            low = middle
        else:
            high = middle
    return high


def student_outside(t: float, dof: int) -> float:
    """P(|T| > t) of Student's t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(dof))
    cosine, sine = math.cos(angle), math.sin(angle)
    even = dof % 2 == 0
    term = total = 1.0 if even else cosine
    if dof == 1:
        total = 0.0
    for step in range(2 if even else 3, dof - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    inside = sine * total if even else 2 / math.pi * (angle + sine * total)
    return max(0.0, 1.0 - inside)

"""One quantity over time as SVG: a line for the mean, a band from the lowest to the highest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from xml.sax.saxutils import escape

from topsmon.recording.words import clock
from topsmon.report.recording.model import Plot
from topsmon.units import significant

WIDTH, HEIGHT = 760, 170
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 26, 24
GAP_WIDTHS = 4.0
"""Points further apart than so many widths are not joined."""
TICKS = 4

STYLE = """
svg.plot { font: 12px system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif; max-width: 100% }
.plot .text { fill: #1f1f1f } .plot .muted { fill: #5c5c5c }
.plot .grid { stroke: #e2e2e2 } .plot .frame { fill: none; stroke: #8a8a8a }
.plot .mean { fill: none; stroke: #005fa8; stroke-width: 1.6px }
.plot .band { fill: #005fa8; fill-opacity: 0.18 }
.plot .mark { stroke: #b3261e; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
.plot .text { fill: #e6e6e6 } .plot .muted { fill: #a6a6a6 }
.plot .grid { stroke: #2c2c2c } .plot .frame { stroke: #757575 }
.plot .mean { stroke: #6cb4ff } .plot .band { fill: #6cb4ff }
.plot .mark { stroke: #ff8a80 }
}
"""
Point = tuple[float, float, float, float]


def svg(plot: Plot) -> str:
    """Return the picture as an element to be put into a page; `STYLE` belongs to it once."""
    low, high = _limits(plot)
    scale = math.log2 if plot.logarithmic else float
    begin, span = scale(low), (scale(high) - scale(low)) or 1.0

    def across(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / (plot.duration or 1.0)

    def up(value: float) -> float:
        share = (scale(max(value, low)) - begin) / span
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg class="plot" {size} role="img" aria-label="{_text(plot.title)}">',
        f'<text class="text" x="{LEFT}" y="16">{_text(plot.title)}</text>',
        *_axes(plot, low, high, across, up),
    ]
    for stretch in _stretches(plot):
        parts += _stretch(stretch, across, up)
    for seconds, text in plot.marks:
        x = across(seconds)
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{_text(text)}</title></line>"
        )
    return "\n".join([*parts, "</svg>"])


def _text(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def _limits(plot: Plot) -> tuple[float, float]:
    lows = [point[1] for point in plot.points if not plot.logarithmic or point[1] > 0]
    highs = [point[3] for point in plot.points]
    if plot.logarithmic:
        low = min(lows, default=1.0)
        return low / 2, max(max(highs, default=1.0), low) * 2
    return 0.0, plot.most or (max(highs, default=0.0) * 1.08) or 1.0


def _axes(
    plot: Plot,
    low: float,
    high: float,
    across: Callable[[float], float],
    up: Callable[[float], float],
) -> Iterable[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for number in range(TICKS + 1):
        share = number / TICKS
        value = low * (high / low) ** share if plot.logarithmic else low + (high - low) * share
        y = up(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        label = f"{significant(value)} {plot.unit}".strip()
        yield (
            f'<text class="muted" x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_text(label)}</text>"
        )
    for number in range(TICKS + 1):
        seconds = plot.duration * number / TICKS
        label = f"step {seconds:.0f}" if plot.over_steps else clock(seconds)
        anchor = "start" if number == 0 else "end" if number == TICKS else "middle"
        yield (
            f'<text class="muted" x="{across(seconds):.1f}" y="{HEIGHT - 8}" '
            f'text-anchor="{anchor}">{label}</text>'
        )
    yield (
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>'
    )


def _stretches(plot: Plot) -> list[list[Point]]:
    """Points in runs without a gap."""
    found: list[list[Point]] = []
    for before, point in itertools.pairwise([None, *plot.points]):
        assert point is not None
        if before is None or point[0] - before[0] > GAP_WIDTHS * plot.width:
            found.append([])
        found[-1].append(point)
    return found


def _stretch(
    points: list[Point], across: Callable[[float], float], up: Callable[[float], float]
) -> Iterable[str]:
    if len(points) == 1:
        x, y = across(points[0][0]), up(points[0][2])
        yield f'<circle class="mean" cx="{x:.1f}" cy="{y:.1f}" r="1.5"/>'
        return
    upper = [f"{across(x):.1f},{up(high):.1f}" for x, _, _, high in points]
    lower = [f"{across(x):.1f},{up(low):.1f}" for x, low, _, _ in reversed(points)]
    yield f'<polygon class="band" points="{" ".join([*upper, *lower])}"/>'
    mean = " ".join(f"{across(x):.1f},{up(value):.1f}" for x, _, value, _ in points)
    yield f'<polyline class="mean" points="{mean}"/>'

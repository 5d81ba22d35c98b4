"""Which quantities of a recording are drawn."""

from __future__ import annotations

from collections.abc import Iterator

from topsmon.device_state import DeviceState
from topsmon.recording.series import Series
from topsmon.recording.summary import DeviceSummary, Summary
from topsmon.report.recording.model import Plot
from topsmon.run_state import RunState
from topsmon.units import plain

GIBIBYTE = 2.0**30
DRAWN: tuple[tuple[str, str, str, float, float | None], ...] = (
    ("busy_ratio", "time busy", "%", 100.0, 100.0),
    ("power_watts", "power", "W", 1.0, None),
    ("sm_clock_mhz", "clock", "MHz", 1.0, None),
    ("temperature_celsius", "temperature", "C", 1.0, None),
    ("memory_used_bytes", "memory used", "GiB", 1 / GIBIBYTE, None),
)
"""Field of a sample, title, unit, factor, upper end."""
MOST_MARKS = 40


def device_plots(device: DeviceState, found: DeviceSummary, summary: Summary) -> Iterator[Plot]:
    """One plot for each quantity that was measured more than once."""
    marks = tuple(
        (span.begin, plain(f"{span.finding.word}: {span.finding.title}", 200))
        for span in summary.spans
        if span.finding.device == device.key and span.finding.word != "note"
    )[:MOST_MARKS]
    for name, title, unit, factor, most in DRAWN:
        series = found.series[name]
        if len(series.buckets) > 1:
            yield Plot(
                title=f"{device.label} {title}",
                unit=unit,
                points=_points(series, factor),
                duration=summary.index.seconds,
                width=max(series.width, summary.state.interval or 1.0),
                most=most,
                marks=marks,
            )


def _points(series: Series, factor: float) -> tuple[tuple[float, float, float, float], ...]:
    return tuple(
        (seconds, bucket.low * factor, bucket.mean * factor, bucket.high * factor)
        for seconds, bucket in series.points()
    )


def run_plots(run: RunState) -> Iterator[Plot]:
    """Loss scale and loss of a run over its steps."""
    buckets = [run.buckets[step] for step in sorted(run.buckets)]
    if len(buckets) < 2:
        return
    last = float(buckets[-1].first_step + buckets[-1].steps - 1)
    scales = tuple(
        (float(one.first_step), one.scale_lowest, one.scale_highest, one.scale_highest)
        for one in buckets
        if one.scale_lowest is not None and one.scale_highest is not None and one.scale_lowest > 0
    )
    losses = tuple(
        (float(one.first_step), one.loss_mean, one.loss_mean, one.loss_mean)
        for one in buckets
        if one.loss_mean is not None
    )
    for title, points, logarithmic in (("loss scale", scales, True), ("loss", losses, False)):
        if len(points) > 1:
            yield Plot(
                title=f"{plain(run.label, 60)}: {title}",
                unit="",
                points=points,
                duration=last,
                width=float(run.stride),
                logarithmic=logarithmic,
                over_steps=True,
            )

"""Measuring a plan once on every device, for checks, benchmarks and the roofline."""

from __future__ import annotations

from topsmon.laboratory.observed import Observed
from topsmon.laboratory.progress import Progress
from topsmon.laboratory.progress_line import ProgressLine
from topsmon.laboratory.run import Outcome, Run, RunOptions, UnknownDeviceError

__all__ = [
    "Observed",
    "Outcome",
    "Progress",
    "ProgressLine",
    "Run",
    "RunOptions",
    "UnknownDeviceError",
]

"""The roofline of a device: built once, shown as text, as a picture (SVG) or as JSON."""

from __future__ import annotations

from topsmon.report.roofline.build import build, gemm_intensity
from topsmon.report.roofline.document import to_json
from topsmon.report.roofline.model import Point, Ridge, Roof, Roofline, Slope
from topsmon.report.roofline.svg import svg
from topsmon.report.roofline.text import chart, legend, short_legend, text, title

__all__ = [
    "Point",
    "Ridge",
    "Roof",
    "Roofline",
    "Slope",
    "build",
    "chart",
    "gemm_intensity",
    "legend",
    "short_legend",
    "svg",
    "text",
    "title",
    "to_json",
]

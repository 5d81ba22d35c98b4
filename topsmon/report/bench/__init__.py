"""Results of a benchmark: one document, shown as text or JSON, saved, and compared with another."""

from __future__ import annotations

from topsmon.report.bench.build import document
from topsmon.report.bench.compare import compare
from topsmon.report.bench.compare_text import comparison_json, comparison_text
from topsmon.report.bench.comparison import Comparison, Row, exit_code
from topsmon.report.bench.files import load, to_json
from topsmon.report.bench.model import BenchDocument
from topsmon.report.bench.text import text

__all__ = [
    "BenchDocument",
    "Comparison",
    "Row",
    "compare",
    "comparison_json",
    "comparison_text",
    "document",
    "exit_code",
    "load",
    "text",
    "to_json",
]

"""The report about a recording: one document, as Markdown and as HTML."""

from __future__ import annotations

from topsmon.report.recording.build import document
from topsmon.report.recording.html import html
from topsmon.report.recording.markdown import markdown
from topsmon.report.recording.model import changed

__all__ = ["changed", "document", "html", "markdown"]

"""Progress on a terminal: one line on stderr."""

from __future__ import annotations

import sys
import time

from topsmon.laboratory.progress import Progress

PROGRESS_SECONDS = 0.2
PROGRESS_COLUMNS = 78


class ProgressLine:
    """One line on stderr that is written over again and again, and wiped at the end."""

    def __init__(self) -> None:
        self._shown = ""
        self._written = 0.0

    def __call__(self, progress: Progress) -> None:
        """Show how far it is, a few times a second."""
        self.show(progress.text())

    def show(self, words: str) -> None:
        """Show some words, a few times a second."""
        line = f"topsmon: {words}"[:PROGRESS_COLUMNS]
        now = time.monotonic()
        if line != self._shown and now - self._written >= PROGRESS_SECONDS:
            self._written = now
            self._write(line)

    def end(self) -> None:
        """Leave an empty line."""
        self._write("")

    def _write(self, line: str) -> None:
        self._shown, before = line, self._shown
        padding = " " * (len(before) - len(line))
        sys.stderr.write(f"\r{line}{padding}" + ("" if line else "\r"))
        sys.stderr.flush()

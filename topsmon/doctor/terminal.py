"""The terminal that the screen would be drawn on."""

from __future__ import annotations

import locale
import os
import shutil
import sys
from collections.abc import Iterator

from topsmon.doctor.model import Patient, Result

SMALLEST = (80, 24)
_UTF8 = frozenset({"utf8"})


def terminal(patient: Patient) -> Iterator[Result]:
    """Whether the live screen can run: three terminals and a TERM that moves the cursor."""
    term = patient.environment.get("TERM", "")
    missing = [name for name in ("stdin", "stdout", "stderr") if not _is_terminal(name)]
    if term in {"", "dumb"}:
        yield Result(
            id="terminal",
            state="warn",
            finding=f"TERM is {term or 'not set'}: topsmon prints one text snapshot, no screen",
            remedy="Set TERM to what your terminal is, such as xterm-256color.",
        )
    elif missing:
        yield Result(
            id="terminal",
            state="n/a",
            finding=f"{', '.join(missing)}: not a terminal here, so one text snapshot, no screen",
        )
    else:
        columns, lines = shutil.get_terminal_size()
        small = columns < SMALLEST[0] or lines < SMALLEST[1]
        yield Result(
            id="terminal",
            state="warn" if small else "ok",
            finding=f"{term}, {columns}x{lines}",
            remedy="At 80x24 and more nothing is left out." if small else "",
        )


def _is_terminal(name: str) -> bool:
    stream = getattr(sys, name)
    try:
        return stream is not None and os.isatty(stream.fileno())
    except (OSError, ValueError):
        return False


def encoding(patient: Patient) -> Iterator[Result]:
    """Whether lines and blocks can be drawn, or ASCII must do."""
    del patient
    name = getattr(sys.stdout, "encoding", None) or locale.getpreferredencoding(False)
    utf8 = name.lower().replace("-", "").replace("_", "") in _UTF8
    yield Result(
        id="encoding",
        state="ok" if utf8 else "warn",
        finding=name if utf8 else f"{name}: drawn with ASCII characters",
        remedy="" if utf8 else "Use a UTF-8 locale, such as LC_ALL=C.UTF-8.",
    )


def colours(patient: Patient) -> Iterator[Result]:
    """How many colours the terminal says it has."""
    environment = patient.environment
    term, colorterm = environment.get("TERM", ""), environment.get("COLORTERM", "")
    if environment.get("NO_COLOR"):
        words = "none: NO_COLOR is set"
    elif colorterm in {"truecolor", "24bit"}:
        words = f"16 million (COLORTERM={colorterm})"
    elif "256" in term:
        words = "256"
    else:
        words = "16 or fewer"
    yield Result(id="colours", state="ok", finding=words)

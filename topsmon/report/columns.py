"""Text in terminal cells: wide characters take two, combining ones none."""

from __future__ import annotations

import unicodedata


def cells(text: str) -> int:
    """Return how many cells a text takes."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(char) for char in text)


def _cells_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clip(text: str, width: int) -> str:
    """Return as much of a text as fits into `width` cells."""
    if cells(text) <= width:
        return text
    taken, used = [], 0
    for char in text:
        used += _cells_of(char)
        if used > width:
            break
        taken.append(char)
    return "".join(taken)


def pad(text: str, width: int) -> str:
    """Return a text filled with blanks to `width` cells; a longer one stays as it is."""
    return text + " " * max(0, width - cells(text))


def wrap(text: str, width: int, *, first: str = "", rest: int = 0) -> list[str]:
    """Break a text at blanks into lines of at most `width` cells.

    The first line begins with `first`, the others with `rest` blanks. A word that is longer than a
    line is broken. Runs of blanks inside a line are kept.
    """
    lines: list[str] = []
    line, empty = first, True
    for word in text.split(" "):
        joint = "" if empty else " "
        if cells(line) + cells(joint) + cells(word) <= width:
            line += joint + word
            empty = False
            continue
        if not empty:
            lines.append(line.rstrip())
            line = " " * rest
        remaining = word
        while cells(line) + cells(remaining) > width:
            part = clip(remaining, width - cells(line)) or remaining[:1]
            lines.append(line + part)
            line, remaining = " " * rest, remaining[len(part) :]
        line += remaining
        empty = False
    lines.append(line.rstrip())
    return lines

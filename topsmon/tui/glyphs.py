"""Glyphs and small drawings as pure functions, in a UTF-8 and an ASCII set.

All scales are fixed by the caller: nothing here stretches to its own minimum and maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

DUMB_TERMINALS = frozenset({"linux", "vt100", "vt102", "vt220", "ansi", "cons25"})
"""Terminals whose fonts lack braille and eighth blocks, whatever the locale says."""


@dataclass(frozen=True)
class Glyphs:
    """One set of signs.

    `spark` holds the eight levels from nothing to 7/8 of a cell, `box` the corners of a frame
    (upper left, upper right, lower left, lower right) and its upright.
    """

    ascii_only: bool
    spark: str
    bar: str
    half_bar: str
    track: str
    tick: str
    over: str
    cursor: str
    arrow: str
    up: str
    down: str
    times: str
    dash: str
    dot: str
    line: str
    box: str
    rule: str


UTF8 = Glyphs(
    ascii_only=False,
    spark=" ▁▂▃▄▅▆▇",
    bar="━",
    half_bar="╸",
    track="─",
    tick="┼",
    over="▶",
    cursor="▸",
    arrow="→",
    up="↑",
    down="↓",
    times="×",
    dash="—",
    dot="·",
    line="━",
    box="╭╮╰╯│",
    rule="─",
)
ASCII = Glyphs(
    ascii_only=True,
    spark=" .:-=+*#",
    bar="#",
    half_bar="-",
    track=".",
    tick="|",
    over=">",
    cursor=">",
    arrow=">",
    up="^",
    down="v",
    times="x",
    dash="-",
    dot=".",
    line="*",
    box="++++|",
    rule="-",
)

_ASCII_TABLE = str.maketrans(
    {
        "—": "-",
        "–": "-",
        "·": ".",
        "×": "x",
        "…": "~",
        "→": ">",
        "↑": "^",
        "↓": "v",
        "°": "'",
        "≈": "~",
        "≤": "<",
        "≥": ">",
        "µ": "u",
        "²": "2",
        "³": "3",
        "▸": ">",
        "━": "-",
        "─": "-",
        "│": "|",
        "▐": "[",
        "▌": "]",
        "\N{NO-BREAK SPACE}": " ",
    }
)


def choose(*, ascii_only: bool, encoding: str | None, terminal: str) -> Glyphs:
    """Return the set that a terminal can show: UTF-8 only where its encoding and font have it."""
    utf8 = (encoding or "").lower().replace("-", "").replace("_", "") == "utf8"
    if ascii_only or not utf8 or terminal in DUMB_TERMINALS:
        return ASCII
    return UTF8


def to_ascii(text: str) -> str:
    """Return text in ASCII, cell for cell: known signs by a look-alike, the others as "?"."""
    if text.isascii():
        return text
    translated = text.translate(_ASCII_TABLE)
    if translated.isascii():
        return translated
    return "".join(sign if sign.isascii() else "?" * cell_len(sign) for sign in translated)


def spark(values: Sequence[float | None], width: int, glyphs: Glyphs) -> str:
    """Return the newest `width` ratios as a spark on a fixed 0..1 scale, newest at the right.

    The lowest sign stands for 0 as well, so that a blank means "not measured". The highest is 7/8
    of a cell: rows above each other stay apart.
    """
    levels = glyphs.spark
    top = len(levels) - 1
    signs = [
        levels[0] if value is None else levels[max(1, min(top, int(value * top) + 1))]
        for value in list(values)[-width:]
    ]
    return "".join(signs).rjust(width)


def bar(ratio: float, width: int, glyphs: Glyphs, tick: float | None = None) -> tuple[str, str]:
    """Return the filled part and the rest of a thin bar of `width` cells.

    A ratio above 1 fills the bar and ends in a sign of its own; `tick` marks another ratio on the
    same scale, for instance the ceiling at the held clock.
    """
    if width <= 0:
        return "", ""
    halves = round(min(max(ratio, 0.0), 1.0) * width * 2)
    filled = glyphs.bar * (halves // 2) + (glyphs.half_bar if halves % 2 else "")
    if ratio > 1.0:
        filled = glyphs.bar * (width - 1) + glyphs.over
    rest = glyphs.track * (width - len(filled))
    if tick is not None and 0 < tick < 1:
        place = min(int(tick * width), width - 1) - len(filled)
        if place >= 0:
            rest = rest[:place] + glyphs.tick + rest[place + 1 :]
    return filled, rest

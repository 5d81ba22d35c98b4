"""What a report is made of, whatever it is written in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Lines:
    """Lines of plain text, each a paragraph or an entry of a list."""

    lines: tuple[str, ...]
    listed: bool = False


@dataclass(frozen=True)
class Listing:
    """Text in columns that must stay as it is."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; `numbers` are the columns that stand at the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Plot:
    """A quantity over time: (s, low, mean, high); `steps`: it holds until the next point.

    `marks` are (s, text) of what began then; `most` is the upper end where it is fixed.
    `width` is the time a point stands for: further apart there is a gap in the line.
    """

    title: str
    unit: str
    points: tuple[tuple[float, float, float, float], ...]
    duration: float
    width: float
    most: float | None = None
    logarithmic: bool = False
    over_steps: bool = False
    marks: tuple[tuple[float, str], ...] = ()


Block = Lines | Listing | Table | Plot


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """The whole report."""

    title: str
    sections: tuple[Section, ...]


def changed(document: Document, change: Callable[[str], str]) -> Document:
    """Return the report with every text in it changed."""

    def block(one: Block) -> Block:
        match one:
            case Lines():
                return replace(one, lines=tuple(map(change, one.lines)))
            case Listing():
                return Listing(change(one.text))
            case Table():
                rows = tuple(tuple(map(change, row)) for row in one.rows)
                return replace(one, rows=rows)
            case Plot():
                marks = tuple((when, change(text)) for when, text in one.marks)
                return replace(one, title=change(one.title), marks=marks)

    return Document(
        document.title,
        tuple(
            Section(section.title, tuple(map(block, section.blocks)))
            for section in document.sections
        ),
    )

"""A report in Markdown (GitHub's): fit to be pasted into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from topsmon.report.recording.model import Block, Document, Lines, Listing, Plot, Table

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def markdown(document: Document) -> str:
    """Return the report; plots are left out."""
    lines = [f"# {escaped(document.title)}", ""]
    for section in document.sections:
        lines += [f"## {escaped(section.title)}", ""]
        for block in section.blocks:
            found = list(_block(block))
            lines += [*found, ""] if found else []
    return "\n".join(lines).rstrip() + "\n"


def escaped(text: str) -> str:
    """Text from outside, so that nothing in it is markup or a mention of somebody."""
    return _SPECIAL.sub(r"\\\1", text).replace("@", "@\u200b")


def _block(block: Block) -> Iterator[str]:
    match block:
        case Lines():
            for place, line in enumerate(block.lines):
                if place and not block.listed:
                    yield ""
                yield f"- {escaped(line)}" if block.listed else escaped(line)
        case Listing():
            fence = "`" * max(
                3, 1 + max((len(run) for run in re.findall("`+", block.text)), default=0)
            )
            yield from (fence, *block.text.split("\n"), fence)
        case Table():
            yield _row(block.head)
            yield _row(
                ["--:" if place in block.numbers else "--" for place in range(len(block.head))],
                raw=True,
            )
            yield from (_row(row) for row in block.rows)
        case Plot():
            return


def _row(cells: Sequence[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(cell if raw else escaped(cell) for cell in cells) + " |"

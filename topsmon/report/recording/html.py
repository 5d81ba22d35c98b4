"""A report as one HTML page with its plots in it; it loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from topsmon.report.recording import plots
from topsmon.report.recording.model import Block, Document, Lines, Listing, Plot, Table

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f1f1f; background: #ffffff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .7rem .2rem 0; vertical-align: top;
  text-align: left; border-bottom: 1px solid #dddddd }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
pre { overflow-x: auto; background: #f4f4f4; padding: .7rem }
@media (prefers-color-scheme: dark) {
body { color: #e6e6e6; background: #161616 } td, th { border-color: #3a3a3a }
pre { background: #222222 }
}
"""


def html(document: Document) -> str:
    """Return the page."""
    title = escape(document.title)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>{STYLE}{plots.STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
    ]
    for section in document.sections:
        parts.append(f"<h2>{escape(section.title)}</h2>")
        for block in section.blocks:
            parts += _block(block)
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Lines():
            name = "li" if block.listed else "p"
            items = [f"<{name}>{escape(line)}</{name}>" for line in block.lines]
            yield from (["<ul>", *items, "</ul>"] if block.listed and items else items)
        case Listing():
            yield f"<pre>{escape(block.text)}</pre>"
        case Table():
            yield "<table>"
            yield f"<thead>{_row(block, block.head, 'th')}</thead><tbody>"
            yield from (_row(block, row, "td") for row in block.rows)
            yield "</tbody></table>"
        case Plot():
            yield plots.svg(block)


def _row(table: Table, row: tuple[str, ...], name: str) -> str:
    cells = (
        f'<{name} class="number">{escape(cell)}</{name}>'
        if place in table.numbers
        else f"<{name}>{escape(cell)}</{name}>"
        for place, cell in enumerate(row)
    )
    return f"<tr>{''.join(cells)}</tr>"

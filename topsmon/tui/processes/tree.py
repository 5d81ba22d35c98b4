"""Processes below their parents. Parents on no device are shown where several branches meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from topsmon import events
from topsmon.report.process_rows import Row, RowKey


class Branches(NamedTuple):
    """How a tree is drawn: a child, the last child, a line past others, a blank."""

    child: str
    last: str
    line: str
    blank: str


UTF8 = Branches("├─ ", "└─ ", "│  ", "   ")
ASCII = Branches("|- ", "`- ", "|  ", "   ")


def as_tree(rows: Sequence[Row], *, ascii_only: bool) -> list[Row]:
    """Return the rows as a tree; siblings keep the order that `rows` has, the best below counts."""
    glyphs = ASCII if ascii_only else UTF8
    groups: dict[tuple[int, bool], list[Row]] = {}
    place: dict[tuple[int, bool], int] = {}
    for number, row in enumerate(rows):
        key = row.entry.pid, row.entry.local
        groups.setdefault(key, []).append(row)
        place.setdefault(key, number)
    chains = {
        pid: [ancestor.pid for ancestor in found[0].entry.ancestors]
        for (pid, local), found in groups.items()
        if local
    }
    joints = _joints(chains)
    for pid, name in _names(rows).items():
        if pid in joints and pid not in chains:
            groups[pid, True] = [_parent(pid, name)]
    children: dict[tuple[int, bool] | None, list[tuple[int, bool]]] = {None: []}
    known = {pid for pid, local in groups if local}
    above = {**{pid: _chain_of(pid, chains) for pid in known}, **chains}
    for key in groups:
        parent = next((one for one in above.get(key[0], []) if one in known), None)
        top = None if parent is None or not key[1] else (parent, True)
        children.setdefault(top, []).append(key)

    def best(key: tuple[int, bool]) -> int:
        below = [best(child) for child in children.get(key, [])]
        return min([place.get(key, len(rows)), *below])

    found: list[Row] = []

    def draw(key: tuple[int, bool], before: str, sign: str, after: str) -> None:
        for number, row in enumerate(groups[key]):
            branch = before + (sign if number == 0 else after)
            found.append(replace(row, branch=branch))
        below = sorted(children.get(key, []), key=best)
        for number, child in enumerate(below):
            last = number == len(below) - 1
            inner = before + after
            signs = (glyphs.last, glyphs.blank) if last else (glyphs.child, glyphs.line)
            draw(child, inner, *signs)

    for key in sorted(children[None], key=best):
        draw(key, "", "", "")
    # PIDs given away between two looks may make a circle, which hangs from nothing.
    drawn = {row.key for row in found}
    return found + [row for row in rows if row.key not in drawn]


def _joints(chains: dict[int, list[int]]) -> set[int]:
    """PIDs at which at least two branches meet."""
    below: dict[int, set[int]] = {}
    for pid, chain in chains.items():
        child = pid
        for parent in chain:
            below.setdefault(parent, set()).add(child)
            child = parent
    return {pid for pid, found in below.items() if len(found) > 1}


def _names(rows: Sequence[Row]) -> dict[int, str | None]:
    return {one.pid: one.name for row in rows if row.entry.local for one in row.entry.ancestors}


def _chain_of(pid: int, chains: dict[int, list[int]]) -> list[int]:
    """The PIDs above a parent: what stands after it in the chain of a process below it."""
    chain = next((chain for chain in chains.values() if pid in chain), [])
    return chain[chain.index(pid) + 1 :] if chain else []


def _parent(pid: int, name: str | None) -> Row:
    entry = events.ProcessEntry(pid=pid, name=name)
    return Row(RowKey("", pid), "", -1, entry)

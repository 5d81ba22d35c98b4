"""What the user has chosen of the process table: cursor, order, filter, tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from topsmon.report.process_rows import Row, RowKey, chosen, collect, unreadable
from topsmon.state import State
from topsmon.tui.processes.columns import SORTS, Column, by_letter, ranked
from topsmon.tui.processes.tree import as_tree

FILTER_MOST = 200
SHIFT = 10
"""Cells by which the commands move sideways."""
MEMORY, CPU = (column for column in SORTS if column.letter in {"g", "c"})


@dataclass
class Table:
    """`rows` are those shown, `place` the selected one, `count` how many there are without filter.

    `order` is the column to sort by, None for what takes most of a device; `reverse`: against its
    usual direction.
    `shift` are the cells by which commands are moved to the left. `unreadable` says of which
    devices nothing is known.
    """

    rows: list[Row] = field(default_factory=list)
    place: int = 0
    count: int = 0
    order: Column | None = None
    reverse: bool = False
    filter: str = ""
    tree: bool = False
    shift: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    _selected: RowKey | None = None
    _gpus: bool = True

    @property
    def sorted_by(self) -> Column:
        """The column that the rows are sorted by now."""
        return self.order or (MEMORY if self._gpus else CPU)

    def update(self, state: State, *, ascii_only: bool) -> None:
        """Take what is new; the cursor stays on its process, or where that one was."""
        found = collect(state)
        self.unreadable = unreadable(state)
        self.count = len(found)
        self._gpus = any(not row.cpu for row in found)
        rows = ranked(chosen(found, self.filter), self.sorted_by, reverse=self.reverse)
        self.rows = as_tree(rows, ascii_only=ascii_only) if self.tree else rows
        keys = [row.key for row in self.rows]
        if self._selected in keys:
            self.place = keys.index(self._selected)
        else:
            self.place = max(0, min(self.place, len(keys) - 1))
            # The first row is not chosen by anybody: a larger one may take its place.
            if self.place and keys:
                self._selected = keys[self.place]

    @property
    def selected(self) -> Row | None:
        """The row under the cursor."""
        return self.rows[self.place] if self.rows else None

    def move(self, step: int) -> None:
        """Select the row `step` rows on."""
        self.select(self.place + step)

    def select(self, place: int) -> None:
        """Select a row."""
        if self.rows:
            self.place = max(0, min(place, len(self.rows) - 1))
            self._selected = self.rows[self.place].key

    def scroll(self, step: int) -> None:
        """Move the commands sideways."""
        self.shift = max(0, self.shift + step * SHIFT)

    def sort(self, letter: str) -> bool:
        """Sort by the column of a letter, the other way round for a capital; False for none."""
        column = by_letter(letter.lower())
        if column is None:
            return False
        self.order, self.reverse = column, letter.isupper()
        return True

    def sort_next(self) -> None:
        """Sort by the next column."""
        self.order = SORTS[(SORTS.index(self.sorted_by) + 1) % len(SORTS)]
        self.reverse = False

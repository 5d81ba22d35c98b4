"""A ring whose history is counted for many steps at a time.

Between two steps a run's own work drives the recorder's code and data out of the caches. Counted
step by step the history would cost more than all else; 32 steps in a row cost little more than one.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

from .ring import RingWriter

BATCH = 32
"""Few enough: a reader adds the newest 200 steps from their records, and 128 may be unwritten."""


class BatchedRing(RingWriter):
    """Steps are counted into the history when `BATCH` of them have come, and at the end."""

    def __init__(self, path: str, mapping: mmap.mmap, handle: int = -1) -> None:
        super().__init__(path, mapping, handle)
        self._held: list[Sequence[Any]] = []

    def history(self, values: Sequence[Any]) -> None:
        """Hold a new step back; `write` calls this."""
        self._held.append(values)
        if len(self._held) >= BATCH:
            self._count_held()

    def close(self) -> None:
        """Count what is held back, and let go of the file."""
        self._count_held()
        super().close()

    def _amend(self, mapping: mmap.mmap, old: Sequence[Any], values: Sequence[Any]) -> None:
        for place in range(len(self._held) - 1, -1, -1):
            if self._held[place][0] == values[0]:
                self._held[place] = values
                return
        super()._amend(mapping, old, values)

    def _count_held(self) -> None:
        held, self._held = self._held, []
        for values in held:
            super().history(values)

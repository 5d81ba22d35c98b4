"""The whole run in at most 256 buckets of equal length, which doubles when they are full.

Kept in plain lists and written to the file only now and then: a reader adds the newest steps from
their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import layout
from .coding import checked

WRITE_STEPS = 128
"""An open bucket is written this often, so that a reader needs no more records than this."""

_STEP, _FLAGS, _LOSS, _SCALE, _NORM, _SECONDS = (
    layout.RECORD_NAMES.index(name)
    for name in ("step", "flags", "loss", "scale", "gradient_norm", "step_seconds")
)
_NAN = float("nan")
_EMPTY = bytes(layout.HISTORY.size)
_LAST, _SKIPPED, _LOWEST, _HIGHEST, _LOSS_SUM, _LOSSES, _NORM_HIGHEST, _NONFINITE, _TIME, _TIMES = (
    range(10)
)
_SUMS = (_SKIPPED, _LOSS_SUM, _LOSSES, _NONFINITE, _TIME, _TIMES)


class Buckets:
    """All buckets so far. Methods return the numbers of the slots that must be written now."""

    def __init__(self) -> None:
        self.stride = 1
        self._rows: dict[int, list[Any]] = {}
        self._slot = -1
        self._row = _new_row(0)
        self._end = 0
        self._due = 0
        self._written = 0

    def add(self, values: Sequence[Any]) -> Iterable[int]:
        """Count a new step; steps come in order, a step that is left out counts as unknown."""
        step = values[_STEP]
        slots: list[int] | tuple[int, ...] = ()
        if step > self._end:
            slots = self._open(step)
        row = self._row
        row[_LAST] = step
        _account(row, values)
        if step >= self._due:
            self._written = step
            self._due = min(step + WRITE_STEPS, self._end)
            return (*slots, self._slot) if self._slot not in slots else slots
        return slots

    def amend(self, old: Sequence[Any], values: Sequence[Any]) -> Iterable[int]:
        """Count a step anew that was counted with the values `old`."""
        step = values[_STEP]
        slot = (step - 1) // self.stride
        row = self._rows.get(slot)
        if row is None:
            return ()
        before = _new_row(0)
        _account(before, old)
        for index in _SUMS:
            row[index] -= before[index]
        _account(row, values)
        return (slot,) if step <= self._written else ()

    def unwritten(self) -> Iterable[int]:
        """The open bucket's slot, if steps of it are not written yet."""
        return (self._slot,) if self._row[_LAST] > self._written else ()

    def packed(self, slot: int) -> bytes:
        """Return a slot's bytes, its checksum included."""
        row = self._rows.get(slot)
        if row is None:
            return _EMPTY
        first = slot * self.stride + 1
        return checked(
            layout.HISTORY.pack(
                0,
                first,
                row[_LAST] - first + 1,
                row[_SKIPPED],
                row[_LOWEST],
                row[_HIGHEST],
                row[_LOSS_SUM] / row[_LOSSES] if row[_LOSSES] else _NAN,
                row[_NORM_HIGHEST],
                row[_NONFINITE],
                row[_TIME] / row[_TIMES] if row[_TIMES] else _NAN,
            )
        )

    def _open(self, step: int) -> list[int]:
        """Begin the bucket that `step` lies in; the one before may still have to be written."""
        slots = list(self.unwritten()) if self._slot >= 0 else []
        while (step - 1) // self.stride >= layout.HISTORY_SLOTS:
            self._double()
            slots = list(range(layout.HISTORY_SLOTS))
        self._slot = (step - 1) // self.stride
        self._row = self._rows.setdefault(self._slot, _new_row(step))
        self._end = (self._slot + 1) * self.stride
        self._due = min(step + WRITE_STEPS - 1, self._end)
        return slots

    def _double(self) -> None:
        merged: dict[int, list[Any]] = {}
        for slot, row in self._rows.items():
            other = merged.get(slot // 2)
            merged[slot // 2] = row if other is None else _merge(other, row)
        self._rows = merged
        self.stride *= 2


def _new_row(last: int) -> list[Any]:
    return [last, 0, _NAN, _NAN, 0.0, 0, _NAN, 0, 0.0, 0]


def _account(row: list[Any], values: Sequence[Any]) -> None:
    """Add one step to a row. Comparisons are written so that NaN, not known, never wins."""
    flags = values[_FLAGS]
    if flags & layout.SKIPPED:
        row[_SKIPPED] += 1
    scale = values[_SCALE]
    if scale == scale:  # noqa: PLR0124 - NaN
        if not row[_LOWEST] <= scale:
            row[_LOWEST] = scale
        if not row[_HIGHEST] >= scale:
            row[_HIGHEST] = scale
    loss = values[_LOSS]
    if flags & layout.NONFINITE_LOSS:
        row[_NONFINITE] += 1
    elif loss - loss == 0.0:  # finite
        row[_LOSS_SUM] += loss
        row[_LOSSES] += 1
    norm = values[_NORM]
    if norm - norm == 0.0 and not row[_NORM_HIGHEST] >= norm:
        row[_NORM_HIGHEST] = norm
    seconds = values[_SECONDS]
    if seconds - seconds == 0.0:
        row[_TIME] += seconds
        row[_TIMES] += 1


def _merge(first: list[Any], second: list[Any]) -> list[Any]:
    row = [one + other for one, other in zip(first, second)]
    row[_LAST] = max(first[_LAST], second[_LAST])
    row[_LOWEST] = _extreme(min, first[_LOWEST], second[_LOWEST])
    row[_HIGHEST] = _extreme(max, first[_HIGHEST], second[_HIGHEST])
    row[_NORM_HIGHEST] = _extreme(max, first[_NORM_HIGHEST], second[_NORM_HIGHEST])
    return row


def _extreme(choose: Any, one: float, other: float) -> float:
    if one != one:  # noqa: PLR0124 - NaN
        return other
    return one if other != other else float(choose(one, other))  # noqa: PLR0124 - NaN

"""The tables of a recording in files: samples in the one named, the others beside it."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from topsmon import events
from topsmon.recording.export.columns import TABLES, Cell, Column, Table
from topsmon.recording.outputs import check_output, open_output

ROWS_AT_ONCE = 5000
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet."""


class RowWriter(Protocol):
    """Writes rows of one table into one file."""

    def write(self, row: list[Cell]) -> None:
        """Take a row."""

    def close(self) -> None:
        """Write what is left and end the file."""


class CsvWriter:
    """Comma-separated, UTF-8, a heading, empty cells for what was not measured (RFC 4180)."""

    def __init__(self, file: BinaryIO, columns: tuple[Column, ...]) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
        self._csv = csv.writer(self._text)
        self._csv.writerow([column.name for column in columns])

    def write(self, row: list[Cell]) -> None:
        """Take a row."""
        self._csv.writerow([_safe(cell) for cell in row])

    def detach(self) -> None:
        """Write what is left and leave the file open."""
        self._text.flush()
        self._text.detach()

    def close(self) -> None:
        """End the file."""
        self._text.close()


def _safe(cell: Cell) -> Cell:
    """A cell that no spreadsheet takes for a formula; truth values as in JSON."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


class ParquetWriter:
    """Parquet by pyarrow, zstd inside; rows go in groups."""

    def __init__(self, file: BinaryIO, columns: tuple[Column, ...]) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        kinds = {
            "real": pa.float64(),
            "whole": pa.int64(),
            "truth": pa.bool_(),
            "text": pa.string(),
        }
        fields = [pa.field(column.name, kinds[column.kind]) for column in columns]
        self._schema: Any = pa.schema(fields)
        self._pyarrow: Any = pa
        self._file = file
        self._writer: Any = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[list[Cell]] = []

    def write(self, row: list[Cell]) -> None:
        """Take a row."""
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = [
            self._pyarrow.array(values, type=field.type)
            for values, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_table(self._pyarrow.Table.from_arrays(columns, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        """Write what is left and end the file."""
        self._flush()
        self._writer.close()
        self._file.close()


def beside(path: Path, table: Table) -> Path:
    """The file of a table: the one named for the first, else "OUT-rates.csv"."""
    if table is TABLES[0]:
        return path
    return path.with_name(f"{path.stem}-{table.name}{path.suffix}")


def write_tables(
    found: Iterable[events.AnyEvent],
    path: Path,
    create: Callable[[BinaryIO, tuple[Column, ...]], RowWriter],
    *,
    force: bool,
    inputs: Sequence[Path] = (),
) -> Iterator[tuple[Path, int]]:
    """Write all tables that have rows; yield each file with its rows at the end.

    Raises OutputError, before anything is written, where a file is one of `inputs`, or exists and
    `force` is not given. Where the disk fails (OSError) none of the files is left.
    """
    for table in TABLES:
        check_output(beside(path, table), force=force, inputs=inputs)
    by_type = {table.event: table for table in TABLES}
    writers: dict[str, RowWriter] = {}
    rows: dict[str, int] = {}
    with contextlib.ExitStack() as stack:

        def open_table(table: Table) -> None:
            output = open_output(beside(path, table), force=force, inputs=inputs)
            writer = create(stack.enter_context(output), table.columns)
            writers[table.name], rows[table.name] = writer, 0

        open_table(TABLES[0])
        for event in found:
            own = by_type.get(type(event))
            if own is None:
                continue
            if own.name not in writers:
                open_table(own)
            writers[own.name].write(own.row(event))
            rows[own.name] += 1
        for writer in writers.values():
            writer.close()
    for table in TABLES:
        if table.name in rows:
            yield beside(path, table), rows[table.name]


def write_samples(found: Iterable[events.AnyEvent], file: BinaryIO) -> int:
    """Write the samples alone as CSV into an open file; return how many."""
    samples = TABLES[0]
    writer, rows = CsvWriter(file, samples.columns), 0
    for event in found:
        if type(event) is samples.event:
            writer.write(samples.row(event))
            rows += 1
    writer.detach()
    return rows

"""topsmon export RECORDING: CSV, Parquet, trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topsmon.cli.common import Failure

if TYPE_CHECKING:
    from topsmon.recording.reader import RecordingReader

STANDARD_OUTPUT = Path("-")


def export(recording: Path | None, chosen: Mapping[str, Path], *, force: bool) -> None:
    """Write what was chosen ("csv", "parquet", "trace"), each into its file."""
    if not chosen:
        raise click.UsageError(
            "name what to write: --csv, --parquet or --trace of a RECORDING; "
            "--prometheus or --textfile of this machine"
        )
    if recording is None:
        raise click.UsageError("name the RECORDING: topsmon export RECORDING --csv OUT")
    from topsmon.recording.outputs import OutputError
    from topsmon.recording.reader import RecordingReader
    from topsmon.recording.writer import RecordingError, WrongNameError

    if sum(path == STANDARD_OUTPUT for path in chosen.values()) > 1:
        options = " and ".join(f"--{name}" for name, path in chosen.items() if str(path) == "-")
        raise click.UsageError(f"{options} do not fit into one standard output: name a file")
    writers: dict[str, Callable[..., None]] = {"csv": _csv, "parquet": _parquet, "trace": _trace}
    try:
        reader = RecordingReader(recording)
        for name, path in chosen.items():
            writers[name](reader, path, force=force)
    except (WrongNameError, OutputError) as error:
        raise click.UsageError(str(error)) from error
    except RecordingError as error:
        raise Failure(str(error)) from error
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing may be flushed into it at exit
        return
    except OSError as error:
        name = error.filename or "the standard output"
        raise Failure(f"{name}: cannot be written: {error.strerror or error}") from error
    for words in reader.lost.words():
        click.echo(f"topsmon: {words}", err=True)


def _csv(reader: RecordingReader, path: Path, *, force: bool) -> None:
    from topsmon.recording.export.tables import CsvWriter, write_samples, write_tables

    if path == STANDARD_OUTPUT:
        write_samples(reader.read(), sys.stdout.buffer)
        return
    for written, rows in write_tables(
        reader.read(), path, CsvWriter, force=force, inputs=reader.files
    ):
        _tell(written, rows, "rows")


def _parquet(reader: RecordingReader, path: Path, *, force: bool) -> None:
    from topsmon.recording.export.tables import ParquetWriter, write_tables

    try:
        import pyarrow as pa  # noqa: F401  to know before a file is made
    except ImportError as error:
        raise Failure("--parquet needs pyarrow: pip install 'topsmon[parquet]'") from error
    if path == STANDARD_OUTPUT:
        raise click.UsageError("--parquet -: several tables do not fit into one stream")
    for written, rows in write_tables(
        reader.read(), path, ParquetWriter, force=force, inputs=reader.files
    ):
        _tell(written, rows, "rows")


def _trace(reader: RecordingReader, path: Path, *, force: bool) -> None:
    from topsmon.recording.export.trace import write_trace
    from topsmon.recording.outputs import open_output

    if path == STANDARD_OUTPUT:
        write_trace(reader.read(), sys.stdout.buffer)
        return
    with open_output(path, force=force, inputs=reader.files) as file:
        count = write_trace(reader.read(), file)
    _tell(path, count, "events")


def _tell(path: Path, count: int, what: str) -> None:
    click.echo(f"topsmon: {path}: {count:,} {what}", err=True)

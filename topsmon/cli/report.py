"""topsmon report: a recording in words, for a bug report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from topsmon.cli.common import Failure, write_bytes, write_text


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--html", "as_html", is_flag=True, help="An HTML page with plots, not Markdown.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it into a file; a name that ends in .html asks for HTML.",
)
@click.option("--include-identifiers", is_flag=True, help="Keep names, UUIDs and arguments.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    file: Path,
    as_html: bool,
    output: Path | None,
    include_identifiers: bool,
    force: bool,
    debug: bool,
) -> None:
    """Summarise a recording: devices, ceilings, rates, findings, throttling, runs, gaps.

    Markdown to the standard output, fit to be pasted into an issue. Host and user names, UUIDs,
    addresses and arguments of processes are replaced by hashes.
    """
    del debug
    from topsmon.cli.replay import opened
    from topsmon.recording.summary import summarise
    from topsmon.recording.writer import RecordingError
    from topsmon.redaction import Redactor
    from topsmon.report import recording

    if output is not None:
        _check(output, file, force=force)
    reader, index = opened(file)
    redactor = None if include_identifiers else Redactor(os.environ)
    try:
        summary = (
            summarise(reader, index)
            if redactor is None
            else summarise(reader, index, redactor.event)
        )
    except RecordingError as error:
        raise Failure(str(error)) from error
    document = recording.document(summary, redacted=redactor is not None)
    if redactor is not None:
        document = recording.changed(document, redactor.text)
    as_html = as_html or (output is not None and output.suffix in {".html", ".htm"})
    text = recording.html(document) if as_html else recording.markdown(document)
    if output is not None:
        _write(output, text, reader.files, force=force)
    elif as_html or not sys.stdout.isatty():
        write_bytes(text.encode())
    else:
        write_text(text)


def _check(path: Path, recording: Path, *, force: bool) -> None:
    """Refuse what cannot be written before a long recording is read."""
    from topsmon.recording.outputs import OutputError, check_output

    try:
        check_output(path, force=force, inputs=[recording])
    except OutputError as error:
        raise click.UsageError(str(error)) from error


def _write(path: Path, text: str, inputs: Sequence[Path], *, force: bool) -> None:
    from topsmon.recording.outputs import OutputError, open_output

    try:
        with open_output(path, force=force, inputs=inputs) as file:
            file.write(text.encode())
    except OutputError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise Failure(f"{path}: cannot be written: {error.strerror or error}") from error

"""A kept verdict: read again while it is fresh, written in one step after a run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from topsmon.report.check_document import CheckDocument, Selection, from_json, to_json


class StaleError(Exception):
    """There is no kept verdict that answers; the message says why."""


def read(
    path: Path, *, max_age_seconds: float, now: float, selection: Selection, host: str
) -> CheckDocument:
    """Return the kept verdict of this host and selection. `now` is wall-clock time.

    Raises StaleError: none, too old, of another host or question, or written by someone else.
    """
    try:
        status = path.stat()
        if hasattr(os, "geteuid") and status.st_uid not in (0, os.geteuid()):
            raise StaleError(f"{path} belongs to another user")
        document = from_json(path.read_bytes())
    except OSError as error:
        raise StaleError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise StaleError(f"{path}: {error}") from None
    age = now - document.started_unix_seconds
    if not 0 <= age <= max_age_seconds:
        raise StaleError(f"{path} is {age:.0f} s old")
    if document.host != host:
        raise StaleError(f"{path} is of host {document.host}")
    if document.selection != selection:
        raise StaleError(f"{path} answers another selection of checks or devices")
    return document


def write(path: Path, document: CheckDocument) -> None:
    """Keep a verdict; readers see the old file or the new one, never a part. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(to_json(document))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

"""A kept verdict: read again while it is fresh, written in one step after a run."""

from __future__ import annotations

import os
from pathlib import Path

from topsmon.files import LOOKED_AT_BYTES, check_replaceable, read_regular, replace
from topsmon.report.check_document import (
    CheckDocument,
    Selection,
    from_json,
    is_document,
    to_json,
)


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
        document = from_json(read_regular(path, LOOKED_AT_BYTES))
    except OSError as error:
        raise StaleError(f"{path}: {error.strerror or error}") from None
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


def check(path: Path) -> None:
    """Raise NotReplacedError where a verdict may not be kept; see `check_replaceable`."""
    check_replaceable(path, is_document, "result of topsmon check")


def write(path: Path, document: CheckDocument) -> None:
    """Keep a verdict; readers see the old file or the new one, never a part.

    Raises NotReplacedError and OSError.
    """
    check(path)
    replace(path, to_json(document), 0o644)

"""Files that are made from a recording: never over another one unasked, never through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


class OutputError(Exception):
    """A file that cannot be written: one line for the user."""


def open_output(path: Path, *, force: bool) -> BinaryIO:
    """Open a new file for its owner alone; raises OutputError. `force` replaces a regular file."""
    try:
        if force and stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.fdopen(os.open(path, flags, 0o600), "wb")
    except FileExistsError as error:
        hint = "it is no regular file" if force else "name another file, or use --force"
        raise OutputError(f"{path} exists; {hint}") from error
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error

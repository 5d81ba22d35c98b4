"""Reading files that somebody else may have put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path, limit: int) -> bytes:
    """Return up to `limit` bytes of a regular file; raises OSError.

    A pipe would be waited on and a device may never end: neither is read, nor even waited for.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is not a regular file")
        return file.read(limit)

"""Files that somebody else may have put there: reading them, and not writing over them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

LOOKED_AT_BYTES = 4 << 20
"""How much of a file is read to know whose it is."""


class NotReplacedError(Exception):
    """A file that is not written over, or has no place to be: one line for the user."""


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


def check_replaceable(path: Path, is_own: Callable[[bytes], bool], what: str) -> None:
    """Raise NotReplacedError unless a file may be made here, or replaced as one of ours.

    `is_own` is asked about the content of a file that is there and not empty; `what` names what it
    should be. A link, another user's file and a missing folder are refused too.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise NotReplacedError(
                f"{path} is no regular file and is not written over; name another file"
            )
        if status.st_uid != os.geteuid():
            raise NotReplacedError(
                f"{path} belongs to another user and is not written over; name another file"
            )
        if status.st_size and not is_own(read_regular(path, LOOKED_AT_BYTES)):
            raise NotReplacedError(
                f"{path} is no {what} and is not written over; name another file"
            )
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise NotReplacedError(f"{path}: no folder {path.parent}; make it first") from None
    except OSError as error:
        raise NotReplacedError(f"{path}: {error.strerror or error}") from None


def replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file in one step: readers see the old one or the new one. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

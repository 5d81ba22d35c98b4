"""Files that are made from a recording: never over it, never over another one unasked.

A file is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from topsmon.recording.lock import is_being_written

WRONG_NAME = frozenset(
    {
        errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS,
        errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST,
    }
)  # fmt: skip
"""Errors that another name would cure."""


class OutputError(Exception):
    """A file that is not to be written there: one line for the user, who named it."""


@contextlib.contextmanager
def open_output(path: Path, *, force: bool, inputs: Sequence[Path] = ()) -> Iterator[BinaryIO]:
    """Open a new file for its owner alone; where the body fails it is as it was before.

    `force` replaces a regular file at the end. Raises OutputError as `check_output` does; errors
    of the disk are OSErrors that bear the name of the file.
    """
    check_output(path, force=force, inputs=inputs)
    replaced = os.path.lexists(path)
    made = path.with_name(f".{path.name}-{secrets.token_hex(4)}") if replaced else path
    try:
        raw = _NamedFile(made, path)
    except OSError as error:
        if error.errno in WRONG_NAME:
            raise OutputError(f"{path}: {error.strerror or error}") from error
        raise
    file = io.BufferedWriter(raw)
    try:
        yield cast("BinaryIO", file)
        file.close()
        if replaced:
            made.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()
        made.unlink(missing_ok=True)
        raise


def check_output(path: Path, *, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Raise OutputError where a file may not be made: it is an input, or taken.

    With `force` a regular file may be replaced that is no recording still being written.
    """
    if any(_is_same(path, one) for one in inputs):
        raise OutputError(f"{path} is what is read; name another file")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error
    if not stat.S_ISREG(mode):
        raise OutputError(f"{path} exists; it is no regular file")
    if not force:
        raise OutputError(f"{path} exists; name another file, or use --force")
    if is_being_written(path):
        raise OutputError(f"{path} is being recorded; name another file")


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


class _NamedFile(io.FileIO):
    """A new file whose errors say its name."""

    def __init__(self, made: Path, shown: Path) -> None:
        self._shown = str(shown)
        super().__init__(made, "xb", opener=_opened)

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._shown) from error


def _opened(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

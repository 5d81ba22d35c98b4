"""Which folder ring files lie in, and whether it can be trusted.

A run's numbers are its user's alone, and a file that is mapped into a training process must not be
somebody else's: a folder is used only if it is a real directory (no symbolic link), owned by this
user, with mode 0700. The checks are done on the opened directory, so that it cannot be swapped
after them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

FOLDER_VARIABLE = "TOPSMON_DIR"
MODE = 0o700
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class FolderError(Exception):
    """A folder that is not used: one line with its path, what is wrong and what to do."""


def user_id() -> int:
    """Return the user that files are created as; FolderError where the system has none."""
    if not hasattr(os, "geteuid"):
        raise FolderError("runs are recorded on POSIX systems only")
    return os.geteuid()


def candidates(environment: Mapping[str, str], uid: int) -> tuple[str, ...]:
    """Return the folders that may hold a user's rings, the one to try first in front.

    TOPSMON_DIR stands for itself alone. A reader looks into all of them: a run that was started
    by cron or sudo may not have had the XDG_RUNTIME_DIR of the session that watches it.
    """
    given = environment.get(FOLDER_VARIABLE)
    if given:
        return (given,)
    found: list[str] = []
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    # The XDG base directory specification: a path that is not absolute must be ignored.
    if Path(runtime).is_absolute():
        found.append(f"{runtime.rstrip('/')}/topsmon")
    if Path("/dev/shm").is_dir():  # noqa: S108 - a private folder in it, checked
        found.append(f"/dev/shm/topsmon-{uid}")  # noqa: S108 - as above
    found.append(f"/tmp/topsmon-{uid}")  # noqa: S108 - as above
    return tuple(found)


def make(path: str) -> None:
    """Create a folder of mode 0700 unless there is something of that name; FolderError."""
    _demand_absolute(path)
    try:
        Path(path).mkdir(MODE)
    except FileExistsError:
        pass
    except OSError as error:
        parent = Path(path).parent
        missing = not os.path.lexists(parent)
        why = f"{parent} does not exist; make it first" if missing else error.strerror
        raise FolderError(f"{path}: cannot be created: {why}") from error


def open_checked(path: str, owner: int | None = None) -> int:
    """Open a folder that passes all checks; return its descriptor. FolderError.

    `owner` is the user it must belong to, None: this one.
    """
    _demand_absolute(path)
    try:
        handle = os.open(path, os.O_RDONLY | _DIRECTORY | _NO_LINK)
    except OSError as error:
        raise FolderError(f"{path}: {_why_not_opened(path, error)}") from error
    try:
        _check(path, os.fstat(handle), user_id() if owner is None else owner)
    except FolderError:
        os.close(handle)
        raise
    return handle


def _demand_absolute(path: str) -> None:
    if not Path(path).is_absolute():
        raise FolderError(f"{path}: not an absolute path; give {FOLDER_VARIABLE} one")


def _why_not_opened(path: str, error: OSError) -> str:
    if Path(path).is_symlink():
        return "a symbolic link, which is not followed; name the folder itself"
    if Path(path).exists() and not Path(path).is_dir():
        return "not a directory; remove it or name another folder"
    return f"cannot be opened: {error.strerror}"


def _check(path: str, status: os.stat_result, owner: int) -> None:
    if status.st_uid != owner:
        raise FolderError(
            f"{path}: belongs to user {status.st_uid}, not to {owner}; run as that user "
            f"(docker run --user {status.st_uid}), or set {FOLDER_VARIABLE} to a folder of your own"
        )
    # A set-group-id bit comes from the parent and gives nobody access.
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if mode != MODE:
        raise FolderError(f"{path}: mode {mode:04o} instead of 0700; chmod 700 it")

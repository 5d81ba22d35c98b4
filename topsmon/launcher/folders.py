"""The temporary folder of the ranks' notes, and those that a killed topsmon has left behind.

Its owner holds a lock as long as it lives, so that a folder nobody holds is a leftover, also of a
process in another container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "topsmon-ranks-"
LOCK = "owner"
YOUNG_SECONDS = 60.0
"""A folder so young may not be locked yet."""


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A folder of our own, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with (folder / LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of this user whose owner was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            mine = facts.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
            if mine and time.time() - facts.st_ctime > YOUNG_SECONDS and not _held(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _held(lock: Path) -> bool:
    """True while somebody holds the lock. OSError: there is none."""
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

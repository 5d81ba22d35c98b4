"""Tells of a file that it is being recorded into: whoever writes it holds a lock (flock) on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def hold(handle: int) -> None:
    """Lock a file that was just made, until it is closed; file systems without locks go without."""
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_being_written(path: Path) -> bool:
    """Tell whether another recorder, or this one, writes this file now; raises no error."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False

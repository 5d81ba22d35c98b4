"""Save what the screen shows: a picture and the numbers behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from topsmon.files import replace


def default_directory() -> Path:
    """Where snapshots go: the XDG state directory."""
    import platformdirs

    return platformdirs.user_state_path("topsmon") / "snapshots"


def save(
    directory: Path, wall: float, picture: str, numbers: bytes, done: Callable[[str, bool], None]
) -> None:
    """Write both files in a thread of their own: a hanging file system must not hold the screen.

    They are for their owner alone, as command lines and host names stand in them.
    `done` is called in that thread with a message and whether it went well. The thread is a daemon,
    so that it cannot delay the exit either.
    """
    Thread(target=_write, args=(directory, wall, picture, numbers, done), daemon=True).start()


def _write(
    directory: Path, wall: float, picture: str, numbers: bytes, done: Callable[[str, bool], None]
) -> None:
    stem = directory / time.strftime("topsmon-%Y%m%d-%H%M%S", time.localtime(wall))
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        directory.chmod(0o700)  # it may be of a version that let others in
        for suffix, content in ((".svg", picture.encode()), (".json", numbers)):
            replace(stem.with_suffix(suffix), content, 0o600)
    except OSError as error:
        done(f"snapshot not saved: {error.filename or directory}: {error.strerror}", False)
    else:
        done(f"saved {stem}.svg and .json", True)

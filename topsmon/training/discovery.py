"""Which rings there are, whether their runs live, and when old ones are removed."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from topsmon.training.life import Here, Life, life
from topsmon.training.places import Place, places
from topsmon.training.reader import Happening, RingReader, RingReadError
from topsmon.training.recorder import folder, layout
from topsmon.training.window import stepped_at, window

__all__ = ["Found", "Place", "activity", "clean", "look", "names", "places"]

KEEP_SECONDS = 7 * 86400.0
KEEP_ENDED = 200
KEEP_LEAST = 16
KEEP_SHARE = 1 / 20
"""Rings of ended runs may take this share of their file system: /dev/shm is memory."""
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,200}" + re.escape(layout.SUFFIX))
_PROFILE = r"\.step[0-9]+\.(trace\.json\.gz|operators\.json)"


@dataclass(frozen=True)
class Found:
    """A ring as it was read once. `activity` is the time of the last sign of it, s since epoch."""

    path: Path
    life: Life
    activity: float


def names(place: Place) -> list[str]:
    """Return the names of a folder's rings, newest first; FolderError where it is not trusted.

    A folder that is not there holds none.
    """
    if not os.path.lexists(place.path):
        return []
    handle = folder.open_checked(place.path, place.owner)
    try:
        found = os.listdir(handle)  # noqa: PTH208 - the folder that was checked, by descriptor
    finally:
        os.close(handle)
    return sorted((name for name in found if _NAME.fullmatch(name)), reverse=True)


def look(path: Path, owner: int, here: Here, now: float) -> Found:
    """Read once whether a ring's run lives; RingReadError."""
    with contextlib.closing(RingReader(path, owner)) as reader:
        identity = reader.identity()
        records = reader.window()
        happenings = [happening for _, happening in reader.happenings()]
    stepped = stepped_at(records)
    high = window(records).high_step_seconds if records else None
    state = life(identity.process, stepped, high, happenings, here, now)
    return Found(path, state, activity(identity.process.started, stepped, happenings))


def activity(started: float, stepped: float | None, happenings: Iterable[Happening]) -> float:
    """The time of the last sign of a run, in s since the epoch."""
    return max(started, stepped or 0.0, *(happening.time for happening in happenings), 0.0)


def clean(where: Iterable[Place], here: Here, *, everything: bool = False) -> list[Path]:
    """Remove the rings of runs that ended long ago, or too many of them; return which.

    `everything`: all that have ended. Live runs, foreign files and other users' are left alone.
    """
    removed: list[Path] = []
    for place in where:
        if place.own:
            removed += _clean_folder(place, here, everything=everything)
    return removed


def _clean_folder(place: Place, here: Here, *, everything: bool) -> Iterator[Path]:
    now = time.time()
    keep = 0 if everything else _capacity(place)
    try:
        found = [Path(place.path, name) for name in names(place)]
    except (folder.FolderError, OSError):
        return
    for index, path in enumerate(found):
        if index < keep and not _may_be_old(path, now):
            continue
        try:
            one = look(path, place.owner, here, now)
        except RingReadError:
            continue
        old = now - one.activity > KEEP_SECONDS
        # What cannot be seen from here may come back: only its age counts.
        if one.life.ended and (old or (index >= keep and one.life.certain)):
            try:
                path.unlink()
            except OSError:
                continue
            _remove_profiles(path)
            yield path


def _remove_profiles(ring: Path) -> None:
    """Remove the profiled steps that lie beside a ring."""
    profile = re.compile(re.escape(ring.stem) + _PROFILE)
    with contextlib.suppress(OSError):
        for path in ring.parent.iterdir():
            if profile.fullmatch(path.name):
                path.unlink()


def _capacity(place: Place) -> int:
    """How many rings of ended runs a folder may keep."""
    try:
        space = os.statvfs(place.path)
    except OSError:
        return KEEP_ENDED
    share = int(space.f_blocks * space.f_frsize * KEEP_SHARE / layout.FILE_BYTES)
    return min(KEEP_ENDED, max(KEEP_LEAST, share))


def _may_be_old(path: Path, now: float) -> bool:
    """False for a file that was made or changed within the time that rings are kept."""
    try:
        return now - path.lstat().st_mtime > KEEP_SECONDS
    except OSError:
        return False

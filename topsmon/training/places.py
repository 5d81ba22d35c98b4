"""The folders in which rings may lie."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from topsmon.training.recorder import folder, layout
from topsmon.units import binary_bytes

_OF_USER = re.compile(r"topsmon-([0-9]+)")


class Place(NamedTuple):
    """A folder that may hold rings, and the user that it and they must belong to."""

    path: str
    owner: int
    own: bool = True


def places(environment: Mapping[str, str] | None = None) -> tuple[Place, ...]:
    """Return the folders to look into; none on a system without them.

    Root sees the other users' private folders too, where no folder is named.
    """
    environment = os.environ if environment is None else environment
    own = own_places(environment)
    everybody = own and own[0].owner == 0 and not environment.get(folder.FOLDER_VARIABLE)
    return (*own, *_of_others()) if everybody else own


def own_places(environment: Mapping[str, str]) -> tuple[Place, ...]:
    """Return this user's folders. Asks nothing of the disk but whether there is a /dev/shm.

    A simulated machine shows a run only of a folder that was named: it must look alike everywhere.
    """
    environment = with_absolute_folder(environment)
    named = environment.get(folder.FOLDER_VARIABLE)
    if "TOPSMON_SIMULATED" in environment and not named:
        return ()
    try:
        uid = folder.user_id()
    except folder.FolderError:
        return ()
    paths = folder.candidates(environment, uid)
    if not named:
        paths = (*paths, f"/run/user/{uid}/topsmon")
    return tuple(Place(path, uid) for path in dict.fromkeys(paths))


def with_absolute_folder(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return it with the folder that the user names, if any, as seen from here and now."""
    named = environment.get(folder.FOLDER_VARIABLE)
    if not named:
        return environment
    # Links stay: the folder's check refuses them.
    return {**environment, folder.FOLDER_VARIABLE: os.path.abspath(named)}  # noqa: PTH100


def obstacle(environment: Mapping[str, str]) -> str | None:
    """Why no run can be recorded in any of this user's folders, in words; None where one can.

    Makes the folder, as a run would.
    """
    environment = with_absolute_folder(environment)
    reasons = []
    try:
        for path in folder.candidates(environment, folder.user_id()):
            reason = _unusable(path)
            if reason is None:
                return None
            reasons.append(reason)
    except folder.FolderError as error:
        return str(error)
    return "; ".join(reasons)


def _unusable(path: str) -> str | None:
    """What keeps a new ring out of a folder."""
    try:
        folder.make(path)
        handle = folder.open_checked(path)
    except folder.FolderError as error:
        return str(error)
    try:
        space, writable = os.fstatvfs(handle), os.access(path, os.W_OK)
    except OSError as error:
        return f"{path}: {error.strerror}"
    finally:
        os.close(handle)
    if not writable:
        return f"{path}: cannot be written to (a read-only file system?)"
    free = space.f_bavail * space.f_frsize
    if free < layout.FILE_BYTES:
        return (
            f"{path}: {binary_bytes(free)} free, a recording takes "
            f"{binary_bytes(layout.FILE_BYTES)}; make room or name another folder in "
            f"{folder.FOLDER_VARIABLE}"
        )
    return None


def _of_others() -> Iterator[Place]:
    """The folders of all users but root."""
    for parent in ("/dev/shm", "/tmp"):  # noqa: S108 - folders in them are checked
        for name in _listed(parent):
            match = _OF_USER.fullmatch(name)
            if match is not None and int(match[1]):
                yield Place(f"{parent}/{name}", int(match[1]), own=False)
    for name in _listed("/run/user"):
        if name.isdecimal() and int(name):
            yield Place(f"/run/user/{name}/topsmon", int(name), own=False)


def _listed(path: str) -> list[str]:
    try:
        return sorted(entry.name for entry in Path(path).iterdir())
    except OSError:
        return []

"""Making a ring's file: in a folder that was checked, whole, and never over another one."""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from . import coding, folder, layout

FILE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | FILE_FLAGS
_NAMES_MAX = 100


class Made(NamedTuple):
    """A new file: its path, its mapping, and a descriptor of it that the caller closes."""

    path: str
    mapping: mmap.mmap
    handle: int


def new_file(place: str, stem: str, spare: int) -> Made:
    """Make an empty ring in a folder; FolderError, OSError. `spare` bytes stay free beside it."""
    directory = _open_with_room(place, spare)
    try:
        name, handle = _create_exclusively(directory, stem)
        try:
            mapping = _reserve_and_map(handle, coding.preamble())
        except BaseException:
            os.unlink(name, dir_fd=directory)
            os.close(handle)
            raise
    finally:
        os.close(directory)
    return Made(_path(place, name), mapping, handle)


def whole_file(place: str, name: str, content: bytes, spare: int) -> Made:
    """Make a ring with all its content, which gets its name only then; FolderError, OSError.

    A name that is taken is not taken over: FileExistsError.
    """
    directory = _open_with_room(place, spare)
    # Readers take no name that begins so for a ring.
    unfinished = f".{name}.{os.getpid()}"
    try:
        handle = os.open(unfinished, _CREATE, 0o600, dir_fd=directory)
        try:
            mapping = _reserve_and_map(handle, content)
            # Unlike a rename it never replaces a file.
            os.link(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.close(handle)
            raise
        finally:
            os.unlink(unfinished, dir_fd=directory)
    finally:
        os.close(directory)
    return Made(_path(place, name), mapping, handle)


def _open_with_room(place: str, spare: int) -> int:
    """A descriptor of the folder, which is made if it is not there; FolderError, OSError."""
    folder.make(place)
    directory = folder.open_checked(place)
    try:
        space = os.fstatvfs(directory)
    except OSError:
        os.close(directory)
        raise
    if spare and space.f_bavail * space.f_frsize < spare + layout.FILE_BYTES:
        os.close(directory)
        raise folder.FolderError(f"{place}: nearly full")
    return directory


def _create_exclusively(directory: int, stem: str) -> tuple[str, int]:
    """Create a file that was not there; its name gets a number if the plain one is taken.

    Two containers that share a folder may have the same PID in the same second.
    """
    for attempt in range(1, _NAMES_MAX):
        name = f"{stem}{layout.SUFFIX}" if attempt == 1 else f"{stem}-{attempt}{layout.SUFFIX}"
        try:
            return name, os.open(name, _CREATE, 0o600, dir_fd=directory)
        except FileExistsError:
            continue
    raise FileExistsError(f"{stem}{layout.SUFFIX} and {_NAMES_MAX} like it exist")


def _reserve_and_map(handle: int, content: bytes) -> mmap.mmap:
    # A mapped page that the disk has no room for later would be SIGBUS: the end of the training.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, layout.FILE_BYTES)
    else:
        os.write(handle, bytes(layout.FILE_BYTES))
    if os.fstat(handle).st_size != layout.FILE_BYTES:
        raise OSError(0, "the file system reserves no space")
    mapping = mmap.mmap(handle, layout.FILE_BYTES)
    mapping[: len(content)] = content
    return mapping


def _path(place: str, name: str) -> str:
    return f"{place.rstrip('/')}/{name}"

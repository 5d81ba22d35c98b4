"""Names of a recording's files: the newest bears the name given, the older ones a number in it.

`run.topsmon.jsonl.zst` is being written, `run.1.topsmon.jsonl.zst` and `run.2.topsmon.jsonl.zst`
came before it, in this order.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

SUFFIX = ".topsmon.jsonl.zst"
_SUFFIXES = (SUFFIX, ".topsmon.jsonl", ".jsonl.zst", ".jsonl")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


def default_directory() -> Path:
    """Where recordings go that were given no name: the XDG state directory."""
    import platformdirs

    return platformdirs.user_state_path("topsmon") / "recordings"


def dated(directory: Path, wall: float) -> Path:
    """A name from the time of the beginning, in s since the epoch; local time."""
    return directory / (time.strftime("topsmon-%Y%m%d-%H%M%S", time.localtime(wall)) + SUFFIX)


def completed(path: Path) -> Path:
    """Return a name that says its format; one without gets the usual suffix."""
    return path if split(path.name)[1] else path.with_name(path.name + SUFFIX)


def split(name: str) -> tuple[str, str]:
    """Return a name without its suffix, and the suffix; "" if it has none of ours."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)], suffix
    return name, ""


def is_compressed(path: Path) -> bool:
    """Tell whether a recording of this name is to be compressed."""
    return path.name.endswith(".zst")


def numbered(path: Path, part: int) -> Path:
    """The name that a part has once a newer one has taken its own."""
    stem, suffix = split(path.name)
    return path.with_name(f"{stem}.{part}{suffix}")


def older_parts(path: Path) -> list[tuple[int, Path]]:
    """The numbered files beside `path`, oldest first; raises OSError."""
    stem, suffix = split(path.name)
    if not suffix or not path.parent.is_dir():
        return []
    found = []
    for other in path.parent.iterdir():
        name = other.name
        if not (name.startswith(stem + ".") and name.endswith(suffix)):
            continue
        middle = name[len(stem) + 1 : len(name) - len(suffix)]
        if _NUMBER.fullmatch(middle):
            found.append((int(middle), other))
    return sorted(found)


def parts(path: Path) -> list[Path]:
    """All files of the recording that `path` names, oldest first; raises OSError."""
    return [*(other for _, other in older_parts(path)), *([path] if path.exists() else [])]

"""What a process can tell of itself: for a run's identity, and for whether it still lives.

The files of /proc are described in proc(5); where there is no /proc, nothing is told.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import layout

COMMAND_LIMIT, COMMAND_READ = 4096, 65536
_STARTED_BY_MULTIPROCESSING = ("--multiprocessing-fork", "from multiprocessing.forkserver import")
"""In the command line of a child of the start methods spawn and forkserver."""
_STARTED_FIELD = 22
_RANK_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"),
}
"""torchrun's names, then those of Open MPI's mpirun."""


def identity_of_process() -> dict[str, Any]:
    """Return all fields of a run's identity that the process itself knows."""
    stat = status_of("self")
    ticks = None if stat is None else stat[1]
    identity: dict[str, Any] = {
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "uid": os.geteuid() if hasattr(os, "geteuid") else None,
        "hostname": socket.gethostname(),
        "started": _started(ticks),
        "process_started": ticks,
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
        "command": _command(),
        "launch": os.environ.get("TOPSMON_LAUNCH") or None,
        "entry": os.environ.get("TOPSMON_ENTRY", ""),
        "python_version": platform.python_version(),
        "recorder_version": str(layout.VERSION),
    }
    identity.update(ranks(os.environ))
    identity.update(_place_in_group(sys.modules.get("torch.distributed")))
    return identity


def ranks(environment: Mapping[str, str]) -> dict[str, int | None]:
    """Return rank, local rank and world size as a launcher has set them, None where it has not."""
    found: dict[str, int | None] = {}
    for field, variables in _RANK_VARIABLES.items():
        values = (environment.get(name, "") for name in variables)
        found[field] = next((int(value) for value in values if value.isdecimal()), None)
    return found


def _place_in_group(distributed: Any) -> dict[str, int]:
    """Rank and world size in torch's default process group: Lightning sets no RANK at all."""
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    except (AttributeError, RuntimeError, ValueError):
        pass  # still being imported, or not usable in this process: the launcher's words stand
    return {}


def status_of(pid: object, proc: str = "/proc") -> tuple[str, int] | None:
    """Return a process's state letter and start (clock ticks after boot), None if there is none.

    The second field of /proc/PID/stat is a name in parentheses that may itself hold any character.
    """
    try:
        with Path(proc, str(pid), "stat").open("rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[_STARTED_FIELD - 3])
    except (OSError, ValueError, IndexError):
        return None


def boot_id(proc: str = "/proc") -> str:
    """Return the kernel's random name of this boot, "" where it has none."""
    try:
        with Path(proc, "sys/kernel/random/boot_id").open("rb") as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def pid_namespace(proc: str = "/proc") -> str:
    """Return the name of this process's PID namespace, "" where it has none."""
    try:
        return str(Path(proc, "self/ns/pid").readlink())
    except OSError:
        return ""


def booted() -> float | None:
    """Return the wall-clock time of the boot in s, None where it is not known."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return None if clock is None else time.time() - time.clock_gettime(clock)


def _started(ticks: int | None) -> float:
    """Wall-clock time of the process's start; now, where the kernel does not tell."""
    boot = booted()
    if ticks is None or boot is None:
        return time.time()
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def _command() -> str:
    try:
        with Path("/proc/self/cmdline").open("rb") as file:
            data = file.read(COMMAND_READ)
    except OSError:
        words = sys.argv
    else:
        words = data.decode("utf-8", "replace").rstrip("\0").split("\0")
        if any(mark in word for word in words for mark in _STARTED_BY_MULTIPROCESSING):
            # Such a child has its parent's arguments; its own command line names no script.
            words = [words[0], *sys.argv]
    return _cut(words)


def _cut(words: Sequence[str]) -> str:
    """As many whole words as there is room for; a first word that is too long alone is cut."""
    text = " ".join(words)
    if len(text) <= COMMAND_LIMIT:
        return text
    return text[: COMMAND_LIMIT + 1].rpartition(" ")[0] or text[:COMMAND_LIMIT]

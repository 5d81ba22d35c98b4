"""Who a process is: its name, command line, user, age, parents; and which ones are topsmon's own.

Command lines and names of users are asked for in threads: the first may be locked by a process
that hangs, the second come from a slow directory service.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from topsmon import events
from topsmon.devices.background import Background
from topsmon.devices.process_files import start_ticks
from topsmon.devices.text import valid_text

COMMAND_LIMIT = 1000
"""Characters of a command line that are kept; some programs have 100 kB of arguments."""
ANCESTORS_MOST = 12
FIRST_NAMESPACE = "pid:[4026531836]"
"""The PID namespace that the machine booted with (PROC_PID_INIT_INO, linux/proc_ns.h)."""
_KTHREADD = 2
_FAMILY_GENERATIONS = 4
_GONE = (psutil.Error, OSError, ValueError, OverflowError)

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Details:
    """What does not change about a process. `process` None: it is there, and hidden from us.

    `started` is wall-clock time in s, `start_ticks` the kernel's own figure. `uses_nvidia` tells
    whether the NVIDIA driver is mapped.
    """

    process: psutil.Process | None
    name: str | None = None
    command: str | None = None
    uid: int | None = None
    own: bool = False
    kernel: bool = False
    uses_nvidia: bool = False
    started: float | None = None
    start_ticks: int | None = None
    ancestors: tuple[events.Ancestor, ...] = ()


@dataclass(frozen=True)
class Family:
    """How to tell topsmon's own processes: this one, its screen, and the screen's probers."""

    pid: int
    parent: int | None = None

    def owns(self, process: psutil.Process) -> bool:
        """True for a member; another topsmon's processes are not ours."""
        current: psutil.Process | None = process
        for _ in range(_FAMILY_GENERATIONS):
            if current is None:
                return False
            if current.pid in {self.pid, self.parent}:
                return current is process or current.pid == self.pid
            command = attempt(current.cmdline) or []
            if (
                self.parent is not None
                and attempt(current.ppid) == self.parent
                and is_worker_command(command)
            ):
                return True
            current = attempt(current.parent)
        return False


def own_family(*, child_of_screen: bool) -> Family:
    """Return the family of this process: with its parent where that is topsmon's screen."""
    return Family(os.getpid(), os.getppid() if child_of_screen else None)


def is_worker_command(command: Sequence[str]) -> bool:
    """True for the command lines of topsmon's children: `-m topsmon...` or .../topsmon/probes."""
    for position, word in enumerate(command[:6]):
        if word == "-m" and position + 1 < len(command):
            return command[position + 1].split(".")[0] == "topsmon"
        parts = word.rstrip("/").removesuffix("/__main__.py").split("/")
        if position > 0 and parts[-2:] == ["topsmon", "probes"]:
            return True
    return False


def are_pids_foreign(*, container: bool) -> bool:
    """True where the driver's PIDs may be those of another namespace than ours.

    In the machine's first namespace they cannot be, not even in a container that shares it.
    """
    try:
        return str(Path("/proc/self/ns/pid").readlink()) != FIRST_NAMESPACE
    except OSError:
        return container


def attempt(read: Callable[[], _Value]) -> _Value | None:
    """Return what psutil tells, None where the process is gone or not ours to look at."""
    try:
        return read()
    except _GONE:
        return None


def describe(pid: int, family: Family, *, foreign: bool = False) -> Details | None:
    """Look a process up, None if there is none.

    `foreign`: the PID may be that of another namespace. Then only a process that has the driver
    mapped is taken for it, and nothing else is looked at.
    """
    uses_nvidia = _uses_nvidia(pid)
    if foreign and not uses_nvidia:
        return None
    process = attempt(lambda: psutil.Process(pid))
    if process is None:
        return Details(None) if not foreign and _is_hidden(pid) else None
    command = attempt(process.cmdline)
    ancestors = _ancestors(process)
    first = ancestors[0].pid if ancestors else attempt(process.ppid)
    return Details(
        process=process,
        name=valid_text(attempt(process.name), COMMAND_LIMIT),
        command=_command_line(command),
        uid=_uid(process),
        own=family.owns(process),
        kernel=not command and first in {0, _KTHREADD},
        uses_nvidia=uses_nvidia,
        started=attempt(process.create_time),
        start_ticks=start_ticks(pid),
        ancestors=ancestors,
    )


def _ancestors(process: psutil.Process) -> tuple[events.Ancestor, ...]:
    """The parent, its parent and so on, without the first process of all."""
    found: list[events.Ancestor] = []
    current = attempt(process.parent)
    while current is not None and current.pid > 1 and len(found) < ANCESTORS_MOST:
        found.append(events.Ancestor(pid=current.pid, name=valid_text(attempt(current.name), 64)))
        current = attempt(current.parent)
    return tuple(found)


def _command_line(arguments: Sequence[str] | None) -> str | None:
    if not arguments:
        return None
    text = valid_text(" ".join(arguments), COMMAND_LIMIT + 1)
    assert text is not None
    return text if len(text) <= COMMAND_LIMIT else f"{text[:COMMAND_LIMIT]}…"


def _uid(process: psutil.Process) -> int | None:
    uids = attempt(process.uids)
    return None if uids is None else int(uids.real)


def _is_hidden(pid: int) -> bool:
    """True for a process of another user that /proc does not show (its option hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _uses_nvidia(pid: int) -> bool:
    """True if a process has the NVIDIA driver mapped: proof that a PID from NVML is this one."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123 - binary lines of the kernel
        return any(b"/dev/nvidia" in line or b"libcuda" in line for line in file)
    return False


def _user_name(uid: int) -> str:
    """The user's name, the number where nobody knows one."""
    try:
        import pwd

        return valid_text(pwd.getpwuid(uid).pw_name, 64) or str(uid)
    except (ImportError, KeyError, OSError, ValueError, OverflowError):
        return str(uid)


class Lookup:
    """Describes processes and names their users; what is not known in time comes later."""

    def __init__(self, family: Family, *, foreign: bool = False) -> None:
        self._details: Background[int, Details | None] = Background(
            lambda pid: describe(pid, family, foreign=foreign), "processes"
        )
        self._users: Background[int, str] = Background(_user_name, "users")

    def details(self, pids: Iterable[int], patience: float) -> dict[int, Details | None]:
        """Return what is known of the processes, waiting `patience` seconds for the rest."""
        wanted = set(pids)
        for pid in wanted:
            if not _is_same(self._details.known(pid), pid):
                self._details.forget(pid)
        known = self._details.get(wanted, patience)
        return {pid: known.get(pid) for pid in wanted}

    def forget(self, pid: int) -> None:
        """Look a process up anew: its parent has changed."""
        self._details.forget(pid)

    def users(self, uids: Iterable[int], patience: float) -> dict[int, str]:
        """Return the names of users; the number of one whose name has not come yet."""
        wanted = set(uids)
        names = self._users.get(wanted, patience)
        return {uid: names.get(uid, str(uid)) for uid in wanted}


def _is_same(details: Details | None, pid: int) -> bool:
    """A PID may have been given to another process; what was not found may be there now."""
    if details is None:
        return False
    if details.process is None:
        return _is_hidden(pid)
    return bool(attempt(details.process.is_running))

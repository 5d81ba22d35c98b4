"""What the kernel tells of one process, from its files under /proc; no other library is needed.

The command line and the environment lie in the process's own memory: reading them waits for a
process that is stuck in the kernel. Read them in a process that can be given up.
"""

from __future__ import annotations

from pathlib import Path

_START_FIELD = 19
"""Place of the start time among the fields of /proc/PID/stat after the name (proc(5): 22)."""


def start_ticks(pid: int) -> int | None:
    """Clock ticks after boot at which a process started; with its PID that names it for ever."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return None


def status(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status as heads and texts, {} where it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {head: value.strip() for head, _, value in pairs}


def link(pid: int, name: str) -> str | None:
    """Where a link of /proc/PID leads ("exe", "cwd"), None where it cannot be read."""
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink())
    except OSError:
        return None


def words(pid: int, name: str) -> list[bytes]:
    """The strings that end in a zero byte of "cmdline" or "environ". Raises OSError; may hang."""
    data = Path(f"/proc/{pid}/{name}").read_bytes()
    return data.removesuffix(b"\0").split(b"\0") if data else []

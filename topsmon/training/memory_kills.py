"""Whether the kernel has killed processes for want of memory: a hint for a run that got SIGKILL."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kills:
    """Processes that the kernel has killed for want of memory, up to now; None: not known."""

    of_group: int | None
    of_machine: int | None

    @classmethod
    def read(cls) -> Kills:
        """Read cgroup v2's memory.events of this process's group, and /proc/vmstat."""
        group = ""
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/cgroup").read_text().splitlines():
                if line.startswith("0::"):
                    group = line.removeprefix("0::").strip("/")
        events = Path("/sys/fs/cgroup", group, "memory.events")
        return cls(_counter(events), _counter(Path("/proc/vmstat")))

    def words_since(self, before: Kills) -> str:
        """What has come since an earlier reading, in words; "" for nothing."""
        if _rose(before.of_group, self.of_group):
            return "the kernel killed for want of memory in this control group (its memory limit)"
        if _rose(before.of_machine, self.of_machine):
            return "the kernel killed for want of memory on this machine"
        return ""


def _counter(path: Path) -> int | None:
    """The count named oom_kill of a file of names and numbers."""
    try:
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    except (OSError, ValueError):
        pass
    return None


def _rose(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before

"""What is known of the machine: its kind, its memory, how busy its processors are.

Read from the kernel's files; psutil stands in where there are none. All paths start at a root
directory so that tests can bring their own.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from topsmon.devices.text import valid_text

ROOT = Path("/")
_CONTAINER_WORDS = ("docker", "kubepods", "containerd", "lxc", "libpod", "podman")


@dataclass(frozen=True)
class HostFacts:
    """What does not change while we run."""

    hostname: str
    system: str
    container: bool = False
    wsl: bool = False
    jetson: bool = False
    memory_total_bytes: int | None = None


class Memory(NamedTuple):
    """Memory in bytes that programs may use, and in words where the figures come from."""

    used_bytes: int | None
    total_bytes: int | None
    note: str = ""


class CpuTimes(NamedTuple):
    """Busy and total time of one logical CPU since the start, in ticks or seconds."""

    busy: float
    total: float


def shown_root() -> Path:
    """Return the root of what this host shows of itself: a simulated one may show its own files."""
    return Path(os.environ.get("TOPSMON_SIMULATED_ROOT", ROOT))


def read_facts(root: Path = ROOT) -> HostFacts:
    """Return what can be told about this machine at once."""
    return HostFacts(
        hostname=socket.gethostname(),
        system=f"{platform.system()} {platform.release()}",
        container=is_container(root),
        wsl=is_wsl(root),
        jetson=(root / "etc/nv_tegra_release").exists(),
        memory_total_bytes=_host_memory()[1],
    )


def is_container(root: Path = ROOT) -> bool:
    """True in a container whose runtime leaves a sign; PIDs from NVML are then the host's."""
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    if root == ROOT and (os.environ.get("container") or os.environ.get("KUBERNETES_SERVICE_HOST")):  # noqa: SIM112 - the variable's name
        return True
    text = read_text(root / "proc/1/cgroup") or ""
    return any(word in text for word in _CONTAINER_WORDS)


def is_wsl(root: Path = ROOT) -> bool:
    """True in the Windows Subsystem for Linux: its kernel names its maker."""
    return "microsoft" in (read_text(root / "proc/sys/kernel/osrelease") or "").lower()


def read_text(path: Path) -> str | None:
    """Return a file's text, None where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the decimal number that a file of the kernel holds, None where it holds none."""
    text = read_text(path)
    with contextlib.suppress(ValueError):
        return int((text or "").strip())
    return None


# Memory -------------------------------------------------------------------------------------------


def _host_memory() -> tuple[int | None, int | None]:
    """Used and total bytes of the machine; used is what is not available to new programs."""
    try:
        memory = psutil.virtual_memory()
    except (OSError, psutil.Error, RuntimeError):
        return None, None
    return memory.total - memory.available, memory.total


def host_memory() -> Memory:
    """Return the memory of the whole machine."""
    return Memory(*_host_memory())


def usable_memory(root: Path = ROOT) -> Memory:
    """Return the memory we may use: the cgroup's where it is limited, else the machine's."""
    used, total = _host_memory()
    limit, cgroup_used = cgroup_memory(root)
    if limit is None or (total is not None and limit >= total):
        return Memory(used, total)
    of_host = "" if total is None else f" of {total / 2**30:.1f} GiB"
    return Memory(cgroup_used, limit, f"cgroup limit: {limit / 2**30:.1f} GiB{of_host}")


def cgroup_memory(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Return the lowest memory limit on our cgroup's way up and the usage there, in bytes.

    Usage leaves out inactive file cache, as container runtimes count it. None: no limit.
    """
    best: tuple[int, int | None] | None = None
    for directory, names in _cgroup_directories(root):
        limit = read_number(directory / names.limit)
        if limit is not None and limit < 1 << 60 and (best is None or limit < best[0]):
            best = limit, _cgroup_usage(directory, names)
    return best or (None, None)


class _Names(NamedTuple):
    limit: str
    usage: str
    inactive: str


_V2 = _Names("memory.max", "memory.current", "inactive_file")
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _cgroup_directories(root: Path) -> list[tuple[Path, _Names]]:
    """The cgroup of this process and its parents, for versions 2 and 1."""
    found: list[tuple[Path, _Names]] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            base, names = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        # In a container the path may be the host's: what does not exist here is passed over.
        parts = [part for part in path.split("/") if part not in {"", ".."}]
        found += [(base.joinpath(*parts[:depth]), names) for depth in range(len(parts), -1, -1)]
    return found


def _cgroup_usage(directory: Path, names: _Names) -> int | None:
    usage = read_number(directory / names.usage)
    if usage is None:
        return None
    for line in (read_text(directory / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == names.inactive and value.strip().isdigit():
            return max(0, usage - int(value))
    return usage


# Time ---------------------------------------------------------------------------------------------


def cpu_times(root: Path = ROOT) -> dict[int, CpuTimes]:
    """Return the times of every online logical CPU by its number.

    The fields of /proc/stat are user, nice, system, idle, iowait, irq, softirq, steal, guest,
    guest_nice (proc(5)); guest time is part of user time, waiting for a disk is idle.
    """
    text = read_text(root / "proc/stat")
    if text is None:
        return _psutil_times()
    times: dict[int, CpuTimes] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name.startswith("cpu") or not name[3:].isdigit():
            continue
        with contextlib.suppress(ValueError):
            fields = [int(field) for field in rest.split()[:8]]
            if len(fields) >= 4:
                total = float(sum(fields))
                times[int(name[3:])] = CpuTimes(total - sum(fields[3:5]), total)
    return times


def _psutil_times() -> dict[int, CpuTimes]:
    times = {}
    for number, one in enumerate(psutil.cpu_times(percpu=True)):
        idle = one.idle + getattr(one, "iowait", 0.0)
        guest = getattr(one, "guest", 0.0) + getattr(one, "guest_nice", 0.0)
        total = sum(one) - guest
        times[number] = CpuTimes(total - idle, total)
    return times


def busy_ratio(
    before: Mapping[int, CpuTimes], after: Mapping[int, CpuTimes], cpus: frozenset[int] | None
) -> float | None:
    """Return the busy share, 0..1, of the CPUs between two readings; None if no time was counted.

    `cpus` None means all.
    """
    busy = total = 0.0
    for number, times in after.items():
        if number in before and (cpus is None or number in cpus):
            busy += times.busy - before[number].busy
            total += times.total - before[number].total
    if total <= 0:
        return None
    # Idle time may step back by a tick (proc(5)), which must not show as more than everything.
    return min(max(busy / total, 0.0), 1.0)


def usable_cpus() -> frozenset[int]:
    """Numbers of the logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cpu_name(root: Path = ROOT) -> str:
    """Return the processor's name as the kernel tells it, else its architecture."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model", "cpu model", "Hardware"} and value.strip():
            return valid_text(" ".join(value.split())) or platform.machine()
    model = (read_text(root / "proc/device-tree/model") or "").strip("\0 \n")
    return model or platform.machine() or "CPU"


def load_1_minute() -> float | None:
    """Return the load average over one minute, None where there is none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None

"""What this process may use of the machine: CPUs, instruction sets, memory, and the threads' plan.

`root` stands for "/" and is another folder in tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")
ISA_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
)


class Cpus(NamedTuple):
    """CPUs in reach: `logical` by affinity, `cores` the physical ones among them, `quota` in CPUs.

    `quota` is the cgroup's limit on CPU time, None without one.
    """

    logical: int
    cores: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Threads that can really run at once, one a core."""
        return self.cores if self.quota is None else max(1, min(self.cores, int(self.quota)))

    @property
    def usable_logical(self) -> int:
        """The same with hardware threads counted."""
        return self.logical if self.quota is None else max(1, min(self.logical, int(self.quota)))


def read_cpus(root: Path = ROOT, affinity: frozenset[int] | None = None) -> Cpus:
    """Read affinity, core topology and cgroup quota."""
    if affinity is None:
        affinity = allowed_cpus()
    siblings = set()
    for cpu in affinity:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings.add(_read(topology) or f"cpu{cpu}")
    return Cpus(len(affinity), max(1, len(siblings)), cpu_quota(root))


def allowed_cpus() -> frozenset[int]:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that the cgroups allow (the tightest on the way up), None without limit.

    Version 2: cpu.max holds "quota period" or "max period". Version 1: cpu.cfs_quota_us, -1 = none.
    """
    limits = []
    for folder in _cgroup_folders(root, "cpu"):
        text = _read(folder / "cpu.max")
        if text is None:
            quota = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
            text = f"{quota} {period}" if quota and period else ""
        match = re.fullmatch(r"(\d+) (\d+)", text)
        if match and int(match[2]) > 0:
            limits.append(int(match[1]) / int(match[2]))
    return min(limits, default=None)


def free_memory_bytes(root: Path = ROOT) -> int | None:
    """Memory that can be had without swapping, within the cgroups' limits; None if unreadable."""
    text = _read(root / "proc/meminfo") or ""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    amounts = [int(match[1]) * 1024] if match else []
    for folder in _cgroup_folders(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(folder / limit_name) or "", _read(folder / used_name) or ""
            if limit.isdigit() and used.isdigit():
                amounts.append(max(0, int(limit) - int(used)))
    return min(amounts, default=None)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's cgroups for a controller, and all above them."""
    folders = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = root / "sys/fs/cgroup"
        if not controllers:
            tops = [base, base / "unified"]
        elif controller in controllers.split(","):
            tops = [base / controller, base / controllers]
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for top in tops:
            folders += [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return folders


def seconds_waited(root: Path = ROOT) -> float | None:
    """Seconds that this process's threads were ready to run but had no core; None if unreadable.

    The second field of schedstat, in ns (kernel, Documentation/scheduler/sched-stats.rst).
    """
    total = None
    for path in (root / "proc/self/task").glob("*/schedstat"):
        fields = (_read(path) or "").split()
        if len(fields) >= 2 and fields[1].isdigit():
            total = (total or 0.0) + int(fields[1]) / 1e9
    return total


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """Instruction-set flags from /proc/cpuinfo ("flags" on x86, "Features" on Arm)."""
    text = _read(root / "proc/cpuinfo") or ""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def cpu_name(root: Path = ROOT) -> str | None:
    """Model name from /proc/cpuinfo, None where it has none."""
    text = _read(root / "proc/cpuinfo") or ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else None


NATIVE_FLAGS: dict[str, tuple[str, ...]] = {
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "fp16": ("avx512_fp16", "amx_fp16", "fphp", "asimdhp"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"),
    "fp8": ("amx_fp8", "f8mm4", "f8mm8"),
}
"""Flags of instructions that multiply in a type; without one it is emulated in another."""


def emulation(precision: str, flags: frozenset[str]) -> str | None:
    """Why a precision is emulated on a CPU with these flags; None where it is native."""
    native = NATIVE_FLAGS.get(precision)
    if native is None or flags.intersection(native):
        return None
    name = "FP8" if precision == "fp8" else precision.upper()
    widest = next((label for flag, label in _WIDEST if flag in flags), None)
    return f"no native {name} on this CPU" + (f" ({widest})" if widest else "")


_WIDEST = (
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
    ("avx", "AVX"),
    ("sve", "SVE"),
    ("asimd", "NEON"),
)


class ThreadPlan(NamedTuple):
    """Threads to measure with, and what the user should know about them."""

    threads: int
    notes: tuple[str, ...]


def plan_threads(default: int, cpus: Cpus, environment: Mapping[str, str]) -> ThreadPlan:
    """Choose the threads to measure with; `default` is what torch would take by itself.

    Anything from one thread a core to one a hardware thread is left alone. Too many threads wait
    for each other and too few leave cores idle: then one a core is used, and both are said.
    """
    settings = [f"{name}={environment[name]}" for name in THREAD_VARIABLES if name in environment]
    if cpus.usable <= default <= max(cpus.usable, cpus.usable_logical):
        asked = [_number(setting.partition("=")[2]) for setting in settings]
        if max(asked, default=0) <= cpus.usable_logical:
            return ThreadPlan(default, ())
        note = (
            f"{', '.join(settings)} on {_count(cpus.usable, 'usable core')}: torch takes "
            f"{default} by itself, other libraries may take too many; set OMP_NUM_THREADS={default}"
        )
        return ThreadPlan(default, (note,))
    because = f" ({', '.join(settings)})" if settings else ""
    limit = f" by a cgroup quota of {cpus.quota:g} CPUs" if cpus.quota is not None else ""
    words = "too many" if default > cpus.usable else "cores left idle"
    cure = f"OMP_NUM_THREADS={cpus.usable} or torch.set_num_threads({cpus.usable})"
    note = (
        f"torch takes {_count(default, 'thread')}{because} on "
        f"{_count(cpus.usable, 'usable core')}{limit}: {words}, programs started so run slower; "
        f"measured with {cpus.usable}, set {cure} in yours"
    )
    return ThreadPlan(cpus.usable, (note,))


def isa_notes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that keep libraries from instruction sets that the CPU has."""
    return tuple(
        f"{name}={environment[name]} limits the instruction sets that libraries use"
        for name in ISA_VARIABLES
        if environment.get(name)
    )


def _number(text: str) -> int:
    """The first number of OMP_NUM_THREADS, which may be a list by nesting level; 0 without one."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None

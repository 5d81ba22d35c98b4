"""What the kernel tells about the CPU: model, instruction sets, usable cores, quota, clock.

Read under a root directory, so that a tree of files can stand in for /proc and /sys.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
MOST_CPUS = 65535
"""Above any kernel's NR_CPUS: a damaged list must not become a set of billions."""
_CPU_RANGE = re.compile(r"(?<![\d-])(\d{1,5})(?:-(\d+))?(?![\d-])", re.ASCII)
_NAMED_CLOCK = re.compile(r"@\s*([0-9.]+)\s*GHz")


class Core(NamedTuple):
    """One physical core that this process may use.

    `model` is that of its own (the part number on Arm, else the CPU's), `atom` marks an efficiency
    core of a hybrid Intel CPU, `max_mhz` is cpufreq's maximum.
    """

    model: int | None
    atom: bool = False
    max_mhz: float | None = None


class CpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU as this process may use it.

    `vendor` is the implementer number on Arm. `cores` are distinct physical cores within the
    affinity mask, SMT siblings once. `quota_cpus` is the cgroup's CPU quota, None without one.
    `nominal_mhz` is a clock without boost, from `nominal_source`.
    """

    system: str
    machine: str
    name: str | None = None
    vendor: str | None = None
    family: int | None = None
    model: int | None = None
    flags: frozenset[str] = frozenset()
    cores: tuple[Core, ...] = ()
    logical_cpus: int = 0
    cores_are_logical: bool = False
    quota_cpus: float | None = None
    nominal_mhz: float | None = None
    nominal_source: str = ""
    virtual: bool = False


def read_cpu_facts(
    root: Path = ROOT, system: str | None = None, machine: str | None = None
) -> CpuFacts:
    """Read the facts; what cannot be read stays None or empty, and nothing is raised."""
    system = system or platform.system()
    machine = machine or platform.machine()
    blocks = _cpuinfo(root)
    if system != "Linux" or not blocks:
        return CpuFacts(system=system, machine=machine, name=platform.processor() or None)
    first = next(iter(blocks.values()))
    allowed = _allowed(root, blocks)
    cores, are_logical = _cores(root, allowed, blocks)
    name = first.get("model name") or first.get("Model") or first.get("Hardware")
    virtual = "hypervisor" in first.get("flags", "").split()
    nominal, nominal_source = _nominal(name, first.get("cpu MHz"), virtual=virtual)
    return CpuFacts(
        system=system,
        machine=machine,
        name=name,
        vendor=first.get("vendor_id") or first.get("CPU implementer"),
        family=_integer(first.get("cpu family")),
        model=_integer(first.get("model") or first.get("CPU part")),
        flags=frozenset((first.get("flags") or first.get("Features") or "").split()),
        cores=cores,
        logical_cpus=len(allowed),
        cores_are_logical=are_logical,
        quota_cpus=cpu_quota(root),
        nominal_mhz=nominal,
        nominal_source=nominal_source,
        virtual=virtual,
    )


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the tightest cgroup CPU quota of this process in CPUs, None where there is none."""
    quotas = [
        quota
        for mount, relative, version in _cpu_cgroups(root)
        for quota in _quotas_up(mount, relative, version)
    ]
    return min(quotas, default=None)


def parse_cpu_list(text: str) -> set[int]:
    """Return the numbers of a kernel CPU list: "0-2,5" -> {0, 1, 2, 5}; nonsense is left out."""
    numbers: set[int] = set()
    for first, last in _CPU_RANGE.findall(text):
        numbers.update(range(int(first), min(int(last or first), MOST_CPUS) + 1))
    return numbers


def _cpuinfo(root: Path) -> dict[int, dict[str, str]]:
    """Return the fields of /proc/cpuinfo by processor number.

    Where sysfs has the topology, an x86 CPU's first entry stands for all: the kernel takes
    milliseconds to print hundreds of them.
    """
    online = parse_cpu_list(_text(root / _CPUS / "online"))
    one_is_enough = bool(online) and (root / _CPUS / f"cpu{min(online)}/topology").is_dir()
    blocks: dict[int, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in _lines(root / "proc/cpuinfo"):
        key, colon, value = line.partition(":")
        if not colon:
            if one_is_enough and "vendor_id" in fields:
                return dict.fromkeys(online, fields)
            continue
        key, value = key.strip(), value.strip()
        if key == "processor" and value.isdigit():
            fields = blocks.setdefault(int(value), {})
        fields.setdefault(key, value)
    return blocks


def _allowed(root: Path, blocks: Iterable[int]) -> list[int]:
    """Return the online CPUs in this process's affinity mask."""
    online = set(blocks)
    for line in _text(root / "proc/self/status").splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return sorted(online & parse_cpu_list(value)) or sorted(online)
    return sorted(online)


def _cores(
    root: Path, allowed: list[int], blocks: dict[int, dict[str, str]]
) -> tuple[tuple[Core, ...], bool]:
    """Return one entry a physical core, and whether logical CPUs had to be counted as cores."""
    atoms = parse_cpu_list(_text(root / "sys/devices/cpu_atom/cpus"))
    cores: dict[object, Core] = {}
    are_logical = False
    for cpu in allowed:
        identity = _identity_of_core(root, cpu, blocks[cpu])
        are_logical |= identity is None
        kilohertz = _integer(_text(root / _CPUS / f"cpu{cpu}/cpufreq/cpuinfo_max_freq"))
        cores.setdefault(
            ("cpu", cpu) if identity is None else identity,
            Core(
                model=_integer(blocks[cpu].get("model") or blocks[cpu].get("CPU part")),
                atom=cpu in atoms,
                max_mhz=kilohertz / 1000 if kilohertz else None,
            ),
        )
    return tuple(cores.values()), are_logical


def _identity_of_core(root: Path, cpu: int, fields: dict[str, str]) -> object | None:
    topology = root / _CPUS / f"cpu{cpu}/topology"
    siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
    if siblings:
        return frozenset(parse_cpu_list(siblings))
    if "core id" in fields:
        return (fields.get("physical id", "0"), fields["core id"])
    return None


def _nominal(name: str | None, current: str | None, *, virtual: bool) -> tuple[float | None, str]:
    """Return a clock without boost in MHz and where it comes from."""
    named = _NAMED_CLOCK.search(name or "")
    if named is not None:
        return float(named.group(1)) * 1000, "the model name"
    try:
        clock = float(current or "")
    except ValueError:
        return None, ""
    source = "/proc/cpuinfo, the time-stamp counter" if virtual else "/proc/cpuinfo, now"
    return clock, source


def _cpu_cgroups(root: Path) -> list[tuple[Path, str, int]]:
    """Return (mount point, path below it, version) of the hierarchies that may limit CPU time."""
    paths: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif "cpu" in controllers.split(","):
            paths["cgroup"] = path
    found = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mounted, separator, filesystem = line.partition(" - ")
        fields, kind = mounted.split(), filesystem.split()
        if not separator or len(fields) < 5 or len(kind) < 3 or kind[0] not in paths:
            continue
        if kind[0] == "cgroup" and "cpu" not in kind[2].split(","):
            continue
        relative = _below(paths[kind[0]], fields[3])
        found.append((root / fields[4].lstrip("/"), relative, 2 if kind[0] == "cgroup2" else 1))
    return found


def _below(path: str, mount_root: str) -> str:
    """Return a cgroup path relative to what is mounted; a container may see it from within."""
    prefix = mount_root.rstrip("/")
    if path == prefix or path.startswith(prefix + "/"):
        return path[len(prefix) :].strip("/")
    return ""


def _quotas_up(mount: Path, relative: str, version: int) -> list[float]:
    """Return the quotas in CPUs of a group and of all groups above it."""
    parts = [part for part in relative.split("/") if part and part != ".."]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    read = _quota_v2 if version == 2 else _quota_v1
    return [quota for folder in folders if (quota := read(folder)) is not None]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    microseconds, of = _integer(quota), _integer(period)
    return microseconds / of if microseconds and of and microseconds > 0 and of > 0 else None


def _integer(text: str | None) -> int | None:
    try:
        return int((text or "").strip(), 0)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from lines
    except OSError:
        return

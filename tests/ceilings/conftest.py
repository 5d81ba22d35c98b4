from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from topsmon import events


@pytest.fixture
def gpu() -> Callable[..., events.Device]:
    """Make the identity event of a GPU; by default the driver tells nothing but a name."""

    def make(name: str, **fields: object) -> events.Device:
        return events.Device(
            time=1.0,
            monotonic=2.0,
            source="host/gpu0",
            device="GPU-0",
            kind="gpu",
            index=0,
            name=name,
            **fields,  # type: ignore[arg-type]
        )

    return make


class Machine:
    """A tree of files that stands in for /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def x86(
        self,
        model_name: str,
        *,
        vendor: str = "GenuineIntel",
        family: int = 6,
        model: int,
        flags: str,
        cores: int,
        threads: int = 1,
        max_mhz: float | None = None,
        mhz: float = 2500.0,
        atoms: int = 0,
        atom_mhz: float | None = None,
    ) -> None:
        """SMT siblings are numbered as Linux does: core 0 has CPUs 0 and `cores`."""
        entries = []
        for cpu in range(cores * threads):
            entries.append(
                f"processor\t: {cpu}\nvendor_id\t: {vendor}\ncpu family\t: {family}\n"
                f"model\t\t: {model}\nmodel name\t: {model_name}\ncpu MHz\t\t: {mhz}\n"
                f"physical id\t: 0\ncore id\t\t: {cpu % cores}\nflags\t\t: {flags}\n"
            )
            self._topology(cpu, list(range(cpu % cores, cores * threads, cores)))
            if max_mhz is not None:
                self._frequency(cpu, max_mhz)
        first = cores * threads
        for cpu in range(first, first + atoms):
            entries.append(
                entries[0]
                .replace("processor\t: 0", f"processor\t: {cpu}")
                .replace("core id\t\t: 0", f"core id\t\t: {cpu}")
            )
            self._topology(cpu, [cpu])
            if atom_mhz is not None:
                self._frequency(cpu, atom_mhz)
        if atoms:
            self.write("sys/devices/cpu_atom/cpus", f"{first}-{first + atoms - 1}\n")
        self.write("proc/cpuinfo", "\n".join(entries) + "\n")
        self.write("sys/devices/system/cpu/online", f"0-{first + atoms - 1}\n")

    def arm(self, part: str, features: str, cores: int, max_mhz: float | None = None) -> None:
        entries = []
        for cpu in range(cores):
            entries.append(
                f"processor\t: {cpu}\nBogoMIPS\t: 243.75\nFeatures\t: {features}\n"
                f"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: {part}\n"
            )
            self._topology(cpu, [cpu])
            if max_mhz is not None:
                self._frequency(cpu, max_mhz)
        self.write("proc/cpuinfo", "\n".join(entries) + "\n")
        self.write("sys/devices/system/cpu/online", f"0-{cores - 1}\n")

    def affinity(self, cpus: str) -> None:
        self.write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{cpus}\n")

    def cgroup2(self, path: str, cpu_max: dict[str, str], mount_root: str = "/") -> None:
        """`cpu_max` maps a path below the mount point to the text of its cpu.max."""
        self.write("proc/self/cgroup", f"0::{path}\n")
        self.write(
            "proc/self/mountinfo",
            f"31 23 0:28 {mount_root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n",
        )
        for folder, text in cpu_max.items():
            self.write(f"sys/fs/cgroup/{folder}/cpu.max", text)

    def cgroup1(self, path: str, quota: str, period: str) -> None:
        self.write("proc/self/cgroup", f"5:memory:/x\n4:cpu,cpuacct:{path}\n")
        self.write(
            "proc/self/mountinfo",
            "30 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
        )
        folder = f"sys/fs/cgroup/cpu,cpuacct{path}"
        self.write(f"{folder}/cpu.cfs_quota_us", quota)
        self.write(f"{folder}/cpu.cfs_period_us", period)

    def _topology(self, cpu: int, siblings: list[int]) -> None:
        text = ",".join(str(sibling) for sibling in siblings)
        self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", text + "\n")

    def _frequency(self, cpu: int, mhz: float) -> None:
        path = f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq"
        self.write(path, f"{int(mhz * 1000)}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)

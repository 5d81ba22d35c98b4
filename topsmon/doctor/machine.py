"""The host around the devices: processors, their clock, whose processes can be seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from topsmon.devices import host
from topsmon.doctor.model import Patient, Result

_ALLOWED = frozenset({"0", "off"})


def usable_cpus(patient: Patient) -> Iterator[Result]:
    """How much of the machine's processors this process may use."""
    usable, present = len(host.usable_cpus()), os.cpu_count() or 1
    quota = cpu_quota(patient.root)
    limited = quota is not None and quota < usable
    yield Result(
        id="cpus",
        state="warn" if limited else "ok",
        finding=f"{usable} of {present} logical CPUs usable"
        + (f", but the cgroup's quota is {quota:.1f} of them" if limited else ""),
        remedy=f"Use as many threads as the quota: OMP_NUM_THREADS={max(1, int(quota))}"
        if limited and quota is not None
        else "",
    )


def cpu_quota(root: Path) -> float | None:
    """CPU time per time that the cgroup allows, None without a limit (cgroup v2, then v1)."""
    text = host.read_text(root / "sys/fs/cgroup/cpu.max")
    if text is not None:
        quota, _, period = text.strip().partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
        return None
    allowed = host.read_number(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period_us = host.read_number(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if allowed is None or not period_us or allowed <= 0:
        return None
    return allowed / period_us


def cpu_clock(patient: Patient) -> Iterator[Result]:
    """Whether the kernel tells the processor's clock; a virtual machine's mostly does not."""
    present = (patient.root / "sys/devices/system/cpu/cpu0/cpufreq").is_dir()
    yield Result(
        id="cpu-clock",
        state="ok",
        finding="told by cpufreq" if present else "not told by the kernel: topsmon measures it",
    )


def processes(patient: Patient) -> Iterator[Result]:
    """Whether other users' processes can be seen, and whose PIDs the driver tells."""
    if not any(patient.state.gpus()):
        yield Result(id="processes", state="n/a", finding="no GPU whose processes could be listed")
        return
    facts = patient.state.host
    hidden = _hidepid(patient.root)
    if hidden is not None:
        yield Result(
            id="processes",
            state="warn",
            finding=f"/proc is mounted with hidepid={hidden}: other users' processes on a GPU "
            "have a PID and no name",
            remedy="Run topsmon as root, or in the group that the mount option gid= names.",
        )
    elif facts is not None and facts.container:
        yield Result(
            id="processes",
            state="warn",
            finding="in a container: the driver tells the host's PIDs, which cannot be looked up "
            "here and are never signalled",
            remedy="Start the container with --pid=host to see them.",
        )
    else:
        yield Result(id="processes", state="ok", finding="all processes can be seen")


def _hidepid(root: Path) -> str | None:
    """The mount option that hides others' processes from us, None where there is none."""
    if os.geteuid() == 0:
        return None
    for line in (host.read_text(root / "proc/self/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[1] != "/proc":
            continue
        for option in fields[3].split(","):
            name, _, value = option.partition("=")
            if name == "hidepid" and value not in _ALLOWED:
                return value
    return None

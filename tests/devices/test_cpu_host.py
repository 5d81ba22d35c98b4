"""The CPU and the host from files of the kernel that the tests bring along."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topsmon.devices import cpu, host
from topsmon.devices.host import CpuTimes, HostFacts
from topsmon.devices.power_state import has_nvidia_device, is_asleep, sleeping_gpus
from topsmon.devices.sensors import Clock, PowerMeter, Thermometer

GIB = 1 << 30


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 64 GiB, 24 GiB of them available."""

    class Memory:
        total = 64 * GIB
        available = 24 * GIB

    monkeypatch.setattr(psutil, "virtual_memory", Memory)


def test_busy_time_by_hand(tmp_path: Path) -> None:
    """user nice system idle iowait irq softirq steal guest guest_nice; guest is part of user."""
    write(
        tmp_path,
        "proc/stat",
        "cpu  99 99 99 99 99 99 99 99 99 99\n"
        "cpu0 100 10 20 300 40 5 6 7 50 0\n"
        "cpu3 0 0 0 100 0 0 0 0 0 0\n"
        "intr 1 2 3\n",
    )
    # All but idle (300) and iowait (40) is busy; guest (50) is in user already.
    assert host.cpu_times(tmp_path) == {0: CpuTimes(148, 488), 3: CpuTimes(0, 100)}


def test_busy_ratio_counts_usable_cpus_only() -> None:
    before = {0: CpuTimes(0, 0), 1: CpuTimes(0, 0), 2: CpuTimes(0, 0)}
    after = {0: CpuTimes(90, 100), 1: CpuTimes(30, 100), 2: CpuTimes(0, 100)}
    assert host.busy_ratio(before, after, frozenset({0, 1})) == 0.6
    assert host.busy_ratio(before, after, None) == 0.4
    assert host.busy_ratio(after, after, None) is None
    assert host.busy_ratio(before, after, frozenset({7})) is None


times = st.builds(CpuTimes, st.floats(0, 1e9), st.floats(0, 1e9))


@given(st.dictionaries(st.integers(0, 7), times), st.dictionaries(st.integers(0, 7), times))
def test_busy_ratio_is_a_share_whatever_the_kernel_counts(
    before: dict[int, CpuTimes], after: dict[int, CpuTimes]
) -> None:
    ratio = host.busy_ratio(before, after, None)
    assert ratio is None or 0 <= ratio <= 1


@settings(deadline=None)
@given(st.text())
def test_any_stat_file_can_be_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.mktemp("stat")
    write(root, "proc/stat", text.encode("utf-8", "replace").decode())
    assert all(isinstance(times, CpuTimes) for times in host.cpu_times(root).values())


@pytest.mark.usefixtures("memory")
def test_memory_of_a_host_without_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/user.slice\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/memory.max", "max\n")
    assert host.usable_memory(tmp_path) == host.Memory(40 * GIB, 64 * GIB)


@pytest.mark.usefixtures("memory")
def test_memory_limit_of_a_cgroup_version_2(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/pod/box\n")
    write(tmp_path, "sys/fs/cgroup/pod/memory.max", f"{16 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/pod/memory.current", f"{9 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/pod/memory.stat", f"anon {4 * GIB}\ninactive_file {3 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/pod/box/memory.max", "max\n")
    memory = host.usable_memory(tmp_path)
    assert memory[:2] == (6 * GIB, 16 * GIB)
    assert memory.note == "cgroup limit: 16.0 GiB of 64.0 GiB"


@pytest.mark.usefixtures("memory")
def test_memory_limit_of_a_cgroup_version_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    directory = "sys/fs/cgroup/memory"
    # In a container the path is the host's, and the limit lies at the root of the mount.
    write(tmp_path, f"{directory}/memory.limit_in_bytes", f"{8 * GIB}\n")
    write(tmp_path, f"{directory}/memory.usage_in_bytes", f"{5 * GIB}\n")
    write(tmp_path, f"{directory}/memory.stat", f"total_inactive_file {GIB}\n")
    assert host.usable_memory(tmp_path)[:2] == (4 * GIB, 8 * GIB)


@pytest.mark.usefixtures("memory")
def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert host.usable_memory(tmp_path).note == ""


def test_signs_of_a_container(tmp_path: Path) -> None:
    assert not host.is_container(tmp_path)
    write(tmp_path, "proc/1/cgroup", "0::/kubepods/pod1\n")
    assert host.is_container(tmp_path)


@pytest.mark.parametrize(
    ("release", "wsl"),
    [("5.15.153.1-microsoft-standard-WSL2\n", True), ("6.8.0-45-generic\n", False)],
)
def test_wsl_is_known_by_its_kernel(tmp_path: Path, release: str, wsl: bool) -> None:
    write(tmp_path, "proc/sys/kernel/osrelease", release)
    assert host.is_wsl(tmp_path) is wsl


def test_names_of_processors(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9654  96-Core\n")
    assert host.cpu_name(tmp_path) == "AMD EPYC 9654 96-Core"
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 2000\n")
    write(tmp_path, "proc/device-tree/model", "NVIDIA Jetson AGX Orin\0")
    assert host.cpu_name(tmp_path) == "NVIDIA Jetson AGX Orin"


def test_clock_is_the_mean_of_cpufreq(tmp_path: Path) -> None:
    for number, khz in enumerate((3_000_000, 2_000_000)):
        base = f"sys/devices/system/cpu/cpu{number}/cpufreq"
        write(tmp_path, f"{base}/scaling_cur_freq", f"{khz}\n")
        write(tmp_path, f"{base}/cpuinfo_max_freq", "3700000\n")
    clock = Clock.find({0, 1}, tmp_path)
    assert clock.read() == 2500
    assert clock.max_mhz == 3700


def test_the_constant_of_a_virtual_machine_is_no_clock(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor : 0\ncpu MHz : 2596.102\n")
    assert "cpufreq" in str(Clock.find({0}, tmp_path).read())


def test_many_cpus_are_sampled_evenly(tmp_path: Path) -> None:
    for number in range(256):
        base = f"sys/devices/system/cpu/cpu{number}/cpufreq"
        write(tmp_path, f"{base}/scaling_cur_freq", "1000000\n")
    assert len(Clock.find(range(256), tmp_path).files) == 16


def test_temperature_is_that_of_the_package(tmp_path: Path) -> None:
    write(tmp_path, "sys/class/hwmon/hwmon0/name", "nvme\n")
    write(tmp_path, "sys/class/hwmon/hwmon0/temp1_input", "33000\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/name", "coretemp\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp2_input", "51000\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp2_label", "Core 0\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp1_input", "58500\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp1_label", "Package id 0\n")
    assert Thermometer.find(tmp_path).read() == 58.5
    assert "no CPU temperature" in str(Thermometer.find(tmp_path / "nothing").read())


def rapl(root: Path, socket: int, energy_uj: int) -> None:
    base = f"sys/class/powercap/intel-rapl:{socket}"
    write(root, f"{base}/name", f"package-{socket}\n")
    write(root, f"{base}/energy_uj", f"{energy_uj}\n")
    write(root, f"{base}/max_energy_range_uj", "262143328850\n")
    write(root, f"sys/class/powercap/intel-rapl:{socket}:0/name", "core\n")


def test_power_is_energy_over_time_of_all_packages(tmp_path: Path) -> None:
    rapl(tmp_path, 0, 1_000_000)
    rapl(tmp_path, 1, 5_000_000)
    meter = PowerMeter.find(tmp_path)
    assert "two readings" in str(meter.read(10.0))
    rapl(tmp_path, 0, 201_000_000)
    rapl(tmp_path, 1, 105_000_000)
    assert meter.read(12.0) == pytest.approx(150.0)


def test_a_wrapped_energy_counter_is_no_spike(tmp_path: Path) -> None:
    rapl(tmp_path, 0, 262_143_000_000)
    meter = PowerMeter.find(tmp_path)
    meter.read(0.0)
    rapl(tmp_path, 0, 99_671_150)
    assert meter.read(1.0) == pytest.approx(100.0)


def test_power_that_only_root_may_read_says_so(tmp_path: Path) -> None:
    rapl(tmp_path, 0, 1)
    meter = PowerMeter.find(tmp_path)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    assert "needs root" in str(meter.read(0.0))


def monitor(root: Path) -> cpu.CpuMonitor:
    return cpu.CpuMonitor(HostFacts(hostname="here", system="Linux"), None, root)


def stat(root: Path, busy: int, idle: int) -> None:
    lines = "".join(f"cpu{number} {busy} 0 0 {idle} 0 0 0 0\n" for number in range(1024))
    write(root, "proc/stat", lines)


def test_the_first_load_is_blank_and_not_zero(tmp_path: Path) -> None:
    stat(tmp_path, 100, 100)
    watched = monitor(tmp_path)
    sample, machine = watched.sample()
    assert sample.busy_ratio is None
    assert "two readings" in sample.unavailable["busy_ratio"]
    assert machine.cpu_busy_ratio is None
    stat(tmp_path, 130, 170)
    sample, machine = watched.sample()
    assert sample.busy_ratio == machine.cpu_busy_ratio == pytest.approx(0.3)
    assert "busy_ratio" not in sample.unavailable


def test_a_kernel_that_counts_no_time_is_not_idle(tmp_path: Path) -> None:
    stat(tmp_path, 0, 0)
    watched = monitor(tmp_path)
    watched.prime()
    sample, _ = watched.sample()
    assert sample.busy_ratio is None
    assert "does not count" in sample.unavailable["busy_ratio"]


def test_identity_and_sample_of_the_cpu(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "model name : Some CPU\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "4200000\n")
    write(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3100000\n")
    identity = monitor(tmp_path).identity()
    assert (identity.device, identity.kind, identity.name) == ("cpu", "cpu", "Some CPU")
    assert identity.sm_clock_max_mhz == 4200
    assert identity.memory_total_bytes == psutil.virtual_memory().total
    assert identity.source == "here/cpu"
    sample, machine = monitor(tmp_path).sample()
    assert sample.sm_clock_mhz == 3100
    assert sample.power_watts is None
    assert sample.unavailable["power_watts"]
    assert machine.source == "here"


def pci(root: Path, address: str, vendor: str, kind: str, state: str) -> None:
    base = f"sys/bus/pci/devices/{address}"
    write(root, f"{base}/vendor", f"{vendor}\n")
    write(root, f"{base}/class", f"{kind}\n")
    write(root, f"{base}/power/runtime_status", f"{state}\n")


def test_sleep_of_gpus(tmp_path: Path) -> None:
    pci(tmp_path, "0000:01:00.0", "0x10de", "0x030000", "suspended")
    pci(tmp_path, "0000:01:00.1", "0x10de", "0x040300", "active")
    pci(tmp_path, "0000:00:02.0", "0x8086", "0x030000", "active")
    assert sleeping_gpus(tmp_path) == ["0000:01:00.0"]
    assert is_asleep("00000000:01:00.0", tmp_path)
    assert not is_asleep("00000000:02:00.0", tmp_path)
    assert not is_asleep(None, tmp_path)
    assert not is_asleep("../../etc", tmp_path)
    pci(tmp_path, "0000:41:00.0", "0x10de", "0x030200", "active")
    assert sleeping_gpus(tmp_path) == []


def test_whether_the_machine_has_an_nvidia_device(tmp_path: Path) -> None:
    assert has_nvidia_device(tmp_path)  # no PCI bus to be seen: nobody can tell
    write(tmp_path, "sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n")
    assert not has_nvidia_device(tmp_path)
    write(tmp_path, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    assert has_nvidia_device(tmp_path)
    write(tmp_path / "other", "sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n")
    write(tmp_path / "other", "proc/driver/nvidia/version", "x")
    assert has_nvidia_device(tmp_path / "other")

"""Ceilings of CPUs on trees of files that stand in for /proc and /sys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon import events
from topsmon.ceilings import CpuFacts, for_cpu, read_cpu_facts
from topsmon.ceilings.cpu_facts import Core, cpu_quota, parse_cpu_list

if TYPE_CHECKING:
    from tests.ceilings.conftest import Machine

AVX2 = "fpu sse2 avx fma f16c avx2"
AVX512 = AVX2 + " avx512f avx512dq avx512bw avx512vl"


def facts(machine: Machine) -> CpuFacts:
    return read_cpu_facts(machine.root, system="Linux", machine="x86_64")


def ceilings(cpu: CpuFacts) -> events.Ceilings:
    device = events.Device(
        time=1.0, monotonic=2.0, source="host/cpu", device="cpu", kind="cpu", index=0, name="CPU"
    )
    return for_cpu(device, cpu)


def of(found: events.Ceilings, precision: str) -> events.Ceiling:
    return next(rate for rate in found.rates if rate.precision == precision)


def gflops(found: events.Ceilings, precision: str = "fp32") -> float:
    return of(found, precision).ops_per_second / 1e9


def test_haswell(machine: Machine) -> None:
    machine.x86("Intel(R) Xeon(R) CPU E5-2660 v3", model=63, flags=AVX2, cores=10, max_mhz=3300)
    found = ceilings(facts(machine))
    assert found.board == "haswell"
    assert gflops(found) == pytest.approx(10 * 32 * 3.3)
    assert gflops(found, "fp64") == pytest.approx(10 * 16 * 3.3)
    assert of(found, "fp32").origin == "computed"
    assert of(found, "fp32").note == "10 cores x 32 per clock (AVX2)"
    assert "cpufreq" in found.clock_source


def test_sandy_bridge_has_no_fused_multiply_add(machine: Machine) -> None:
    machine.x86("Intel(R) Core(TM) i7-2600", model=42, flags="sse2 avx", cores=4, max_mhz=3800)
    assert gflops(ceilings(facts(machine))) == pytest.approx(4 * 16 * 3.8)


def test_nehalem_has_sse_alone(machine: Machine) -> None:
    machine.x86("Intel(R) Xeon(R) X5570", model=26, flags="sse2 sse4_2", cores=4, max_mhz=2933)
    assert gflops(ceilings(facts(machine))) == pytest.approx(4 * 8 * 2.933)


def test_smt_threads_are_not_cores(machine: Machine) -> None:
    name = "Intel(R) Core(TM) i7-6700K CPU @ 4.00GHz"
    machine.x86(name, model=94, flags=AVX2, cores=4, threads=2, max_mhz=4000)
    cpu = facts(machine)
    assert (len(cpu.cores), cpu.logical_cpus) == (4, 8)
    assert gflops(ceilings(cpu)) == pytest.approx(512)


def test_cores_from_cpuinfo_where_sysfs_has_no_topology(machine: Machine) -> None:
    machine.x86("Intel(R) Core(TM) i7-6700K", model=94, flags=AVX2, cores=4, threads=2)
    for path in machine.root.glob("sys/devices/system/cpu/cpu*/topology/*"):
        path.unlink()
        path.parent.rmdir()
    cpu = facts(machine)
    assert (len(cpu.cores), cpu.cores_are_logical) == (4, False)


def test_zen3_and_its_emulated_types(machine: Machine) -> None:
    name = "AMD EPYC 7763 64-Core Processor"
    machine.x86(name, vendor="AuthenticAMD", family=25, model=1, flags=AVX2, cores=2, mhz=2445.4)
    found = ceilings(facts(machine))
    assert found.board == "zen3"
    assert of(found, "fp32").ops_per_clock == 64
    assert of(found, "fp32").verified is True
    assert gflops(found) == pytest.approx(2 * 32 * 3.5)  # the model's boost, not the 2445 MHz
    assert "highest boost of this model" in found.clock_source
    assert found.absent["bf16"] == "emulated: no native BF16 on this CPU (AVX2)"
    assert found.absent["int8"] == "emulated: no INT8 dot product on this CPU (AVX2)"
    assert found.absent["fp16_acc32"] == "emulated: no native FP16 on this CPU (AVX2)"
    assert {rate.precision for rate in found.rates} == {"fp32", "fp64"}


def test_a_virtual_machine_has_the_nominal_clock_and_says_so(machine: Machine) -> None:
    flags = AVX2 + " hypervisor"
    machine.x86("AMD EPYC", vendor="AuthenticAMD", family=25, model=1, flags=flags, cores=2)
    found = ceilings(facts(machine))
    assert gflops(found) == pytest.approx(2 * 32 * 2.5)
    assert "nominal" in found.clock_source
    assert "virtual machine" in found.clock_source
    assert "more than 100 %" in found.clock_source
    assert any("hardware threads" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.50GHz", None, 64),
        ("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", None, 64),
        ("Intel(R) Xeon(R) Gold 5218 CPU @ 2.30GHz", None, 32),
        ("Intel(R) Xeon(R) Gold 5122 CPU @ 3.60GHz", None, 64),
        ("Intel(R) Xeon(R) Silver 4114 CPU @ 2.20GHz", None, 32),
        ("Intel(R) Core(TM) i9-9980XE CPU @ 3.00GHz", None, 64),
        ("Intel(R) Xeon(R) CPU @ 2.00GHz", 32, 64),
        ("Intel Xeon Processor (Cascadelake)", 32, 64),
    ],
)
def test_512_bit_units_by_model_name(
    machine: Machine, name: str, low: float | None, high: float
) -> None:
    machine.x86(name, model=85, flags=AVX512 + " avx512_vnni", cores=1, max_mhz=1000)
    fp32 = of(ceilings(facts(machine)), "fp32")
    assert fp32.ops_per_second / 1e9 == high
    assert fp32.ops_per_second_low == (low * 1e9 if low is not None else None)


def test_cascade_lake_with_56_cores(machine: Machine) -> None:
    name = "Intel(R) Xeon(R) Platinum 9282 CPU @ 2.60GHz"
    machine.x86(name, model=85, flags=AVX512 + " avx512_vnni", cores=56, max_mhz=2500)
    found = ceilings(facts(machine))
    assert gflops(found) == pytest.approx(8960)
    assert gflops(found, "int8") == pytest.approx(4 * 8960)
    assert "emulated" in found.absent["bf16"]
    assert "AVX-512 or AMX code, run lower" in found.clock_source


def test_unknown_number_of_units_is_a_range(machine: Machine) -> None:
    machine.x86("Intel CPU of tomorrow", model=250, flags=AVX512, cores=8, max_mhz=2500)
    found = ceilings(facts(machine))
    fp32 = of(found, "fp32")
    assert fp32.origin == "range"
    assert fp32.ops_per_second_low == pytest.approx(640e9)
    assert fp32.ops_per_second == pytest.approx(1280e9)
    assert 774.95e9 / fp32.ops_per_second == pytest.approx(0.605, abs=1e-3)
    assert "FMA units not known" in fp32.source
    assert found.board is None


def test_i9_9980xe_avx512_against_avx2(machine: Machine) -> None:
    machine.x86("Intel(R) Core(TM) i9-9980XE", model=85, flags=AVX512, cores=18, max_mhz=3600)
    assert gflops(ceilings(facts(machine))) == pytest.approx(4147.2)
    machine.x86("Intel(R) Core(TM) i9-9980XE", model=85, flags=AVX2, cores=18, max_mhz=4000)
    assert gflops(ceilings(facts(machine))) == pytest.approx(2304)


def test_amx(machine: Machine) -> None:
    flags = AVX512 + " avx512_vnni avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_bf16 amx_int8"
    machine.x86("Intel(R) Xeon(R) Platinum 8480+", model=143, flags=flags, cores=56, max_mhz=2000)
    found = ceilings(facts(machine))
    assert gflops(found, "bf16") == pytest.approx(56 * 1024 * 2.0)
    assert gflops(found, "int8") == pytest.approx(56 * 2048 * 2.0)
    assert gflops(found, "fp16_vec") == pytest.approx(56 * 128 * 2.0)
    assert "fp16_acc32" not in found.absent
    assert "AMX-BF16" in of(found, "bf16").note


def test_zen5_server_and_mobile(machine: Machine) -> None:
    flags = AVX512 + " avx512_vnni avx512_bf16 avx_vnni"
    for model, rate in ((2, 64), (36, 32)):
        machine.x86(
            "AMD", vendor="AuthenticAMD", family=26, model=model, flags=flags, cores=1, max_mhz=4000
        )
        found = ceilings(facts(machine))
        assert gflops(found) == pytest.approx(rate * 4.0)
        assert gflops(found, "bf16") == pytest.approx(2 * rate * 4.0)
        assert gflops(found, "int8") == pytest.approx(max(4 * rate, 128) * 4.0)


def test_hybrid_cores_count_for_what_they_are(machine: Machine) -> None:
    machine.x86(
        "12th Gen Intel(R) Core(TM) i9-12900K",
        model=151,
        flags=AVX2 + " avx_vnni",
        cores=8,
        threads=2,
        max_mhz=5000,
        atoms=8,
        atom_mhz=3900,
    )
    found = ceilings(facts(machine))
    assert gflops(found) == pytest.approx(8 * 32 * 5.0 + 8 * 16 * 3.9)
    assert found.board == "golden-cove, gracemont"
    fp32 = of(found, "fp32")
    assert fp32.ops_per_clock == 8 * 32 + 8 * 16
    assert fp32.rated_clock_mhz == pytest.approx(fp32.ops_per_second / fp32.ops_per_clock / 1e6)


@pytest.mark.parametrize(
    ("cpus", "cores"), [("0-7", 4), ("0-3", 4), ("0,4", 1), ("1", 1), ("0-1,5", 2), ("", 4)]
)
def test_affinity_counts_cores_once(machine: Machine, cpus: str, cores: int) -> None:
    machine.x86("i7-6700K", model=94, flags=AVX2, cores=4, threads=2, max_mhz=4000)
    machine.affinity(cpus)
    assert gflops(ceilings(facts(machine))) == pytest.approx(cores * 32 * 4.0)


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("50000 100000", 0.5), ("150000 100000", 1.5), ("800000 100000", 4), ("max 100000", 4)],
)
def test_cgroup2_quota(machine: Machine, cpu_max: str, cores: float) -> None:
    machine.x86("i7-6700K", model=94, flags=AVX2, cores=4, threads=2, max_mhz=4000)
    machine.cgroup2("/", {"": cpu_max})
    found = ceilings(facts(machine))
    assert gflops(found) == pytest.approx(cores * 128)
    assert of(found, "fp32").note.startswith(f"{cores:g} cores x 32")
    assert any("quota" in note for note in found.notes) == (cores < 4)


def test_the_tightest_quota_of_all_groups_above_counts(machine: Machine) -> None:
    machine.cgroup2(
        "/pods/job/task",
        {"pods/job/task": "400000 100000", "pods/job": "150000 100000", "pods": "max 100000"},
    )
    assert cpu_quota(machine.root) == 1.5


def test_a_container_sees_its_group_as_the_root_of_the_mount(machine: Machine) -> None:
    machine.cgroup2("/docker/abc", {"": "50000 100000"}, mount_root="/docker/abc")
    assert cpu_quota(machine.root) == 0.5
    machine.cgroup2("/../../elsewhere", {"": "50000 100000"})
    assert cpu_quota(machine.root) == 0.5


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [
        ("50000", "100000", 0.5),
        ("150000\n", "100000\n", 1.5),
        ("-1", "100000", None),
        ("", "", None),
        ("x", "100000", None),
        ("50000", "0", None),
    ],
)
def test_cgroup1_quota(machine: Machine, quota: str, period: str, cpus: float | None) -> None:
    machine.cgroup1("/slurm/job_1", quota, period)
    assert cpu_quota(machine.root) == cpus


def test_a_quota_counts_the_fastest_cores(machine: Machine) -> None:
    machine.x86("i9-12900K", model=151, flags=AVX2, cores=2, max_mhz=5000, atoms=4, atom_mhz=3900)
    machine.cgroup2("/", {"": "250000 100000"})
    assert gflops(ceilings(facts(machine))) == pytest.approx(2 * 32 * 5.0 + 0.5 * 16 * 3.9)


@pytest.mark.parametrize(
    ("part", "key", "rate"),
    [
        ("0xd0c", "neoverse-n1", 16),
        ("0xd40", "neoverse-v1", 32),
        ("0xd49", "neoverse-n2", 16),
        ("0xd4f", "neoverse-v2", 32),
    ],
)
def test_neoverse(machine: Machine, part: str, key: str, rate: float) -> None:
    machine.arm(part, "fp asimd fphp asimdhp asimddp sve i8mm bf16", cores=8, max_mhz=2600)
    found = ceilings(read_cpu_facts(machine.root, system="Linux", machine="aarch64"))
    assert found.board == key
    assert gflops(found) == pytest.approx(8 * rate * 2.6)
    assert gflops(found, "bf16") == pytest.approx(4 * 8 * rate * 2.6)
    assert gflops(found, "int8") == pytest.approx(8 * 8 * rate * 2.6)


def test_old_arm_without_bf16_and_an_unknown_part(machine: Machine) -> None:
    machine.arm("0xd0c", "fp asimd", cores=4, max_mhz=2000)
    found = ceilings(read_cpu_facts(machine.root, system="Linux", machine="aarch64"))
    assert found.absent["bf16"] == "emulated: no native BF16 on this CPU (NEON/SVE)"
    machine.arm("0xfff", "fp asimd", cores=4, max_mhz=2000)
    fp32 = of(ceilings(read_cpu_facts(machine.root, system="Linux", machine="aarch64")), "fp32")
    assert (fp32.ops_per_second_low, fp32.ops_per_second) == (4 * 8 * 2e9, 4 * 32 * 2e9)


def test_no_clock_no_ceiling(machine: Machine) -> None:
    machine.arm("0xd40", "fp asimd", cores=4)
    found = ceilings(read_cpu_facts(machine.root, system="Linux", machine="aarch64"))
    assert found.rates == ()
    assert "its clock cannot be read" in str(found.unknown)


@pytest.mark.parametrize("system", ["Darwin", "Windows", "FreeBSD"])
def test_other_systems_have_no_ceiling_and_say_why(tmp_path: Path, system: str) -> None:
    found = ceilings(read_cpu_facts(tmp_path, system=system, machine="arm64"))
    assert found.rates == ()
    assert str(found.unknown).startswith("no ceiling for this CPU")
    assert ("Accelerate" in str(found.unknown)) == (system == "Darwin")


def test_memory_bandwidth_is_never_a_constant(machine: Machine) -> None:
    machine.x86("Intel(R) Xeon(R) CPU E5-2660 v3", model=63, flags=AVX2, cores=10, max_mhz=3300)
    found = ceilings(facts(machine))
    assert found.memory_bandwidth_bytes_per_second is None
    assert "dmidecode" in found.memory_bandwidth_source


def test_an_empty_tree_is_no_error(tmp_path: Path) -> None:
    found = ceilings(read_cpu_facts(tmp_path, system="Linux", machine="x86_64"))
    assert found.rates == ()
    assert found.unknown is not None


def test_this_machine_answers() -> None:
    cpu = read_cpu_facts()
    found = ceilings(cpu)
    assert found.rates or found.unknown
    if cpu.system == "Linux":
        assert 1 <= len(cpu.cores) <= cpu.logical_cpus


@given(st.text("0123456789,- x", max_size=30))
def test_cpu_lists_never_raise_nor_grow(text: str) -> None:
    assert all(0 <= number <= 99_999 for number in parse_cpu_list(text))


@given(st.sets(st.integers(0, 300), max_size=40))
def test_cpu_lists_round_trip(numbers: set[int]) -> None:
    assert parse_cpu_list(",".join(str(number) for number in numbers)) == numbers


def test_cpu_list_ranges() -> None:
    assert parse_cpu_list("0-2,5\n") == {0, 1, 2, 5}
    assert parse_cpu_list("") == set()
    assert len(parse_cpu_list("0-99999999999")) == 65536
    assert parse_cpu_list("3-x,4") == {4}


@given(
    cores=st.integers(1, 128),
    quota=st.floats(0.1, 256),
    mhz=st.floats(500, 6000),
)
def test_a_quota_never_raises_the_ceiling(cores: int, quota: float, mhz: float) -> None:
    cpu = CpuFacts(
        system="Linux",
        machine="x86_64",
        vendor="AuthenticAMD",
        family=25,
        model=1,
        flags=frozenset(AVX2.split()),
        cores=(Core(1, max_mhz=mhz),) * cores,
        logical_cpus=cores,
        quota_cpus=quota,
    )
    assert gflops(ceilings(cpu)) == pytest.approx(min(cores, quota) * 32 * mhz / 1000)

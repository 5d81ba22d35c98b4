"""CPUs, quotas, threads and instruction sets, read from made-up roots."""

from __future__ import annotations

import pytest

from topsmon.probes.machine import (
    Cpus,
    cpu_flags,
    cpu_name,
    cpu_quota,
    emulation,
    free_memory_bytes,
    isa_notes,
    plan_threads,
    read_cpus,
    seconds_waited,
)


def lay(root, files):
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def test_hardware_threads_are_not_cores(tmp_path):
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = lay(tmp_path, {folder.format(cpu): f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)})
    assert read_cpus(root, frozenset({0, 1, 2, 3})) == Cpus(4, 2, None)
    assert read_cpus(root, frozenset({0, 2})) == Cpus(2, 1, None)
    assert read_cpus(tmp_path / "nothing", frozenset({0, 1})) == Cpus(2, 2, None)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense"}, None),
    ],
)
def test_the_tightest_quota_counts(tmp_path, files, quota):
    assert cpu_quota(lay(tmp_path, files)) == quota


def test_free_memory_within_the_container_s_limit(tmp_path):
    root = lay(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8000 kB\n"})
    assert free_memory_bytes(root) == 8000 * 1024
    lay(
        root,
        {
            "proc/self/cgroup": "0::/c\n",
            "sys/fs/cgroup/c/memory.max": "1000000",
            "sys/fs/cgroup/c/memory.current": "400000",
        },
    )
    assert free_memory_bytes(root) == 600_000
    assert free_memory_bytes(tmp_path / "nothing") is None


def test_waiting_is_summed_over_threads(tmp_path):
    root = lay(
        tmp_path,
        {
            "proc/self/task/1/schedstat": "100 1500000000 3\n",
            "proc/self/task/2/schedstat": "100 250000000 3\n",
        },
    )
    assert seconds_waited(root) == pytest.approx(1.75)
    assert seconds_waited(tmp_path / "nothing") is None


def test_flags_of_both_architectures(tmp_path):
    x86 = lay(tmp_path / "x", {"proc/cpuinfo": "model name\t: A B\nflags\t\t: fpu avx2 fma\n"})
    arm = lay(tmp_path / "a", {"proc/cpuinfo": "Features\t: fp asimd bf16\n"})
    assert cpu_flags(x86) == {"fpu", "avx2", "fma"}
    assert cpu_name(x86) == "A B"
    assert cpu_flags(arm) == {"fp", "asimd", "bf16"}
    assert cpu_name(arm) is None


@pytest.mark.parametrize(
    ("precision", "flags", "native"),
    [
        ("fp32", {"avx2"}, True),
        ("fp64", set(), True),
        ("bf16", {"avx2"}, False),
        ("bf16", {"avx512f"}, False),
        ("bf16", {"avx512f", "avx512_bf16"}, True),
        ("bf16", {"asimd", "bf16"}, True),
        ("fp16", {"avx512f", "avx512_bf16"}, False),
        ("fp16", {"avx512_fp16"}, True),
        ("int8", {"avx2"}, False),
        ("int8", {"avx2", "avx_vnni"}, True),
        ("fp8", {"amx_bf16", "amx_int8"}, False),
    ],
)
def test_what_a_cpu_can_do_by_itself(precision, flags, native):
    assert (emulation(precision, frozenset(flags)) is None) is native


def test_emulation_is_said_with_the_widest_instructions():
    assert emulation("bf16", frozenset({"avx2", "fma"})) == "no native BF16 on this CPU (AVX2)"


FREE = {"HOME": "/"}


@pytest.mark.parametrize(
    ("default", "cpus"),
    [(2, Cpus(2, 2, None)), (4, Cpus(8, 4, None)), (8, Cpus(8, 4, None)), (2, Cpus(64, 32, 2.0))],
)
def test_sensible_threads_are_left_alone_and_not_talked_about(default, cpus):
    assert plan_threads(default, cpus, FREE) == (default, ())


def test_more_threads_than_cores_are_cut_and_said():
    plan = plan_threads(32, Cpus(2, 2, None), {"OMP_NUM_THREADS": "32"})
    assert plan.threads == 2
    (note,) = plan.notes
    assert "32 threads (OMP_NUM_THREADS=32) on 2 usable cores" in note
    assert "measured with 2" in note
    assert "OMP_NUM_THREADS=2 or torch.set_num_threads(2)" in note


def test_fewer_threads_than_cores_are_raised_and_said():
    plan = plan_threads(1, Cpus(8, 8, None), {"OMP_NUM_THREADS": "1"})
    assert plan.threads == 8
    assert "1 thread (OMP_NUM_THREADS=1) on 8 usable cores" in plan.notes[0]
    assert "torch.set_num_threads(8)" in plan.notes[0]


def test_a_quota_below_the_cores_is_named():
    plan = plan_threads(64, Cpus(64, 64, 2.5), FREE)
    assert plan.threads == 2
    assert "cgroup quota of 2.5 CPUs" in plan.notes[0]
    assert plan_threads(1, Cpus(64, 64, 0.5), FREE) == (1, ())


def test_a_setting_that_torch_ignores_still_concerns_others():
    # torch with MKL never takes more threads than there are cores; other libraries do.
    plan = plan_threads(2, Cpus(2, 2, None), {"OMP_NUM_THREADS": "32,4"})
    assert plan.threads == 2
    assert "OMP_NUM_THREADS=32" in plan.notes[0]
    assert "set OMP_NUM_THREADS=2" in plan.notes[0]


def test_limited_instruction_sets_are_said():
    assert isa_notes({"ONEDNN_MAX_CPU_ISA": "AVX2"}) == (
        "ONEDNN_MAX_CPU_ISA=AVX2 limits the instruction sets that libraries use",
    )
    assert isa_notes({}) == ()

"""DRAM and cache bandwidths on a machine with known ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lab_machine import Clock, Machine, nbytes, run, touched  # noqa: E402

from topsmon.probes import caches  # noqa: E402
from topsmon.probes.caches import Cache  # noqa: E402
from topsmon.probes.errors import NoMemoryError, UnsupportedError  # noqa: E402
from topsmon.probes.lab import cache, memory  # noqa: E402

MIB = 1 << 20
SPEED = 1e10


@pytest.fixture
def machine():
    return Machine(Clock(), free=300 * MIB, cache=5 * MIB)


def price(name, args):
    """10 GB/s for whatever moves; counted as STREAM does."""
    streams = {"copy_": 2, "add": 3, "sum": 1, "fill_": 1}
    return streams[name] * nbytes(args[0]) / SPEED if name in streams else 0.0


def test_each_figure_is_its_bytes_over_its_time(machine):
    fields, _ = run(memory, machine, price, time_scale=0.05)
    values = fields["values"]
    for name in ("copy", "triad", "read", "write"):
        assert values[f"{name}_bytes_per_second"] == pytest.approx(SPEED), name
    # A third of a fifth of 300 MiB, and four times the cache of 5 MiB exactly.
    assert values["buffer_bytes"] == 20 * MIB
    assert fields["correct"] is True
    assert fields["valid"] is True
    assert "write-allocate" in fields["method"]


def test_buffers_that_the_cache_can_hold_are_no_measure_of_dram(machine):
    machine.cache_bytes = 6 * MIB
    fields, _ = run(memory, machine, price, time_scale=0.05)
    assert fields["valid"] is False
    assert "20 MiB are under 4 times the last-level cache of 6 MiB" in fields["invalid_reason"]


@pytest.mark.parametrize(
    ("cache_mib", "gpu", "wanted_mib"),
    [(126, True, 504), (50, True, 256), (0, True, 256), (32, False, 128), (8, False, 64)],
)
def test_buffers_are_four_times_the_cache_and_never_tiny(cache_mib, gpu, wanted_mib):
    assert memory.buffer_bytes(cache_mib * MIB, 1e12, gpu=gpu) == wanted_mib * MIB


def test_hardly_any_memory_is_said(machine):
    machine.free = 4 * MIB
    with pytest.raises(NoMemoryError, match="too little"):
        run(memory, machine, price, time_scale=0.05)


@pytest.mark.parametrize(
    ("operation", "spoilt"), [("copy_", "copied data differ"), ("fill_", "filled data differ")]
)
def test_data_that_arrive_changed_are_a_failure(machine, operation, spoilt, monkeypatch):
    true = getattr(torch.Tensor, operation)

    def spoil(tensor, *args):
        result = true(tensor, *args)
        if tensor.numel() > MIB:
            tensor[-1] = 12345.0
        return result

    monkeypatch.setattr(torch.Tensor, operation, spoil)
    fields, _ = run(memory, machine, lambda name, args: 1e-3, time_scale=0.05)
    assert fields["correct"] is False
    assert spoilt in fields["invalid_reason"]


def test_a_wrong_triad_is_a_failure(machine, monkeypatch):
    true = torch.add
    monkeypatch.setattr(
        torch, "add", lambda a, b, alpha, out: true(a, b, alpha=alpha * 1.001, out=out)
    )
    fields, _ = run(memory, machine, lambda name, args: 1e-3, time_scale=0.05)
    assert fields["correct"] is False
    assert fields["relative_error"] == pytest.approx(1e-3, rel=0.6)


def ladder(size):
    """B/s of a made-up hierarchy: 48 KiB, 1 MiB and 8 MiB."""
    for limit, rate in ((48 << 10, 400e9), (MIB, 200e9), (8 * MIB, 100e9)):
        if size <= limit:
            return rate
    return 25e9


LEVELS = [
    cache.Level("l1", 48 << 10),
    cache.Level("l2", MIB),
    cache.Level("last_level", 8 * MIB),
]


def cpu_price(name, args):
    return nbytes(args[0]) / ladder(touched(args[0])) if name == "sum" else 0.0


def test_the_ladder_of_a_cpu(monkeypatch):
    monkeypatch.setattr(cache, "_levels", lambda bench: LEVELS)
    fields, _ = run(cache, Machine(Clock(), "cpu", free=400 * MIB, threads=1), cpu_price)
    assert fields["values"] == {
        "l1_bytes_per_second": pytest.approx(400e9),
        "l2_bytes_per_second": pytest.approx(200e9),
        "last_level_bytes_per_second": pytest.approx(100e9),
        "dram_bytes_per_second": pytest.approx(25e9),
    }
    points = fields["series"]["bytes_per_second_over_bytes"]
    assert [size for size, _ in points] == [float(16 << 10 << at) for at in range(12)]
    assert fields["correct"] is True
    assert fields["note"] == ""


def test_threads_have_stretches_of_their_own(monkeypatch):
    monkeypatch.setattr(cache, "_levels", lambda bench: LEVELS)
    seen = []

    def price(name, args):
        if name == "sum" and args[0].dim() == 3:
            seen.append((tuple(args[0].shape), args[0].stride()))
        return cpu_price(name, args)

    fields, _ = run(cache, Machine(Clock(), "cpu", free=400 * MIB, threads=2), price)
    (threads, passes, count), stride = seen[0]
    assert (threads, count * 4) == (2, 16 << 10)
    assert stride == (count, 0, 1)
    assert passes * 2 * count * 4 == 2 * cache.CALL_BYTES
    assert fields["series"]["bytes_per_second_over_bytes"][0][0] == 32 << 10


def test_a_level_without_a_step_is_said():
    values = {"l1_bytes_per_second": 228e9, "l2_bytes_per_second": 226e9,
              "last_level_bytes_per_second": 105e9, "dram_bytes_per_second": None}  # fmt: skip
    (remark,) = cache.remarks(values)
    assert remark.startswith("no step from l1 to l2")


def test_points_near_a_step_belong_to_nobody():
    points = [(32 << 10, 400.0), (64 << 10, 300.0), (512 << 10, 200.0), (MIB, 150.0)]
    values = cache.by_level(points, LEVELS)
    assert values["l1_bytes_per_second"] is None
    assert values["l2_bytes_per_second"] == 200.0
    assert values["dram_bytes_per_second"] is None


def test_the_ladder_of_a_gpu_reads_beyond_its_cache_once_a_call(monkeypatch):
    # A sixteenth of a real one, so that the sums are quick.
    monkeypatch.setattr(cache, "SMALLEST_GPU_BYTES", 256 << 10)
    monkeypatch.setattr(cache, "GPU_CALL_BYTES", 4 * MIB)
    passes = {}

    def price(name, args):
        if name == "sum" and args[0].dim() == 3:
            size = touched(args[0])
            passes[size // 1024] = args[0].shape[1]
            return nbytes(args[0]) / (4e11 if size <= 2 * MIB else 1e11)
        return 0.0

    machine = Machine(Clock(), free=100 * MIB, cache=2 * MIB)
    fields, _ = run(cache, machine, price, time_scale=0.1)
    values = fields["values"]
    assert values["l2_bytes_per_second"] == pytest.approx(4e11)
    assert values["dram_bytes_per_second"] == pytest.approx(1e11)
    assert passes == {256: 16, 512: 8, 1024: 4, 2048: 1, 4096: 1, 8192: 1}
    # 2 MiB at 400 GB/s take 5 us: a launch, not a bandwidth.
    sizes = [size / 1024 for size, _ in fields["series"]["bytes_per_second_over_bytes"]]
    assert sizes == [256, 512, 1024, 4096, 8192]


def test_unknown_caches_make_no_ladder():
    with pytest.raises(UnsupportedError, match="unknown"):
        run(cache, Machine(Clock(), cache=0))


def test_the_file_system_of_a_big_cpu(tmp_path):
    def describe(cpu, index, kind, level, size, shared):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in (
            ("type", kind),
            ("level", level),
            ("size", size),
            ("shared_cpu_list", shared),
        ):
            (folder / name).write_text(f"{text}\n")

    for cpu in range(4):
        describe(cpu, 0, "Data", "1", "32K", str(cpu))
        describe(cpu, 1, "Instruction", "1", "64K", str(cpu))
        describe(cpu, 2, "Unified", "2", "512K", str(cpu))
        describe(cpu, 3, "Unified", "3", "32M", "0-1" if cpu < 2 else "2-3")
    found = caches.read(range(4), tmp_path)
    assert caches.last_level_bytes(found) == 64 * MIB
    assert caches.per_core_bytes(found) == {1: 32 << 10, 2: 512 << 10, 3: 32 * MIB}
    # Two threads: their own small caches, and as much of the last level as there is.
    assert cache.cpu_levels(found, 2) == [
        cache.Level("l1", 64 << 10),
        cache.Level("l2", MIB),
        cache.Level("last_level", 64 * MIB),
    ]
    assert caches.last_level_bytes(caches.read([0, 1], tmp_path)) == 32 * MIB


def test_nothing_told_is_nothing_known(tmp_path):
    assert caches.read(range(2), tmp_path) == frozenset()
    assert caches.last_level_bytes([]) is None
    strange = Cache(2, 1 << 20, "0")
    assert cache.cpu_levels(frozenset({strange}), 1) == [cache.Level("last_level", MIB)]

"""The two kinds of device, the GPU with its torch calls made up."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

from topsmon.probes import devices, machine, nvml  # noqa: E402 - torch first
from topsmon.probes.devices import CpuDevice, CudaDevice, DeviceUnavailableError  # noqa: E402
from topsmon.probes.precisions import all_gemms  # noqa: E402

GEMMS = all_gemms()


def make_gpu(monkeypatch, name="NVIDIA A100-SXM4-80GB", capability=(8, 0), **properties):
    """A GPU as torch describes it, without a driver library."""
    monkeypatch.setattr(nvml, "LIBRARY", "libno-such-driver.so.1")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    described = types.SimpleNamespace(
        name=name,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=108,
        total_memory=80 * 2**30,
        **properties,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: described)
    return CudaDevice("GPU-1")


def test_what_torch_knows_of_a_gpu(monkeypatch):
    gpu = make_gpu(monkeypatch, clock_rate=1410000, L2_cache_size=40 * 2**20)
    ready = gpu.ready()
    assert (ready["sm_count"], ready["clock_rate_mhz"]) == (108, 1410.0)
    assert ready["l2_bytes"] == gpu.cache_bytes == 40 * 2**20
    assert ready["memory_total_bytes"] == 80 * 2**30


def test_an_older_torch_knows_less(monkeypatch):
    ready = make_gpu(monkeypatch).ready()
    assert (ready["clock_rate_mhz"], ready["l2_bytes"]) == (None, None)


def test_without_the_driver_s_library_rates_remain(monkeypatch):
    gpu = make_gpu(monkeypatch)
    assert any("clock and power not read" in note for note in gpu.ready()["notes"])
    watch = gpu.watch()
    watch.begin()
    assert watch.finish() == nvml.Held()


def test_an_override_of_tf32_is_said(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    notes = make_gpu(monkeypatch).ready()["notes"]
    assert any("NVIDIA_TF32_OVERRIDE=0" in note for note in notes)


@pytest.mark.parametrize(("capability", "emulated"), [((7, 5), True), ((8, 0), False)])
def test_bf16_before_ampere_is_emulated(monkeypatch, capability, emulated):
    gpu = make_gpu(monkeypatch, "Tesla T4", capability)
    assert (gpu.emulation(GEMMS["bf16"]) is not None) is emulated
    assert gpu.emulation(GEMMS["fp16"]) is None


def test_boards_without_tensor_cores_are_named(monkeypatch):
    gpu = make_gpu(monkeypatch, "NVIDIA GeForce GTX 1660", (7, 5))
    assert gpu.remarks(GEMMS["fp16"]) == ("GTX 16 boards have no tensor cores",)
    assert gpu.remarks(GEMMS["fp32"]) == ()
    assert make_gpu(monkeypatch, "Tesla T4", (7, 5)).remarks(GEMMS["fp16"]) == ()


def test_a_watch_reads_from_its_beginning_on(monkeypatch):
    reads = []

    def read():
        reads.append(1)
        return nvml.Reading(1755, 4, 300.0)

    watch = devices._GpuWatch(read)
    assert reads == []
    watch.begin()
    while not reads:
        pass
    assert watch.finish() == nvml.Held(1755.0, "NVML, median of the burst", 4, 300.0)


def test_a_torch_without_cuda_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(DeviceUnavailableError, match=r"without CUDA.*--python"):
        CudaDevice("GPU-1")


def test_a_driver_that_is_too_old_is_an_error_in_torch_s_words(monkeypatch):
    import warnings

    def is_available():
        warnings.warn("The NVIDIA driver on your system is too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    with pytest.raises(DeviceUnavailableError, match=r"GPU-1: The NVIDIA driver .* too old"):
        CudaDevice("GPU-1")


@pytest.fixture
def cpu_of(monkeypatch):
    """The CPU with these flags, and threads put back afterwards."""
    before = torch.get_num_threads()

    def make(*flags, cpus=None):
        monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
        if cpus is not None:
            monkeypatch.setattr(machine, "read_cpus", lambda: cpus)
        return CpuDevice()

    yield make
    torch.set_num_threads(before)


def test_types_that_a_cpu_has_not_are_emulated(cpu_of):
    cpu = cpu_of("avx2", "fma")
    assert "AVX2" in cpu.emulation(GEMMS["bf16"])
    assert cpu.emulation(GEMMS["fp32"]) is None
    assert cpu_of("avx512f", "avx512_bf16").emulation(GEMMS["bf16"]) is None


def test_more_or_fewer_threads_than_cores_are_put_right(cpu_of):
    torch.set_num_threads(1)
    cpu = cpu_of(cpus=machine.Cpus(2, 2, None))
    assert torch.get_num_threads() == cpu.threads == 2
    ready = cpu.ready()
    assert (ready["threads"], ready["default_threads"], ready["usable_cpus"]) == (2, 1, 2)
    assert "measured with 2" in ready["notes"][0]


def test_one_thread_for_a_while(cpu_of):
    cpu = cpu_of(cpus=machine.Cpus(2, 2, None))
    with cpu.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == cpu.threads


def test_the_clock_under_wide_vectors_is_called_an_upper_bound(cpu_of):
    for flags, words in ((("avx512f",), "upper bound"), (("avx2",), "")):
        watch = cpu_of(*flags).watch()
        watch.begin()
        watch.between()
        held = watch.finish()
        if held.clock_mhz is None:
            pytest.skip("the clock cannot be measured here")
        assert words in held.note
        assert held.source == "measured: dependent-add loop"


def test_a_refused_clock_is_a_note(cpu_of, monkeypatch):
    def refuse():
        raise devices.cpu_clock.ClockUnavailableError("the system refuses executable memory")

    monkeypatch.setattr(devices.cpu_clock, "native_loop", refuse)
    cpu = cpu_of("avx2")
    assert "held clock not measured: the system refuses" in cpu.ready()["notes"][-1]
    watch = cpu.watch()
    watch.between()
    assert watch.finish().clock_mhz is None

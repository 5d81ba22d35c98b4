"""Each field of the identity and of a sample against a value of its own in the simulated driver."""

from __future__ import annotations

import pytest
from poller_process import Simulate, one_gpu

from topsmon import events

MIB = 1 << 20

DISTINCT = one_gpu(
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    pci_bus_id="00000000:65:00.0",
    pci_device="2331",
    pci_subsystem="10DE:1626",
    architecture=9,
    cores=14592,
    memory_bus_bits=5120,
    memory_total_mib=81000,
    memory_reserved_mib=500,
    memory_used_mib=12345,
    busy_percent=87,
    memory_busy_percent=31,
    sm_clock_mhz=1410,
    sm_clock_max_mhz=1755,
    memory_clock_mhz=1500,
    memory_clock_max_mhz=1593,
    graphics_clock_mhz=1111,
    power_watts=287.5,
    power_limit_watts=310,
    power_management_limit_watts=311,
    power_limit_default_watts=350,
    power_limit_min_watts=200,
    power_limit_max_watts=360,
    energy_joules=98765.432,
    temperature_celsius=61,
    temperature_shutdown_celsius=92,
    temperature_slowdown_celsius=87,
    clock_event_mask=0x24,
    performance_state=2,
    pcie_generation=4,
    pcie_generation_max=5,
    pcie_width=8,
    pcie_width_max=16,
    event_types_supported=8,
)


def test_identity_has_what_the_driver_says(simulate: Simulate) -> None:
    poller = simulate(DISTINCT)
    device = poller.first(events.Device, lambda device: device.kind == "gpu")
    assert device.unavailable == {}
    assert device.device == device.uuid == "GPU-11111111-2222-3333-4444-555555555555"
    assert device.index == 0
    assert device.name == "NVIDIA H100 80GB HBM3"
    assert device.pci_bus_id == "00000000:65:00.0"
    assert device.pci_device_id == "2331"
    assert device.pci_subsystem_id == "10DE:1626"
    assert device.compute_capability == "9.0"
    assert device.architecture == "Hopper"
    # NVIDIA H100 PCIe: 114 SMs of 128 FP32 cores (NVIDIA H100 architecture paper).
    assert device.sm_count == 114
    assert device.memory_total_bytes == 81000 * MIB
    assert device.memory_bus_bits == 5120
    assert device.sm_clock_max_mhz == 1755
    assert device.memory_clock_max_mhz == 1593
    assert device.power_limit_default_watts == 350
    assert device.power_limit_max_watts == 360
    assert device.temperature_slowdown_celsius == 87
    assert device.mig is False


def test_sample_has_what_the_driver_says(simulate: Simulate) -> None:
    sample = simulate(DISTINCT).first_sample()
    assert sample.busy_ratio == 0.87
    assert sample.memory_busy_ratio == 0.31
    assert sample.memory_used_bytes == 12345 * MIB
    assert sample.memory_reserved_bytes == 500 * MIB
    assert sample.memory_total_bytes == 81000 * MIB
    assert sample.memory_note == ""
    assert sample.sm_clock_mhz == 1410
    assert sample.memory_clock_mhz == 1500
    assert sample.power_watts == 287.5
    assert sample.power_limit_watts == 310
    assert sample.energy_joules == 98765.432
    assert sample.temperature_celsius == 61
    assert sample.performance_state == 2
    assert sample.clock_event_mask == 0x24
    assert sample.pcie_generation == 4
    assert sample.pcie_generation_max == 5
    assert sample.pcie_width == 8
    assert sample.pcie_width_max == 16


def test_the_host_event_is_completed_with_the_drivers_versions(simulate: Simulate) -> None:
    poller = simulate({**DISTINCT, "driver": {"version": "550.90.07", "cuda": "12.4"}})
    host = poller.wait(events.Host, lambda host: host.driver_version is not None)
    assert (host.driver_version, host.cuda_version) == ("550.90.07", "12.4")


def test_ceilings_of_the_board_follow_its_identity(simulate: Simulate) -> None:
    poller = simulate("h100-8")
    key = poller.key(3)
    ceilings = poller.first(events.Ceilings, lambda ceilings: ceilings.device == key)
    fp16 = next(rate for rate in ceilings.rates if rate.precision == "fp16_acc32")
    # H100 SXM datasheet: 989.4 TFLOPS dense.
    assert fp16.ops_per_second == pytest.approx(989.4e12, rel=0.015)


def test_old_driver_falls_back_to_the_calls_it_has(simulate: Simulate) -> None:
    poller = simulate("driver-470")
    device = poller.first(events.Device, lambda device: device.kind == "gpu")
    assert device.name == "Tesla V100-SXM2-16GB"
    assert device.sm_count is None
    assert "driver too old" in device.unavailable["sm_count"]
    sample = poller.first_sample()
    # GetTemperature, GetCurrentClocksThrottleReasons and version 1 of the memory struct.
    assert sample.temperature_celsius is not None
    assert sample.clock_event_mask is not None
    assert sample.memory_total_bytes == 16160 * MIB
    assert sample.memory_reserved_bytes is None
    assert "apart" in sample.unavailable["memory_reserved_bytes"]
    assert poller.processes().entries == ()


@pytest.mark.parametrize(
    ("mebibytes", "size"),
    [(16384, 17_179_869_184), (24576, 25_769_803_776)],
)
def test_memory_is_the_frame_buffer_in_bytes(simulate: Simulate, mebibytes: int, size: int) -> None:
    """A 16 GiB and a 24 GiB board; no aperture (BAR1) is added."""
    content = one_gpu(memory_total_mib=mebibytes, memory_used_mib=14360, memory_reserved_mib=0)
    sample = simulate(content).first_sample()
    assert sample.memory_total_bytes == size
    assert sample.memory_used_bytes == 15_057_551_360


@pytest.mark.parametrize("scenario", ["gb10", "gb10-zero"])
def test_unified_memory_is_the_sum_of_the_processes(simulate: Simulate, scenario: str) -> None:
    """A DGX Spark with 121.69 GiB: its processes hold 89.276 GiB, MemTotal-MemAvailable more."""
    content = one_gpu(
        name="NVIDIA GB10",
        compute_capability="12.1",
        pcie_generation=1,
        pcie_width=1,
        processes=[
            {"pid": 4193001, "memory_mib": 90000.0},
            {"pid": 4193002, "memory_mib": 1418.625},
        ],
    )
    size = 0 if scenario == "gb10-zero" else None
    for field in ("memory_total_mib", "memory_used_mib", "memory_reserved_mib"):
        content["device"][field] = size
    total = int(121.69 * 2**30)
    sample = simulate(content, memory_total_bytes=total).first_sample()
    assert sample.memory_used_bytes is not None
    assert sample.memory_used_bytes / 2**30 == pytest.approx(89.276, abs=0.001)
    assert sample.memory_total_bytes == total
    assert "unified" in sample.memory_note
    assert "sum of processes" in sample.memory_note
    assert sample.pcie_generation is None
    assert "integrated" in sample.unavailable["pcie_generation"]


def test_unified_memory_without_a_visible_process_is_not_known(simulate: Simulate) -> None:
    content = one_gpu(name="NVIDIA GB10", compute_capability="12.1", processes=[])
    content["device"]["memory_total_mib"] = None
    sample = simulate(content).first_sample()
    assert sample.memory_used_bytes is None
    assert sample.unavailable["memory_used_bytes"] == "no process is visible"
    assert sample.memory_total_bytes is not None


def test_a_discrete_gpu_without_memory_figures_is_not_called_unified(simulate: Simulate) -> None:
    content = one_gpu(memory_total_mib=None)
    sample = simulate(content).first_sample()
    assert sample.memory_total_bytes is None
    assert sample.memory_note == ""
    assert "not supported" in sample.unavailable["memory_total_bytes"]


def test_a_reading_that_is_missing_costs_no_other(simulate: Simulate) -> None:
    poller = simulate("laptop")
    sample = poller.first_sample()
    assert sample.power_limit_watts is None
    assert "not supported" in sample.unavailable["power_limit_watts"]
    assert sample.energy_joules is None
    assert sample.power_watts is not None
    assert sample.memory_total_bytes == 8188 * MIB


def test_a_laptop_at_55_of_105_watts_shows_both(simulate: Simulate) -> None:
    poller = simulate(
        one_gpu(
            name="NVIDIA GeForce RTX 4070 Laptop GPU",
            power_limit_watts=55,
            power_limit_min_watts=5,
            power_limit_max_watts=105,
            power_limit_default_watts=105,
        )
    )
    device = poller.first(events.Device, lambda device: device.kind == "gpu")
    assert device.power_limit_max_watts == 105
    assert poller.first_sample().power_limit_watts == 55


def test_the_managed_limit_stands_in_for_the_enforced_one(simulate: Simulate) -> None:
    sample = simulate(one_gpu(power_management_limit_watts=80)).first_sample()
    assert sample.power_limit_watts == 80


def test_wsl_does_not_report_utilisation(simulate: Simulate) -> None:
    poller = simulate(one_gpu(processes=[{"pid": 4193001}]), wsl=True)
    sample = poller.first_sample()
    assert sample.busy_ratio is None
    assert "WSL2" in sample.unavailable["busy_ratio"]
    assert sample.memory_used_bytes == 1024 * MIB
    processes = poller.processes()
    assert processes.entries is not None
    assert processes.entries[0].memory_bytes is None
    assert "memory per process" in processes.reason


def test_mig_shows_slices_with_their_memory_and_no_utilisation(simulate: Simulate) -> None:
    poller = simulate("mig")
    device = poller.first(events.Device, lambda device: device.kind == "gpu")
    assert device.mig
    sample = poller.first_sample()
    assert sample.busy_ratio is None
    assert "MIG" in sample.unavailable["busy_ratio"]
    # 20214 of 40320 MiB, 11480 of 40321 MiB, 176 of 9984 MiB.
    assert sample.memory_note == (
        "3 MIG instances: 3g.40gb 19.7 of 39.4 GiB, 3g.40gb 11.2 of 39.4 GiB, "
        "1g.10gb 0.2 of 9.8 GiB"
    )


def test_a_name_with_a_bad_byte_keeps_the_rest(simulate: Simulate) -> None:
    poller = simulate("bad-name")
    device = poller.first(events.Device, lambda device: device.kind == "gpu")
    assert device.name == "NVIDIA H100 \N{REPLACEMENT CHARACTER}80GB HBM3"


def test_a_name_of_garbage_is_called_unreadable(simulate: Simulate) -> None:
    poller = simulate(one_gpu(name="\udcf8\udcff\udcfe"))
    device = poller.first(events.Device, lambda device: device.kind == "gpu")
    assert device.name == "NVIDIA GPU 0 (name unreadable)"
    assert poller.first_sample().memory_used_bytes == 1024 * MIB


def test_an_idle_link_is_shown_beside_its_maximum(simulate: Simulate) -> None:
    sample = simulate(
        one_gpu(
            pcie_generation=1,
            pcie_generation_max=3,
            pcie_width=16,
            pcie_width_max=16,
            performance_state=8,
        )
    ).first_sample()
    assert (sample.pcie_generation, sample.pcie_generation_max) == (1, 3)
    assert sample.performance_state == 8


@pytest.mark.parametrize(
    ("field", "raw", "reading"),
    [
        ("busy_percent", 4294967295, "busy_ratio"),
        ("busy_percent", 101, "busy_ratio"),
        ("memory_used_mib", 90000, "memory_used_bytes"),
        ("power_watts", 2147483.632, "power_watts"),
        ("temperature_celsius", 4000, "temperature_celsius"),
        ("performance_state", 32, "performance_state"),
        ("pcie_width", 0, "pcie_width"),
        ("sm_clock_mhz", 4294967295, "sm_clock_mhz"),
    ],
)
def test_values_that_cannot_be_are_not_shown(
    simulate: Simulate, field: str, raw: float, reading: str
) -> None:
    content = one_gpu(memory_busy_percent=5, busy_percent=5)
    content["device"][field] = raw
    sample = simulate(content).first_sample()
    assert getattr(sample, reading) is None
    assert sample.unavailable[reading]
    assert sample.memory_total_bytes == 81559 * MIB


def test_zero_is_no_reading_of_a_gpu_that_answers(simulate: Simulate) -> None:
    sample = simulate("all-zero").sample()
    for field in ("power_watts", "sm_clock_mhz", "memory_clock_mhz", "temperature_celsius"):
        assert getattr(sample, field) is None
        assert sample.unavailable[field] == "implausible value 0 from the driver"
    assert sample.busy_ratio == 0.0  # an idle GPU

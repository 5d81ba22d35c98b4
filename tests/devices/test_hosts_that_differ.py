"""Hosts whose driver tells less, or lies: each says in its own words what is missing and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from poller_process import Read, Simulate, one_gpu

from topsmon import events
from topsmon.devices import startup


def refusing(content: dict[str, Any], *calls: str) -> dict[str, Any]:
    return {**content, "faults": [{"call": list(calls), "return": "NotSupported"}]}


@pytest.mark.parametrize("name", ["GRID T4-16Q", "NVIDIA A100-40C", "NVIDIA H100XM-3-40C"])
def test_a_virtual_gpu_says_that_it_is_one(read: Read, name: str) -> None:
    content = refusing(one_gpu(name=name), "nvmlDeviceGetPowerUsage")
    sample = read(content, [0.0]).samples[0]
    assert sample.power_watts is None
    assert "vGPU" in sample.unavailable["power_watts"]
    assert sample.memory_total_bytes == 81559 << 20


@pytest.mark.parametrize("name", [None, "Orin (nvgpu)"])
def test_a_jetson_is_called_one_and_points_to_its_own_tools(read: Read, name: str | None) -> None:
    content = one_gpu(name=name, compute_capability="8.7")
    content["device"]["memory_total_mib"] = None
    result = read(content, [0.0], facts={"jetson": True})
    assert name or "Jetson" in result.device.name
    sample = result.samples[0]
    assert "Jetson" in sample.unavailable["power_watts"]
    assert "tegrastats or jtop" in sample.unavailable["busy_ratio"]
    assert "unified" in sample.memory_note


def test_zeros_of_a_jetson_are_no_readings(read: Read) -> None:
    """SUCCESS with 0 for everything (nv-monitor#17)."""
    content = one_gpu(
        name="Orin (nvgpu)",
        compute_capability="8.7",
        memory_total_mib=0,
        memory_used_mib=0,
        busy_percent=0,
        memory_busy_percent=0,
        power_watts=0,
        sm_clock_mhz=0,
        temperature_celsius=0,
    )
    sample = read(content, [0.0], facts={"jetson": True}).samples[0]
    for field in ("busy_ratio", "memory_busy_ratio", "power_watts", "sm_clock_mhz"):
        assert getattr(sample, field) is None
        assert sample.unavailable[field]
    idle = one_gpu(busy_percent=0, memory_busy_percent=0, power_watts=60)
    assert read(idle, [0.0]).samples[0].busy_ratio == 0


def test_an_integrated_gpu_has_no_pcie_traffic(read: Read) -> None:
    content = one_gpu(name="NVIDIA GB10", compute_capability="12.1", pcie_transmit_bytes=5)
    content["device"]["memory_total_mib"] = None
    result = read(content, [0.0])
    assert result.samples[0].pcie_transmit_bytes_per_second is None
    assert result.samples[0].throttle_ratios == {}


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        ("470.256.02", {"nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature"}),
        ("535.261.03", {"nvmlDeviceGetMarginTemperature"}),
    ],
)
def test_old_drivers_answer_what_they_can(read: Read, version: str, missing: set[str]) -> None:
    """Symbols of Debian's libraries; what is missing is missed once and does no harm."""
    content = one_gpu(
        temperature_celsius=61,
        temperature_margin_celsius=20,
        fan_count=1,
        fan_percent=40,
        memory_temperature_celsius=70,
        gpm_supported=1,
        gpm_sm_percent=50,
    )
    content["driver"] = {"version": version, "symbols": int(version[:3])}
    sample = read(content, [0.0, 1.0, 2.0]).samples[-1]
    assert sample.temperature_celsius == 61
    assert sample.memory_temperature_celsius == 70
    assert sample.fan_ratio == 0.4
    assert sample.temperature_margin_celsius is None
    assert "driver too old" in sample.unavailable["temperature_margin_celsius"]
    if version.startswith("470"):
        assert sample.counters is None
        assert "too old" in sample.unavailable["counters"]


def test_permission_lost_in_mid_run_costs_that_reading_alone(read: Read) -> None:
    faults = [
        {"call": "nvmlDeviceGetPowerUsage", "return": "NoPermission", "start": 1, "end": 50},
        {"call": "field:82", "return": "NoPermission", "start": 1, "end": 50},
    ]
    content = one_gpu(power_watts=300, memory_temperature_celsius=70, throttle_power_seconds=0)
    samples = read({**content, "faults": faults}, [0.0, 2.0, 60.0, 63.0]).samples
    assert [one.power_watts for one in samples] == [300, None, None, 300]
    assert [one.memory_temperature_celsius for one in samples] == [70, None, None, 70]
    assert "no permission" in samples[1].unavailable["memory_temperature_celsius"]
    assert samples[2].throttle_ratios["power"] == 0


def test_a_field_that_fails_in_passing_keeps_its_value(read: Read) -> None:
    fault = {"call": "field:82", "return": "Unknown", "start": 1, "end": 2.5}
    content = {**one_gpu(memory_temperature_celsius=70), "faults": [fault]}
    samples = read(content, [0.0, 1.0, 2.0, 3.0]).samples
    assert [one.memory_temperature_celsius for one in samples] == [70] * 4


def test_a_batch_that_fails_in_passing_makes_no_rate_up(read: Read) -> None:
    """The interval without news is part of the next one: neither 0 nor twice the rate."""
    fault = {"call": "nvmlDeviceGetFieldValues", "return": "Unknown", "start": 1.5, "end": 2.5}
    content = one_gpu(throttle_power_seconds={"count": [0, 0.25]})
    samples = read({**content, "faults": [fault]}, [0.0, 1.0, 2.0, 3.0]).samples
    assert [one.throttle_ratios.get("power") for one in samples[1:]] == pytest.approx([0.25] * 3)


def test_a_gpu_lost_in_a_field_is_lost(read: Read) -> None:
    fault = {"call": "nvmlDeviceGetFieldValues", "return": "GpuIsLost", "start": 1}
    result = read({**one_gpu(memory_temperature_celsius=70), "faults": [fault]}, [0.0, 1.0])
    assert len(result.samples) == 1
    assert "lost" in result.errors


def test_a_handle_that_the_driver_knows_no_more_is_a_lost_gpu(read: Read) -> None:
    """The device count fell: every call on the old handle is an invalid argument."""
    fault = {"call": "nvmlDevice*", "return": "InvalidArgument", "start": 1}
    content = {**one_gpu(power_watts=300, sm_clock_mhz=1000, busy_percent=1), "faults": [fault]}
    result = read(content, [float(second) for second in range(8)])
    assert "does not know this GPU any more" in result.errors


def test_an_index_that_another_gpu_has_taken_is_refused(simulate: Simulate) -> None:
    """GPU 1 has never told its UUID; when GPU 0 leaves, its index names GPU 2."""
    content = one_gpu(power_watts=300)
    uuid = {"uuid": "GPU-22222222-0000-0000-0000-000000000000"}
    content |= {"count": 3, "devices": {"1": {**uuid, "power_watts": 301}, "2": uuid}}
    content["faults"] = [
        {"call": "nvmlDeviceGetHandleByIndex*", "device": 1, "return": "GpuIsLost", "end": 5}
    ]
    poller = simulate(content, search_seconds=0.1)
    assert poller.key(2) == uuid["uuid"]
    poller.first_sample(2)
    poller.first(events.DeviceStatus, lambda s: s.device == "gpu-1" and s.condition == "lost")
    poller.clock(5.0)
    refused = poller.wait(
        events.DeviceStatus, lambda s: s.device == "gpu-1" and "another GPU" in s.detail
    )
    assert refused.condition == "lost"
    assert poller.sample(2).power_watts == 300


# Other packages called pynvml ---------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes `import pynvml` find a module with this text."""
    monkeypatch.setattr(startup, "_library_loads", lambda: True)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)

    def make(text: str) -> Path:
        path = tmp_path / "pynvml.py"
        path.write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return path

    yield make
    sys.modules.pop("pynvml", None)


def test_an_impostor_is_named_with_its_place_and_the_fix(module: Any) -> None:
    path = module("class NVMLError(Exception): pass\ndef nvmlInit(): pass\n")
    trouble = startup.load_binding()
    assert isinstance(trouble, startup.Trouble)
    assert str(path) in trouble.message
    assert "not that of nvidia-ml-py" in trouble.message
    assert "pip install nvidia-ml-py" in trouble.remedy


@pytest.mark.parametrize("text", ['print "python 2"\n', "import pynvml.nvml\n", "1 / 0\n"])
def test_a_module_that_cannot_be_run_is_no_traceback(module: Any, text: str) -> None:
    module(text)
    trouble = startup.load_binding()
    assert isinstance(trouble, startup.Trouble)
    assert trouble.code == "binding"


def test_the_real_binding_is_no_impostor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_library_loads", lambda: True)
    assert not isinstance(startup.load_binding(), startup.Trouble)

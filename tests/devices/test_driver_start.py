"""What is said where there is no working driver; the CPU works all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from poller_process import Simulate

from topsmon import events
from topsmon.devices import nvml, startup
from topsmon.simulated import scenario, table


@pytest.mark.parametrize(
    ("name", "code", "message", "remedy"),
    [
        ("no-library", "no-library", "No NVIDIA driver library (libnvidia-ml.so.1).", "Install"),
        ("no-driver", "not-loaded", "kernel module is not loaded", "modprobe nvidia"),
        ("no-permission", "permission", "No permission on /dev/nvidia*.", "access"),
        ("unknown-error", "nvml-999", "code 999", "kernel log"),
        ("zero-devices", "no-gpu", "Driver works, no GPU visible.", "GPU"),
    ],
)
def test_each_trouble_has_its_words_and_the_cpu_goes_on(
    simulate: Simulate, name: str, code: str, message: str, remedy: str
) -> None:
    poller = simulate(name)
    problem = poller.wait(events.Problem)
    assert (problem.subject, problem.code) == ("nvml", code)
    assert message in problem.message
    assert remedy in problem.remedy
    sample = poller.first(events.DeviceSample)
    assert sample.device == "cpu"
    assert sample.memory_total_bytes


@pytest.mark.parametrize(
    ("vendor", "code"), [("0x8086", "no-device"), ("0x10de", "no-library")], ids=["none", "nvidia"]
)
def test_the_driver_is_missed_only_where_it_has_something_to_drive(
    simulate: Simulate, tmp_path: Path, vendor: str, code: str
) -> None:
    device = tmp_path / "root/sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    poller = simulate("no-library", root=str(tmp_path / "root"))
    assert poller.wait(events.Problem).code == code


def test_a_mismatch_shows_both_versions(simulate: Simulate) -> None:
    problem = simulate("mismatch").wait(events.Problem)
    assert problem.code == "mismatch"
    assert "library 580.95.05" in problem.message
    assert "Reboot" in problem.remedy


def test_version_of_the_kernel_module(tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    path = tmp_path / "driver/nvidia/version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
    )
    assert startup.module_version(tmp_path) == "550.54.15"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2\n")
    assert startup.module_version(tmp_path) == "470.256.02"


def test_the_words_of_a_mismatch() -> None:
    trouble = startup.trouble(18, container=False, library="550.54.15", module="535.161.08")
    assert "kernel module 535.161.08, library 550.54.15" in trouble.message


def test_unknown_in_a_container_means_that_its_access_was_taken() -> None:
    assert "Recreate the container" in startup.trouble(999, container=True).remedy
    assert startup.trouble(999, container=False).code == "nvml-999"


def test_a_library_that_is_no_nvml_is_named() -> None:
    assert "not a usable NVML library" in startup.trouble(13, container=False).message


def test_library_path_from_the_memory_map(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/maps").write_text(
        "7f00-7f01 r-xp 00000000 08:01 42    /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 08:01 43    /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.161.08\n"
    )
    path = startup.library_path(tmp_path)
    assert path == "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.161.08"
    # A library that does not tell its version before it is initialised: release 470.
    silent = nvml.Driver(_Silent())
    assert startup.library_version(silent, nvml.Watch(), tmp_path) == "535.161.08"


class _Silent:
    NVMLError = ValueError


def test_a_start_that_hangs_is_told_and_is_over_when_it_returns(simulate: Simulate) -> None:
    content = {
        "title": "slow",
        "description": "slow start",
        "expected": "ok",
        "faults": [{"call": "nvmlInit*", "latency": 0.8}],
    }
    poller = simulate(content, stall_seconds=0.2)
    assert poller.wait(events.Problem).code == "stalled"
    assert poller.wait(events.Problem).code is None
    assert poller.sample(0).memory_total_bytes is None


def test_a_start_that_never_returns_does_not_hold_up_the_end(simulate: Simulate) -> None:
    content = {
        "title": "hangs",
        "description": "hanging start",
        "expected": "STALE",
        "faults": [{"call": "nvmlInit*", "hang": True}],
    }
    poller = simulate(content, stall_seconds=0.2)
    problem = poller.wait(events.Problem)
    assert "nvmlInit" in problem.message
    poller.wait(events.DeviceSample, lambda sample: sample.device == "cpu")
    assert poller.close() == 0


def test_a_driver_that_is_loaded_later_is_found(simulate: Simulate, monkeypatch) -> None:
    poller = simulate("no-driver", retry_seconds=0.2)
    assert poller.wait(events.Problem).code == "not-loaded"
    table.write(scenario.load("rtx4090"), poller.folder / "table")
    assert poller.wait(events.Problem).code is None
    assert poller.sample(0).power_watts is not None


def test_a_driver_that_is_still_being_reloaded_is_tried_again(simulate: Simulate) -> None:
    content = {
        "title": "reload",
        "description": "the first count fails",
        "expected": "ok",
        "count": 1,
        "device": {"name": "NVIDIA A2", "power_watts": 20},
        "faults": [{"call": "nvmlDeviceGetCount*", "return": "Uninitialized", "count": 1}],
    }
    poller = simulate(content, retry_seconds=0.2)
    problem = poller.wait(events.Problem)
    assert problem.code == "nvml-1"
    assert poller.wait(events.Problem).code is None
    assert poller.sample(0).power_watts == 20


def test_sleeping_gpus_are_not_woken(simulate: Simulate, tmp_path: Path) -> None:
    device = tmp_path / "root/sys/bus/pci/devices/0000:1b:00.0"
    (device / "power").mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    (device / "power/runtime_status").write_text("suspended\n")
    poller = simulate("rtx4090", root=str(tmp_path / "root"), asleep_seconds=0.2)
    gpu = poller.first(events.Device, lambda device: device.kind == "gpu")
    assert gpu.device == "gpu-0"
    assert poller.first(events.DeviceStatus, lambda s: s.device == "gpu-0").condition == "asleep"
    assert poller.calls() == []
    (device / "power/runtime_status").write_text("active\n")
    named = poller.wait(events.Device, lambda device: device.uuid is not None)
    assert (named.device, named.name) == ("gpu-0", "NVIDIA GeForce RTX 4090")
    poller.status(0, "ok")
    (device / "power/runtime_status").write_text("suspended\n")
    poller.status(0, "asleep")
    calls = poller.calls()
    for _ in range(4):
        poller.wait(events.DeviceSample, lambda sample: sample.device == "cpu")
    assert poller.calls() == calls

"""GPUs that are lost, hang, lie or come back; the others go on."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from poller_process import PATIENCE, Poller, Simulate, one_gpu

from topsmon import events


def faulty(*faults: dict[str, Any], count: int = 2, **fields: Any) -> dict[str, Any]:
    content = one_gpu(**{"power_watts": 300, **fields})
    return {**content, "count": count, "faults": list(faults)}


def test_a_gpu_lost_in_mid_run_is_reported_and_leaves_the_others(simulate: Simulate) -> None:
    poller = simulate("gpu-lost", search_seconds=0.1)
    poller.sample(2)
    poller.clock(8.0)
    lost = poller.status(2, "lost")
    assert "GpuIsLost" in lost.detail
    assert lost.since <= time.monotonic()
    for index in (0, 1, 3):
        assert poller.sample(index).power_watts is not None


def test_a_lost_handle_is_never_used_again(simulate: Simulate) -> None:
    poller = simulate("gpu-lost", search_seconds=0.1)
    poller.sample(2)
    poller.clock(8.0)
    poller.status(2, "lost")
    before = len([name for name, device in poller.calls() if device == 2])
    for _ in range(5):
        poller.sample(0)
    after = [name for name, device in poller.calls() if device == 2][before:]
    assert set(after) <= {"nvmlDeviceGetHandleByUUID"}


def test_a_lost_gpu_is_found_again_by_its_uuid(simulate: Simulate) -> None:
    poller = simulate("gpu-lost-heals", search_seconds=0.1)
    key = poller.key(2)
    poller.sample(2)
    poller.clock(6.0)
    poller.status(2, "lost")
    poller.clock(16.0)
    again = poller.wait(events.Device, lambda device: device.index == 2)
    assert again.device == again.uuid == key
    poller.status(2, "ok")
    assert poller.sample(2).power_watts is not None
    assert ("nvmlDeviceGetHandleByUUID", 2) in poller.calls()


def test_a_gpu_lost_from_the_start_keeps_its_row(simulate: Simulate) -> None:
    poller = simulate("gpu-lost-at-start", search_seconds=0.1)
    device = poller.first(events.Device, lambda device: device.index == 1)
    assert device.device == "gpu-1"
    assert device.name == "NVIDIA GPU 1 (name unknown)"
    status = poller.first(events.DeviceStatus, lambda status: status.device == "gpu-1")
    assert status.condition == "lost"
    assert poller.sample(3).power_watts is not None


def test_a_row_known_by_its_index_keeps_that_key_when_it_heals(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetHandleBy*", "device": 1, "return": "GpuIsLost", "end": 5}
    poller = simulate(faulty(fault), search_seconds=0.1)
    poller.first(events.DeviceStatus, lambda s: s.device == "gpu-1" and s.condition == "lost")
    poller.clock(5.0)
    device = poller.wait(events.Device, lambda device: device.index == 1)
    assert device.device == "gpu-1"
    assert device.uuid is not None
    assert device.uuid.startswith("GPU-")
    poller.status(1, "ok")


def test_a_null_handle_is_never_used(simulate: Simulate) -> None:
    """With it the next call would be a segmentation fault."""
    fault = {"call": "nvmlDeviceGetHandleByIndex*", "device": 0, "null_handle": True}
    poller = simulate(faulty(fault))
    lost = poller.first(events.DeviceStatus, lambda status: status.device == "gpu-0")
    assert lost.condition == "lost"
    assert poller.sample(1).power_watts == 300


def test_a_handle_without_permission_says_so(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetHandleByIndex*", "device": 0, "return": "NoPermission"}
    poller = simulate(faulty(fault))
    status = poller.first(events.DeviceStatus, lambda status: status.device == "gpu-0")
    assert (status.condition, "no permission" in status.detail) == ("error", True)


def test_a_call_that_hangs_is_named_and_leaves_the_others_fresh(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetPowerUsage", "device": 0, "hang": True, "start": 1}
    poller = simulate(faulty(fault), stall_seconds=0.3)
    poller.sample(0)
    poller.clock(1.0)
    stalled = poller.status(0, "stalled")
    assert "driver not answering: nvmlDeviceGetPowerUsage" in stalled.detail
    assert stalled.monotonic - stalled.since >= 0.3
    for _ in range(3):
        assert poller.sample(1).power_watts == 300
    hanging = [call for call in poller.calls() if call == ("nvmlDeviceGetPowerUsage", 0)]
    others = [call for call in poller.calls() if call == ("nvmlDeviceGetPowerUsage", 1)]
    assert len(hanging) < len(others)


def test_no_second_call_goes_to_a_gpu_that_hangs(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetPowerUsage", "device": 0, "hang": True}
    poller = simulate(faulty(fault), stall_seconds=0.2)
    poller.status(0, "stalled")
    before = [call for call in poller.calls() if call[1] == 0]
    assert before[-1] == ("nvmlDeviceGetPowerUsage", 0)
    for _ in range(4):
        poller.sample(1)
    assert [call for call in poller.calls() if call[1] == 0] == before


def test_a_stall_that_ends_is_over(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetPowerUsage", "device": 0, "latency": 2.0, "start": 1, "count": 1}
    poller = simulate(faulty(fault), stall_seconds=0.2)
    poller.sample(0)
    poller.clock(1.0)
    poller.status(0, "stalled")
    poller.status(0, "ok")
    assert poller.sample(0).power_watts == 300


def test_a_gpu_that_hangs_before_it_has_told_its_name_gets_a_row(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetHandleByIndex*", "device": 0, "hang": True}
    poller = simulate(faulty(fault), stall_seconds=0.2)
    device = poller.first(events.Device, lambda device: device.index == 0 and device.kind == "gpu")
    assert device.device == "gpu-0"
    poller.first(events.DeviceStatus, lambda s: s.device == "gpu-0" and s.condition == "stalled")
    assert poller.sample(1).power_watts == 300


@pytest.mark.parametrize("scenario", ["hang", "hang-all"])
def test_a_hanging_driver_does_not_hold_up_the_end(simulate: Simulate, scenario: str) -> None:
    poller = simulate(scenario, stall_seconds=0.2)
    poller.sample(0)
    poller.clock(30.0)
    poller.first(events.DeviceStatus, lambda status: status.condition == "stalled")
    assert poller.close() == 0


def test_a_crash_in_the_library_ends_only_the_poller(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetPowerUsage", "crash": True, "start": 1}
    poller = simulate(faulty(fault))
    poller.sample(0)
    poller.clock(1.0)
    assert poller.process.wait(PATIENCE) == -signal.SIGSEGV


def test_a_reloaded_driver_asks_for_a_new_process(simulate: Simulate) -> None:
    poller = simulate("driver-reload")
    key = poller.key(0)
    for index in range(2):  # the first GPU that meets it ends the poller
        poller.sample(index)
    poller.clock(6.0)
    error = poller.wait(events.DeviceStatus, lambda status: status.condition == "error")
    assert "reloaded" in error.detail
    assert key
    assert poller.process.wait(PATIENCE) == 75


def test_an_upgrade_in_mid_run_is_named(simulate: Simulate) -> None:
    fault = {"call": "nvmlDevice*", "return": "LibRmVersionMismatch", "start": 1}
    poller = simulate(faulty(fault))
    for index in range(2):  # the first GPU that meets it ends the poller
        poller.sample(index)
    poller.clock(1.0)
    error = poller.wait(events.DeviceStatus, lambda status: status.condition == "error")
    assert "driver library and kernel module differ" in error.detail
    assert poller.process.wait(PATIENCE) == 75


def test_a_passing_error_keeps_the_last_value(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetPowerUsage", "return": "Unknown", "start": 1, "count": 2}
    poller = simulate(faulty(fault, count=1))
    poller.sample(0)
    poller.clock(1.0)
    for _ in range(8):
        assert poller.sample(0).power_watts == 300
    assert [name for name, _ in poller.calls()].count("nvmlDeviceGetPowerUsage") >= 4


def test_garbage_in_the_process_list_is_dropped(simulate: Simulate) -> None:
    """Driver 535 with a changed struct: impossible PIDs, memory beyond the board's."""
    poller = simulate(
        one_gpu(
            processes=[
                {"pid": 2147483648, "memory_mib": 10},
                {"pid": 0, "memory_mib": 10},
                {"pid": 4193001, "memory_mib": 900000000},
                {"pid": 4193002},
                {"pid": 4193003, "memory_mib": 512},
            ]
        )
    )
    entries = poller.processes().entries
    assert entries is not None
    assert [(entry.pid, entry.memory_bytes) for entry in entries] == [
        (4193001, None),
        (4193002, None),
        (4193003, 512 << 20),
    ]


def test_a_process_table_that_grows_is_asked_again(simulate: Simulate) -> None:
    # The first two calls are the size query and the fill; the fill fails once.
    fault = {
        "call": "nvmlDeviceGetComputeRunningProcesses*",
        "return": "InsufficientSize",
        "after": 1,
        "count": 1,
    }
    poller = simulate(faulty(fault, count=1, processes=[{"pid": 4193001, "memory_mib": 5}]))
    entries = poller.processes().entries
    assert entries is not None
    assert [entry.pid for entry in entries] == [4193001]


def test_processes_that_cannot_be_read_are_not_none_at_all(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceGetComputeRunningProcesses*", "return": "NoPermission"}
    processes = simulate(faulty(fault, count=1)).processes()
    assert processes.entries is None
    assert "no permission" in processes.reason


def test_unknown_processes_keep_their_row(simulate: Simulate) -> None:
    poller = simulate(one_gpu(processes=[{"pid": 4193001, "memory_mib": 7}]))
    entries = poller.processes().entries
    assert entries == (events.ProcessEntry(pid=4193001, memory_bytes=7 << 20, local=False),)


def test_the_session_goes_on_after_a_surprise(
    simulate: Simulate,
) -> None:
    """A PID that no process can have, an unreadable UUID: the GPU still has its row and samples."""
    poller: Poller = simulate(one_gpu(uuid=None, power_watts=300))
    assert poller.key(0) == "gpu-0"
    assert poller.first_sample(0).power_watts == 300

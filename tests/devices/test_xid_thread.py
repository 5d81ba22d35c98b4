"""XID errors, waited for in one thread for all GPUs that nobody waits for."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from poller_process import Simulate, one_gpu

from topsmon import events
from topsmon.devices import nvml
from topsmon.devices.pace import Pace
from topsmon.devices.xid_events import XidEvents


def with_xids(count: int, xids: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
    content = one_gpu(event_types_supported=8, power_watts=300)
    devices = {index: {"xids": told} for index, told in xids.items()}
    return {**content, "count": count, "devices": devices, **more}


def test_an_xid_names_its_gpu_and_its_number(simulate: Simulate) -> None:
    content = with_xids(
        4, {"1": [{"xid": 79, "time": 6}], "2": [{"xid": 94, "time": 7}, {"xid": 119, "time": 8}]}
    )
    poller = simulate(content)
    keys = [poller.key(index) for index in range(4)]
    for index in range(4):
        poller.first_sample(index)
    poller.clock(9.0)
    told = [poller.wait(events.Xid) for _ in range(3)]
    assert [(event.device, event.code) for event in told] == [
        (keys[1], 79),
        (keys[2], 94),
        (keys[2], 119),
    ]


def test_one_thread_waits_for_all_gpus(simulate: Simulate) -> None:
    poller = simulate(with_xids(4, {}))
    for index in range(4):
        poller.first_sample(index)
    calls = Counter(poller.calls())
    assert calls["nvmlEventSetCreate", -1] == 1
    assert sum(n for (name, _), n in calls.items() if name == "nvmlDeviceRegisterEvents") == 4
    # A wait takes 2 s and the test less.
    assert calls["nvmlEventSetWait_v2", -1] <= 2


def test_the_wait_does_not_hold_up_the_end(simulate: Simulate) -> None:
    poller = simulate(with_xids(1, {}))
    poller.first_sample()
    while not any(name == "nvmlEventSetWait_v2" for name, _ in poller.calls()):
        poller.sample()
    assert poller.close() == 0


def test_a_gpu_without_events_says_so_and_costs_no_other(simulate: Simulate) -> None:
    fault = {"call": "nvmlDeviceRegisterEvents", "device": 0, "return": "NotSupported"}
    poller = simulate(with_xids(2, {"1": [{"xid": 48, "time": 5}]}, faults=[fault]))
    device = poller.first(events.Device, lambda device: device.index == 0 and device.kind == "gpu")
    assert "NotSupported" in device.unavailable["xid"]
    key = poller.key(1)
    poller.first_sample(1)
    poller.clock(5.5)
    assert poller.wait(events.Xid).device == key


def test_an_event_set_that_cannot_be_made_costs_only_the_events(simulate: Simulate) -> None:
    fault = {"call": "nvmlEventSetCreate", "return": "NotSupported"}
    poller = simulate(with_xids(1, {}, faults=[fault]))
    assert poller.first_sample().power_watts == 300
    device = poller.first(events.Device, lambda device: device.kind == "gpu")
    assert "NotSupported" in device.unavailable["xid"]


def test_a_wait_that_fails_at_once_is_not_repeated_without_rest(simulate: Simulate) -> None:
    fault = {"call": "nvmlEventSetWait_v2", "return": "Unknown"}
    poller = simulate(with_xids(1, {}, faults=[fault]))
    for _ in range(8):
        poller.sample()
    assert Counter(poller.calls())["nvmlEventSetWait_v2", -1] <= 3


def test_a_gpu_that_comes_back_is_listened_to_again(simulate: Simulate) -> None:
    fault = {"call": "nvmlDevice*", "device": 0, "return": "GpuIsLost", "start": 1, "end": 2}
    content = with_xids(1, {"0": [{"xid": 13, "time": 4}]}, faults=[fault])
    poller = simulate(content, search_seconds=0.1)
    poller.first_sample()
    poller.clock(1.0)
    poller.status(0, "lost")
    poller.clock(2.0)
    poller.status(0, "ok")
    poller.clock(4.5)
    assert poller.wait(events.Xid).code == 13


def test_nobody_waits_while_every_gpu_sleeps(simulate: Simulate, tmp_path: Path) -> None:
    """Not even for events: a call of any kind may wake it."""
    status = tmp_path / "root/sys/bus/pci/devices/0000:01:00.0/power/runtime_status"
    status.parent.mkdir(parents=True)
    (status.parent.parent / "vendor").write_text("0x10de\n")
    (status.parent.parent / "class").write_text("0x030000\n")
    status.write_text("active\n")
    content = one_gpu(
        event_types_supported=8,
        pci_bus_id="00000000:01:00.0",
        pci_device="2786",
        pci_subsystem="10DE:16C1",
    )
    poller = simulate(content, root=str(tmp_path / "root"), wait_seconds=0.05)
    poller.first_sample()
    status.write_text("suspended\n")
    poller.status(0, "asleep")
    # One wait may have been out; it ends within 0.05 s.
    for _ in range(3):
        poller.wait(events.HostSample)
    before = poller.calls()
    for _ in range(4):
        poller.wait(events.HostSample)
    assert poller.calls() == before


class SlowToStart(threading.Thread):
    """A thread whose start takes a moment, as on a busy machine; it does nothing."""

    starts = 0

    def start(self) -> None:
        SlowToStart.starts += 1
        threading.Event().wait(0.02)
        super().start()


def test_workers_that_register_at_once_start_one_thread() -> None:
    binding = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlEventSetCreate=lambda: 1,
        nvmlDeviceRegisterEvents=lambda handle, kind, event_set: None,
    )
    xids = XidEvents(nvml.Driver(binding), Pace(1.0), lambda event: None, lambda: True)
    xids.thread = SlowToStart()
    xids.open(nvml.Watch())
    told: list[object] = []
    workers = [
        threading.Thread(
            target=lambda n=n: told.append(xids.register(nvml.Watch(), n, f"GPU-{n}", "here"))
        )
        for n in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert told == [None] * 8
    assert SlowToStart.starts == 1

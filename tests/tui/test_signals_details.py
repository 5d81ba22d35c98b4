"""The details of a device: every field with its unit, or the reason why it is missing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from screen_demo import FakeSession, cpu_only, fold, gpu, host, sample, stamp
from screen_text import OpenScreen, text_of
from signal_machines import machine, read
from test_screen_live import line_with

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.state import State
from topsmon.tui.sample_fields import (
    counter_pairs,
    head_of,
    identity_pairs,
    sample_pairs,
    topology_pairs,
    xid_pairs,
)

SECONDS = [1.01 * second for second in range(1, 9)]
READING = {
    "busy": "83.0%",
    "memory busy": "47.0%",
    "memory used": "59.6 GiB",
    "memory reserved": "551.0 MiB",
    "memory total": "79.6 GiB",
    "SM clock": "1741 MHz",
    "memory clock": "2617 MHz",
    "power": "613 W",
    "power limit": "690 W",
    "temperature": "53 °C",
    "performance state": "P1",
    "PCIe generation": "4",
    "PCIe generation max": "5",
    "PCIe width": "8",
    "PCIe width max": "16",
    "ECC enabled": "yes",
    "ECC uncorrected volatile": "2",
    "ECC uncorrected aggregate": "6",
    "ECC corrected volatile": "21",
    "ECC corrected aggregate": "211",
    "row remap pending": "yes",
    "row remap failed": "no",
    "memory temperature": "72 °C",
    "temperature margin": "34 °C",
    "fan": "38.0%",
    "encoder busy": "17.0%",
    "decoder busy": "19.0%",
    "PCIe transmit": "0.215 GB/s",
    "PCIe receive": "0.349 GB/s",
    "PCIe replays": "61",
    "NVLink links up": "17",
    "NVLink links": "18",
    "NVLink errors": "420",
    "NVLink transmit": "26.1 GB/s",
    "NVLink receive": "27.9 GB/s",
    "rows remapped corrected": "5",
    "rows remapped uncorrected": "7",
    "pages retired": "13",
    "pages retirement pending": "yes",
    "power limit default": "700 W",
    "compute mode": "exclusive-process",
    "persistence mode": "yes",
    "throttled: power cap": "1.1%",
    "throttled: thermal": "1.2%",
    "throttled: sync boost": "1.3%",
    "throttled: board limit": "1.4%",
    "throttled: reliability": "1.6%",
    "throttled: SW thermal": "1.7%",
    "throttled: HW thermal": "1.8%",
    "throttled: power brake": "1.9%",
}
COUNTERS = {
    "graphics active": "82.0%",
    "SM active": "71.0%",
    "SM occupancy": "29.0%",
    "tensor active": "46.0%",
    "DRAM active": "36.0%",
    "FP64 active": "5.0%",
    "FP32 active": "11.0%",
    "FP16 active": "7.0%",
    "integer active": "14.0%",
    "PCIe transmit": "0.215 GB/s",
    "PCIe receive": "0.349 GB/s",
    "NVLink transmit": "27.7 GB/s",
    "NVLink receive": "29.6 GB/s",
    "during burst": "no",
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> State:
    return machine(read("every-signal", tmp_path_factory.mktemp("details"), SECONDS))


def only(state: State) -> DeviceState:
    (device,) = state.gpus()
    return device


def test_each_field_of_a_reading_has_its_own_value(everything: State) -> None:
    found = dict(sample_pairs(only(everything)))
    assert {head: found[head] for head in READING} == READING
    # 5123000 J at the start, 613 W from then on.
    assert float(found["energy"].removesuffix(" J")) == pytest.approx(5123000 + 613 * 8.08, abs=2)
    assert found["clock event mask"].startswith("0x")
    assert found.keys() == READING.keys() | {"energy", "clock event mask"}


def test_each_counter_has_its_own_value(everything: State) -> None:
    found = dict(counter_pairs(only(everything)))
    assert {head: found[head] for head in COUNTERS} == COUNTERS
    assert found.keys() == COUNTERS.keys() | {"seconds"}


@pytest.mark.parametrize("kind", [events.Device, events.DeviceSample, events.GpuCounters])
def test_no_two_fields_have_one_name(kind: type[msgspec.Struct]) -> None:
    heads = [head_of(field) for field in kind.__struct_fields__]
    assert len(set(heads)) == len(heads)


def test_what_is_missing_says_why() -> None:
    device = gpu(0, sm_count=None, unavailable={"sm_count": "NVML NotSupported"})
    reading = sample(device.device, power_watts=None, unavailable={"power_watts": "no permission"})
    state = fold([host(), device, reading])
    assert dict(identity_pairs(only(state)))["SM count"] == "N/A: NVML NotSupported"
    found = dict(sample_pairs(only(state)))
    assert found["power"] == "N/A: no permission"
    assert found["NVLink errors"] == "N/A"
    assert not [text for text in found.values() if text.startswith("0") and "x" not in text]


def test_a_cpu_has_no_fields_of_a_gpu() -> None:
    device = only_cpu(cpu_only())
    assert [head for head, _ in sample_pairs(device)] == [
        "busy",
        "memory used",
        "memory total",
        "SM clock",
        "power",
    ]
    assert dict(sample_pairs(device))["power"] == "N/A: no permission for RAPL"
    assert (counter_pairs(device), xid_pairs(device)) == ([], [])


def only_cpu(state: State) -> DeviceState:
    (device,) = state.ordered()
    return device


def test_a_missing_reading_and_missing_counters_say_so() -> None:
    device = gpu(0)
    assert sample_pairs(only(fold([device]))) == [("reading", "N/A: none has come yet")]
    reading = sample(device.device, unavailable={"counters": "no GPM on this device"})
    pairs = counter_pairs(only(fold([device, reading])))
    assert pairs == [("counters", "N/A: no GPM on this device")]


def test_errors_of_the_driver_newest_first() -> None:
    device = gpu(0)
    codes = [
        events.Xid(**stamp(at=900.0), device=device.device, code=13),
        events.Xid(**stamp(at=960.0), device=device.device, code=79),
        events.Xid(**stamp(at=970.0), device=device.device, code=9999),
    ]
    pairs = xid_pairs(only(fold([device, *codes])))
    assert [head for head, _ in pairs] == ["XID 9999", "XID 79", "XID 13"]
    assert "not known to this version" in pairs[0][1]
    assert "bus" in pairs[1][1]
    assert xid_pairs(only(fold([device]))) == [("XID", "none since the start")]
    silent = gpu(0, unavailable={"xid": "WSL tells none"})
    assert xid_pairs(only(fold([silent]))) == [("XID", "N/A: WSL tells none")]


def test_equal_ways_to_other_gpus_stand_together() -> None:
    near, far = ("pci0000:16", "0000:16:01.0"), ("pci0000:c0", "0000:c0:01.0")
    state = fold(
        [
            gpu(0, pci_path=near, numa_node=0),
            gpu(1, pci_path=near, numa_node=0),
            gpu(2, pci_path=far, numa_node=1),
            gpu(3, pci_path=far, numa_node=1),
        ]
    )
    first = next(state.gpus())
    assert topology_pairs(state, first) == [
        ("to GPU 1", "one PCIe bridge (PIX)"),
        ("to GPU 2, 3", "the link between NUMA nodes (SYS)"),
    ]


async def test_enter_shows_verdict_counters_readings_and_identity(
    open_screen: OpenScreen, everything: State
) -> None:
    session = FakeSession(everything)
    async with open_screen(everything, size=(120, 180), session=session) as (app, pilot):
        await pilot.press("enter")
        await pilot.pause()
        lines = text_of(app)
        assert line_with(lines, "bound by", "mixed: several units work")
        assert line_with(lines, "tensor active", "46.0%")
        assert line_with(lines, "ECC corrected aggregate", "211")
        assert line_with(lines, "PCI path", "N/A: ")
        assert line_with(lines, "compute capability", "9.0")
        assert line_with(lines, "XID", "none since the start")


async def test_enter_shows_the_instances_of_a_gpu(open_screen: OpenScreen, tmp_path: Path) -> None:
    state = machine(read("mig", tmp_path, SECONDS))
    async with open_screen(state, size=(120, 180)) as (app, pilot):
        await pilot.press("enter")
        await pilot.pause()
        lines = text_of(app)
        assert line_with(lines, "3g.40gb #1: 60 SMs, 19.7 of 39.4 GiB")
        # Four of eight memory slices of 3352 GB/s.
        assert line_with(lines, "BF16 ceiling 450 T/s, memory 1676 GB/s")

"""Snapshot: what bounds a GPU, its MIG instances and XID errors, as text and as JSON."""

import json
from typing import Any

import msgspec
import pytest

from topsmon import ceilings, events
from topsmon.diagnosis import diagnose
from topsmon.report import once
from topsmon.report.columns import cells
from topsmon.state import State

NOW, WALL = 100.0, 1_700_000_000.0


def header(at: float = NOW - 0.1) -> dict[str, Any]:
    return {"time": WALL, "monotonic": at, "source": "node"}


def device(index: int = 0, **changes: Any) -> list[Any]:
    fields = {
        "device": f"GPU-{index}",
        "kind": "gpu",
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "pci_device_id": "2330",
        "compute_capability": "9.0",
        "sm_count": 132,
        "memory_total_bytes": 80 * 2**30,
        "sm_clock_max_mhz": 1980,
    }
    identity = events.Device(**header(1.0), **{**fields, **changes})
    return [identity, ceilings.for_device(identity)]


def sample(at: float, index: int = 0, **changes: Any) -> events.DeviceSample:
    fields = {
        "device": f"GPU-{index}",
        "busy_ratio": 0.84,
        "power_watts": 640.0,
        "power_limit_watts": 700.0,
        "sm_clock_mhz": 1755.0,
        "clock_event_mask": 0,
    }
    return events.DeviceSample(**header(at), **{**fields, **changes})


def counters(turn: int) -> events.GpuCounters:
    return events.GpuCounters(
        seconds=1.0,
        graphics_active_ratio=0.99,
        sm_active_ratio=0.9,
        sm_occupancy_ratio=0.3 + turn / 100,
        tensor_active_ratio=0.1,
        dram_active_ratio=0.92,
    )


def machine(*groups: Any) -> State:
    state = State()
    for group in groups:
        for event in group if isinstance(group, list) else [group]:
            state.apply(event, event.monotonic)
    return state


def loaded(index: int = 0) -> list[Any]:
    return [sample(NOW - 4 + turn, index, counters=counters(turn)) for turn in range(4)]


def text(state: State) -> list[str]:
    shown = once.text(state, diagnose(state, NOW), NOW, ascii_only=True, wall=WALL)
    return shown.splitlines()


def document(state: State, index: int = 0) -> dict[str, Any]:
    found = json.loads(once.to_json(state, diagnose(state, NOW), NOW, wall=WALL))
    return found["devices"][index]


def test_the_line_says_what_bounds_the_gpu_and_by_which_numbers() -> None:
    lines = text(machine(device(), loaded()))
    place = lines.index("bound by (GPU 0): memory-bound: DRAM 92% of its bandwidth")
    assert "SMs 90%, DRAM 92%" in lines[place + 1]
    assert all(cells(line) <= 80 for line in lines)


def test_gpus_with_the_same_words_share_a_line() -> None:
    single = [sample(NOW - 0.1, index, unavailable={"counters": "no GPM"}) for index in range(3)]
    lines = text(machine(device(0), device(1), device(2), *single))
    assert "bound by (GPU 0 and 2 more): cannot tell: no GPM" in lines


def test_a_machine_without_a_gpu_has_no_such_line() -> None:
    cpu = events.Device(**header(1.0), device="cpu", kind="cpu", index=0, name="EPYC")
    state = machine(cpu, events.DeviceSample(**header(), device="cpu", busy_ratio=0.5))
    assert not any(line.startswith("bound by") for line in text(state))
    assert document(state)["bound"] is None


def test_json_has_the_verdict_with_evidence_and_what_is_missing() -> None:
    found = document(machine(device(), loaded()))["bound"]
    assert (found["kind"], found["missing"]) == ("memory", [])
    assert found["evidence"]
    blind = document(machine(device(), sample(NOW - 0.1, unavailable={"counters": "no GPM"})))
    assert blind["bound"]["kind"] == "cannot tell"
    assert blind["bound"]["missing"] == ["counters: no GPM"]


def test_json_has_every_field_of_a_sample_and_null_where_nothing_was_read() -> None:
    found = document(machine(device(), sample(NOW - 0.1)))["sample"]
    fields = {one.name for one in msgspec.structs.fields(events.DeviceSample)}
    assert fields - set(found) == {"time", "monotonic", "source", "device"}
    for name in (
        "memory_temperature_celsius",
        "fan_ratio",
        "pcie_transmit_bytes_per_second",
        "nvlink_links_up",
        "pages_retired",
        "persistence_mode",
        "counters",
    ):
        assert found[name] is None
    assert found["throttle_ratios"] == {}


@pytest.mark.parametrize(
    ("code", "meaning", "weight"),
    [(79, "the GPU has fallen off the bus", "hardware"), (4242, None, None)],
)
def test_json_has_the_xid_errors_with_their_meaning(
    code: int, meaning: str | None, weight: str | None
) -> None:
    error = events.Xid(**header(NOW - 3), device="GPU-0", code=code)
    (found,) = document(machine(device(), loaded(), error))["xids"]
    assert found == {
        "code": code,
        "time_unix_seconds": WALL,
        "meaning": meaning,
        "weight": weight,
    }


def test_mig_instances_in_text_and_json() -> None:
    part = events.Slice(
        uuid="MIG-1",
        profile="3g.40gb",
        gpu_instance=1,
        sm_count=60,
        memory_used_bytes=10 * 2**30,
        memory_total_bytes=40 * 2**30,
        unavailable={"counters": "no GPM"},
    )
    state = machine(
        device(mig=True),
        sample(NOW - 0.1, busy_ratio=None),
        events.Slices(**header(), device="GPU-0", slices=(part,)),
    )
    lines = text(state)
    assert any(line.startswith("GPU 0: in MIG mode, 1 instance") for line in lines)
    assert "    3g.40gb #1: 60 SMs, 10.0 of 40.0 GiB, cannot tell: no GPM" in lines
    found = document(state)
    (one,) = found["slices"]
    assert (one["label"], one["sm_count"], one["counters"]) == ("3g.40gb #1", 60, None)
    assert one["ceilings_ops_per_second"]["bf16"] > 4e14
    assert one["bound"]["kind"] == "cannot tell"
    assert document(machine(device(), loaded()))["slices"] is None

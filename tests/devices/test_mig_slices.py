"""MIG instances: each with its SMs, memory and counters; they come and go while we read."""

from __future__ import annotations

from typing import Any

import pytest
from poller_process import Read, Simulate, one_gpu

from topsmon import ceilings, events

MIB = 1 << 20


def instance(place: int, profile: str, sms: int, **fields: Any) -> dict[str, Any]:
    return {
        "parent": 0,
        "name": f"NVIDIA H100 80GB HBM3 MIG {profile}",
        "uuid": f"MIG-00000000-0000-0000-0000-{place:012}",
        "sm_count": sms,
        "memory_total_mib": 9984,
        "memory_used_mib": 100 * place,
        "memory_reserved_mib": 0,
        "gpu_instance": place + 6,
        "compute_instance": 0,
        **fields,
    }


def cut(*instances: dict[str, Any], faults: tuple[dict[str, Any], ...] = (), **parent: Any) -> Any:
    content = one_gpu(mig_mode=1, mig_mode_pending=1, mig_count_max=7, **parent)
    content["devices"] = {str(place): one for place, one in enumerate(instances, start=1)}
    return {**content, "faults": list(faults)}


def test_every_instance_tells_what_it_is_and_has(read: Read) -> None:
    result = read("mig", [0.0, 1.0])
    slices = result.slices[-1].slices
    assert [(one.profile, one.sm_count, one.gpu_instance) for one in slices] == [
        ("3g.40gb", 60, 1),
        ("3g.40gb", 60, 2),
        ("1g.10gb", 16, 9),
    ]
    assert [one.memory_used_bytes for one in slices] == [20214 * MIB, 11480 * MIB, 176 * MIB]
    assert [one.memory_total_bytes for one in slices] == [40320 * MIB, 40321 * MIB, 9984 * MIB]
    assert len({one.uuid for one in slices}) == 3
    assert all(one.uuid is not None and one.uuid.startswith("MIG-") for one in slices)
    assert [one.compute_instance for one in slices] == [0, 0, 0]


def test_every_instance_has_counters_of_its_own(read: Read) -> None:
    slices = read("mig", [0.0, 1.0, 2.0]).slices[-1].slices
    tensor = [one.counters.tensor_active_ratio for one in slices if one.counters is not None]
    assert tensor == [0.71, 0.09, 0.0]
    dram = [one.counters.dram_active_ratio for one in slices if one.counters is not None]
    assert dram == [0.49, 0.63, 0.0]


def test_counters_of_instances_rest_while_hidden(read: Read) -> None:
    result = read("mig", [0.0, 1.0], counters=False)
    one = result.slices[-1].slices[0]
    assert one.counters is None
    assert "only while it is shown" in one.unavailable["counters"]
    asked = [name for _, name, _ in result.calls if "Gpm" in name]
    assert "nvmlGpmMigSampleGet" not in asked
    # One sample of the whole GPU tells whether there could be any.
    assert asked.count("nvmlGpmSampleGet") == 1


def test_instances_are_listed_where_the_gpu_may_not_be_read(read: Read) -> None:
    """In a container with one instance the parent's memory is refused."""
    fault = {"call": "nvmlDeviceGetMemoryInfo*", "device": 0, "return": "NoPermission"}
    result = read(cut(instance(1, "1g.10gb", 16), faults=(fault,)), [0.0])
    sample = result.samples[0]
    assert sample.memory_used_bytes is None
    assert "no permission" in sample.unavailable["memory_used_bytes"]
    assert [one.memory_used_bytes for one in result.slices[0].slices] == [100 * MIB]


def test_an_instance_that_is_destroyed_ends_its_row_at_once(read: Read) -> None:
    content = cut(
        instance(1, "1g.10gb", 16),
        instance(2, "1g.10gb", 16, present={"steps": [[0, 1], [1.5, 0]]}),
        faults=({"call": "nvmlDevice*", "device": 2, "return": "InvalidArgument", "start": 1.5},),
    )
    result = read(content, [0.0, 1.0, 2.0, 3.0])
    assert [len(event.slices) for event in result.slices] == [2, 2, 1, 1]
    assert result.errors == ""
    gone = [name for time, name, device in result.calls if device == 2 and time > 2]
    assert gone == []


def test_a_passing_error_of_an_instance_keeps_its_row(read: Read) -> None:
    fault = {"call": "nvmlDeviceGetMemoryInfo*", "device": 1, "return": "Unknown", "start": 0.5}
    one = read(cut(instance(1, "1g.10gb", 16), faults=(fault,)), [0.0, 1.0]).slices[-1].slices[0]
    assert (one.profile, one.memory_used_bytes) == ("1g.10gb", None)
    assert "unknown driver error" in one.unavailable["memory_used_bytes"]


def test_mig_mode_without_instances_is_an_empty_list(read: Read) -> None:
    result = read(cut(), [0.0])
    assert result.slices[0].slices == ()
    assert result.samples[0].memory_note == "0 MIG instances"


def test_mig_switched_off_tells_the_gpu_anew(simulate: Simulate) -> None:
    content = cut(instance(1, "1g.10gb", 16), busy_percent=40, memory_busy_percent=3)
    content["faults"] = [
        {"call": "nvmlDeviceGetUtilizationRates", "return": "NotSupported", "end": 1}
    ]
    content["device"]["mig_mode"] = {"steps": [[0, 1], [1, 0]]}
    poller = simulate(content, mig_seconds=0.2)
    assert poller.first(events.Device, lambda device: device.kind == "gpu").mig
    assert poller.first_sample().busy_ratio is None
    poller.clock(1.0)
    again = poller.wait(events.Device, lambda device: device.kind == "gpu")
    assert not again.mig
    assert poller.wait(events.Slices).slices == ()
    sample = poller.sample()
    assert (sample.busy_ratio, sample.memory_note) == (0.4, "")


def test_counters_of_a_gpu_instance_go_through_the_parent(read: Read) -> None:
    calls = [(name, device) for _, name, device in read("mig", [0.0, 1.0]).calls]
    assert ("nvmlGpmMigSampleGet", 0) in calls


# Ceilings of a slice -----------------------------------------------------------------------------


def h100() -> events.Device:
    return events.Device(
        time=0.0,
        monotonic=0.0,
        source="test",
        device="GPU-1",
        kind="gpu",
        index=0,
        name="NVIDIA H100 80GB HBM3",
        pci_device_id="2330",
        pci_subsystem_id="10DE:16C1",
        compute_capability="9.0",
        sm_count=132,
        memory_total_bytes=81559 * MIB,
        mig=True,
    )


@pytest.mark.parametrize(
    ("sms", "memory_mib", "eighths"), [(16, 9984, 1), (60, 40320, 4), (132, 81559, 8)]
)
def test_ceilings_of_a_slice_are_those_of_its_sms_and_memory_slices(
    sms: int, memory_mib: int, eighths: int
) -> None:
    """H100 SXM: 989.4 TFLOPS of dense FP16 over 132 SMs, 3352 GB/s (NVIDIA's datasheet)."""
    part = events.Slice(
        uuid="MIG-1", profile="x", sm_count=sms, memory_total_bytes=memory_mib * MIB
    )
    found = ceilings.for_slice(h100(), part)
    fp16 = next(rate for rate in found.rates if rate.precision == "fp16_acc32")
    assert fp16.ops_per_second == pytest.approx(989.4e12 * sms / 132, rel=0.015)
    assert found.memory_bandwidth_bytes_per_second == pytest.approx(3352e9 * eighths / 8, rel=0.015)


def test_a_slice_of_unknown_size_has_no_ceiling() -> None:
    found = ceilings.for_slice(h100(), events.Slice(uuid=None, profile="1g.10gb"))
    assert found.rates == ()
    assert found.unknown is not None
    assert "1g.10gb" in found.unknown

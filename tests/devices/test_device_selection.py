"""Which devices are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poller_process import PATIENCE, Simulate

from topsmon import events
from topsmon.devices.selection import Found, Selection, check, parse_visible, select

A = Found(0, "GPU-aaaa1111-0000", "NVIDIA A100")
B = Found(1, "GPU-bbbb2222-0000", "NVIDIA H100", mig=True)
C = Found(2, None)


def visible(value: str) -> Selection:
    return select((), True, {"CUDA_VISIBLE_DEVICES": value})


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ((), [A, B, C]),
        (("0",), [A]),
        (("2", "1"), [B, C]),
        (("GPU-bbbb",), [B]),
        (("gpu-AAAA1111",), [A]),
        (("cpu",), []),
        (("aaaa1111",), []),
    ],
)
def test_only(only: tuple[str, ...], wanted: list[Found]) -> None:
    selection = select(only, False, {})
    assert [device for device in (A, B, C) if selection.wants(device)] == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("0,2", [A, C]),
        ("GPU-bbbb2222", [B]),
        ("", []),
        ("-1", []),
        ("1,-1,0", [B]),
        ("0, 1", [A, B]),
        ("MIG-GPU-bbbb2222-0000/1/0", [B]),
        ("MIG-0e1f2a3b-1111-5222", [B]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices(value: str, wanted: list[Found]) -> None:
    assert [device for device in (A, B, C) if visible(value).wants(device)] == wanted


def test_an_index_that_does_not_exist_hides_what_follows() -> None:
    """CUDA Programming Guide: only devices before the invalid index are visible."""
    selection = visible("0,7,1").within(2)
    assert selection.wants(A)
    assert not selection.wants(B)


def test_without_the_variable_all_are_visible() -> None:
    assert select((), True, {}).wants(C)
    assert select((), False, {"CUDA_VISIBLE_DEVICES": "1"}).wants(A)


def test_the_cpu_is_selected_by_name_and_never_hidden() -> None:
    assert select((), True, {"CUDA_VISIBLE_DEVICES": ""}).wants_cpu()
    assert select(("CPU",), False, {}).wants_cpu()
    assert not select(("0",), False, {}).wants_cpu()


def test_the_driver_is_left_alone_where_no_gpu_is_wanted() -> None:
    assert not select(("cpu",), False, {}).wants_gpus()
    assert not visible("").wants_gpus()
    assert select(("cpu", "0"), False, {}).wants_gpus()


def test_an_unknown_device_is_an_error_that_lists_what_is_there() -> None:
    with pytest.raises(ValueError, match="no device '7'") as error:
        check(select(("0", "7", "cpu"), False, {}), [B, A])
    assert "0 (NVIDIA A100, GPU-aaaa1111-0000), 1 (NVIDIA H100" in str(error.value)
    assert str(error.value).endswith("cpu")
    check(select(("0", "GPU-bbbb", "cpu"), False, {}), [A, B])


def test_a_gpu_that_has_not_told_its_uuid_may_be_the_one() -> None:
    selection = select(("GPU-cccc",), False, {})
    check(selection, [A, C])
    assert selection.may_want(C)
    assert not selection.wants(C)
    assert not selection.may_want(A)
    assert not select(("0",), False, {}).may_want(C)


def test_the_error_says_why_there_is_no_gpu() -> None:
    with pytest.raises(ValueError, match=r"has: cpu \(No NVIDIA driver library\)"):
        check(select(("0",), False, {}), [], "No NVIDIA driver library.")


@given(st.text())
def test_any_value_of_the_variable_is_understood(value: str) -> None:
    entries = parse_visible({"CUDA_VISIBLE_DEVICES": value})
    assert entries is not None
    assert not Selection((), entries).wants(Found(10**9, "GPU-x")) or "GPU-" in value.upper()


def gpus(poller) -> list[int]:
    """Indexes of the GPUs that have sent a sample by the time of the CPU's third."""
    keys = {}
    for _ in range(3):
        poller.wait(events.DeviceSample, lambda sample: sample.device == "cpu")
    for event in poller.history:
        if isinstance(event, events.Device) and event.kind == "gpu":
            keys[event.device] = event.index
    return sorted(keys.values())


def test_only_the_selected_gpus_are_read(simulate: Simulate) -> None:
    poller = simulate("h100-8", only=["2", "5", "cpu"])
    poller.sample(2)
    poller.first_sample(5)
    assert gpus(poller) == [2, 5]
    assert {device for name, device in poller.calls() if name == "nvmlDeviceGetPowerUsage"} == {
        2,
        5,
    }


def test_a_gpu_asked_for_by_uuid_that_cannot_be_opened_is_shown(simulate: Simulate) -> None:
    poller = simulate("gpu-lost-at-start", only=["GPU-aaaa"])
    lost = poller.first(events.DeviceStatus, lambda status: status.device == "gpu-1")
    assert lost.condition == "lost"


def test_visible_devices_by_uuid(simulate: Simulate) -> None:
    every = simulate("h100-8")
    uuid = every.key(4)
    poller = simulate(
        "h100-8", only_visible=True, variables={"CUDA_VISIBLE_DEVICES": uuid[: len("GPU-") + 8]}
    )
    poller.sample(4)
    assert gpus(poller) == [4]


def test_without_the_cpu_its_load_is_still_told(simulate: Simulate) -> None:
    poller = simulate("rtx4090", only=["0"])
    poller.wait(events.HostSample)
    poller.sample(0)
    assert not any(
        event.device == "cpu" for event in poller.history if isinstance(event, events.Device)
    )


def test_a_device_that_is_not_here_ends_the_poller_with_the_list(simulate: Simulate) -> None:
    poller = simulate("rtx4090", only=["0", "3"])
    problem = poller.wait(events.Problem)
    assert problem.subject == "selection"
    assert "no device '3'" in problem.message
    assert poller.process.wait(PATIENCE) == 1
    assert poller.process.stderr is not None
    assert b"ValueError: --only: no device '3'; this machine has: 0 (NVIDIA GeForce RTX 4090" in (
        poller.process.stderr.read()
    )


def test_indexes_on_a_machine_with_different_boards_get_a_remark(simulate: Simulate) -> None:
    content = {
        "title": "mixed",
        "description": "two different boards",
        "expected": "ok",
        "count": 2,
        "devices": {"0": {"name": "NVIDIA A2"}, "1": {"name": "NVIDIA H100"}},
    }
    variables = {"CUDA_VISIBLE_DEVICES": "0"}
    poller = simulate(content, only_visible=True, variables=variables)
    problem = poller.wait(events.Problem)
    assert (problem.subject, problem.code) == ("CUDA_VISIBLE_DEVICES", "order")
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    poller = simulate(content, only_visible=True, variables=variables)
    poller.sample(0)
    gpus(poller)
    assert not any(isinstance(event, events.Problem) for event in poller.history)


@pytest.mark.parametrize(
    ("selected", "asks"),
    [
        (Selection(), False),
        (Selection(only=("cpu",)), False),
        (Selection(visible=()), False),
        (Selection(only=("cpu", "0")), True),
        (Selection(visible=("0",)), True),
    ],
)
def test_whether_a_gpu_was_asked_for(selected: Selection, asks: bool) -> None:
    assert selected.asks_for_gpus() is asks

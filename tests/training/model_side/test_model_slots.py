"""Asynchronous reads with a device that answers when the test says so."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topsmon.training.recorder import slots
from topsmon.training.recorder.slots import Slots


class FakeEvent:
    def __init__(self) -> None:
        self.ready = False
        self.queries = 0

    def query(self) -> bool:
        self.queries += 1
        return self.ready


class FakeDevice:
    """Tensors of float16 and float32 are "on the device"; what is float64 is the host's."""

    def __init__(self) -> None:
        self.events: list[FakeEvent] = []
        self.in_flight: list[tuple[Any, Any, FakeEvent]] = []
        self.pinned_sizes: list[int] = []
        self.is_blocked = False

    def immediate(self, tensor: Any) -> bool:
        return bool(tensor.dtype == torch.float64)

    def supported(self, tensor: Any) -> bool:
        return bool(tensor.dtype != torch.bool)

    def blocked(self) -> bool:
        return self.is_blocked

    def pinned(self, elements: int) -> Any:
        self.pinned_sizes.append(elements)
        return torch.full((elements,), math.nan, dtype=torch.float64)

    def event(self) -> FakeEvent:
        self.events.append(FakeEvent())
        return self.events[-1]

    def copy(self, target: Any, source: Any, event: FakeEvent) -> None:
        event.ready = False
        self.in_flight.append((target, source.to(torch.float64).clone(), event))

    def arrive(self, count: int = 1) -> None:
        for target, source, event in self.in_flight[:count]:
            target.copy_(source)
            event.ready = True
        del self.in_flight[:count]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def test_values_on_the_cpu_are_handed_over_at_once() -> None:
    got: list[list[float]] = []
    read = Slots().read
    assert read([torch.tensor(2.5), torch.tensor([1, 2]), torch.tensor(True)], got.append)
    assert got == [[2.5, 1.0, 2.0, 1.0]]


def test_values_that_need_a_gradient_are_read() -> None:
    got: list[list[float]] = []
    assert Slots().read([torch.tensor(2.0, requires_grad=True)], got.append)
    assert got == [[2.0]]


def test_a_device_read_arrives_at_a_later_poll(device: FakeDevice) -> None:
    got: list[list[float]] = []
    reader = Slots(device)
    assert reader.read([torch.tensor(65536.0), torch.tensor(math.inf)], got.append)
    reader.poll()
    assert (got, reader.pending) == ([], 1)
    device.arrive()
    reader.poll()
    assert (got, reader.pending, reader.dropped) == ([[65536.0, math.inf]], 0, 0)


def test_an_int32_tracker_passes_exactly_to_2_to_the_24(device: FakeDevice) -> None:
    got: list[list[float]] = []
    reader = Slots(device)
    reader.read([torch.tensor(1.5), torch.tensor(2**24, dtype=torch.int32)], got.append)
    device.arrive()
    reader.poll()
    assert got == [[1.5, 2.0**24]]


def test_host_values_keep_their_places(device: FakeDevice) -> None:
    got: list[list[float]] = []
    reader = Slots(device)
    host = torch.tensor([8.0, 9.0], dtype=torch.float64)
    reader.read([torch.tensor(1.0), host, torch.tensor([2.0, 3.0])], got.append)
    device.arrive()
    reader.poll()
    assert got == [[1.0, 8.0, 9.0, 2.0, 3.0]]


def test_no_free_slot_drops_and_counts(device: FakeDevice) -> None:
    got: list[list[float]] = []
    reader = Slots(device)
    results = [reader.read([torch.tensor(float(n))], got.append) for n in range(11)]
    assert results == [True] * slots.SMALL_SLOTS + [False] * 3
    assert reader.dropped == 3
    device.arrive(slots.SMALL_SLOTS)
    reader.poll()
    assert got == [[float(n)] for n in range(slots.SMALL_SLOTS)]
    assert reader.read([torch.tensor(1.0)], got.append)
    assert len(device.pinned_sizes) == slots.SMALL_SLOTS


def test_order_is_kept_when_events_finish_out_of_order(device: FakeDevice) -> None:
    got: list[list[float]] = []
    reader = Slots(device)
    reader.read([torch.tensor(1.0)], got.append)
    reader.read([torch.tensor(2.0)], got.append)
    target, source, event = device.in_flight.pop(1)
    target.copy_(source)
    event.ready = True
    reader.poll()
    assert got == []
    device.arrive()
    reader.poll()
    assert got == [[1.0], [2.0]]


def test_nothing_is_asked_while_nothing_is_pending(device: FakeDevice) -> None:
    reader = Slots(device)
    reader.read([torch.tensor(1.0)], lambda values: None)
    device.arrive()
    reader.poll()
    queries = device.events[0].queries
    for _ in range(100):
        reader.poll()
    assert device.events[0].queries == queries


def test_a_capture_forbids_reads_and_queries(device: FakeDevice) -> None:
    reader = Slots(device)
    reader.read([torch.tensor(1.0)], lambda values: None)
    device.is_blocked = True
    reader.poll()
    assert device.events[0].queries == 0
    assert not reader.read([torch.tensor(1.0)], lambda values: None)
    assert reader.dropped == 1


def test_devices_without_background_copies_are_dropped(device: FakeDevice) -> None:
    reader = Slots(device)
    assert not reader.read([torch.tensor(True)], lambda values: None)
    assert not reader.can_read(torch.tensor(True))
    assert reader.dropped == 1


def test_a_large_read_gets_a_slot_that_is_used_again(device: FakeDevice) -> None:
    got: list[list[float]] = []
    reader = Slots(device)
    for count in (1000, 900, 700):
        assert reader.read([torch.arange(count).float()], got.append)
        device.arrive()
        reader.poll()
    assert [len(values) for values in got] == [1000, 900, 700]
    assert device.pinned_sizes == [1024]


def test_outgrown_slots_make_room(device: FakeDevice) -> None:
    reader = Slots(device)
    for count in (100, 300, 1000, 5000):
        assert reader.read([torch.zeros(count)], lambda values: None)
        device.arrive()
        reader.poll()
    assert device.pinned_sizes == [128, 512, 1024, 8192]


def test_each_device_has_events_of_its_own(device: FakeDevice) -> None:
    reader = Slots(device)
    for name in ("cpu", "meta", "cpu", "meta"):
        assert reader.read([torch.zeros(1, device=name)], lambda values: None)
        _, _, event = device.in_flight.pop()
        event.ready = True
        reader.poll()
    assert len(device.pinned_sizes) == 1
    assert len(device.events) == 2


def test_a_callback_that_raises_frees_its_slot(device: FakeDevice) -> None:
    reader = Slots(device)

    def fail(values: list[float]) -> None:
        raise ValueError("mine")

    reader.read([torch.tensor(1.0)], fail)
    device.arrive()
    with pytest.raises(ValueError, match="mine"):
        reader.poll()
    assert reader.pending == 0
    reader.poll()


@given(st.lists(st.lists(st.floats(width=32), min_size=1, max_size=9), min_size=1, max_size=9))
def test_values_arrive_as_they_were_sent(sent: list[list[float]]) -> None:
    device, got = FakeDevice(), list[list[float]]()
    reader = Slots(device)
    tensors = [torch.tensor(values, dtype=torch.float32) for values in sent]
    assert reader.read(tensors, got.append)
    device.arrive()
    reader.poll()
    flat = [value for values in sent for value in values]
    assert len(got[0]) == len(flat)
    assert all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(got[0], flat, strict=True)
    )

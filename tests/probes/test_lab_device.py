"""Probes of links, launches and streams on a made-up GPU; what a CPU says of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lab_machine import Clock, Machine, Priced, nbytes, run  # noqa: E402

from topsmon.probes import nvml  # noqa: E402
from topsmon.probes.errors import NoMemoryError, UnsupportedError  # noqa: E402
from topsmon.probes.lab import launch, overlap, streams, transfer  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def machine():
    return Machine(Clock(), free=80 * MIB)


@pytest.fixture(autouse=True)
def plain_memory(monkeypatch):
    monkeypatch.setattr(streams, "pinned", lambda count: torch.empty(count, dtype=torch.uint8))
    monkeypatch.setattr(streams, "integrated", lambda: False)


class Driver:
    """A link that is awake while copies run."""

    def __init__(self, *link) -> None:
        self._link = nvml.Link(*(link or (4, 8, 4, 16)))

    def pcie_link(self):
        return self._link


def copying(rate):
    return lambda name, args: nbytes(args[0]) / rate if name == "copy_" else 0.0


def test_transfers_are_bytes_over_time_and_the_link_is_that_under_load(machine):
    machine.driver = Driver()
    fields, _ = run(transfer, machine, copying(20e9), time_scale=0.05)
    values = fields["values"]
    for name in ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable"):
        assert values[f"{name}_bytes_per_second"] == pytest.approx(20e9), name
    assert (values["pcie_generation"], values["pcie_width"]) == (4.0, 8.0)
    assert (values["pcie_generation_max"], values["pcie_width_max"]) == (4.0, 16.0)
    assert fields["correct"] is True
    assert fields["unavailable"] == {}


def test_the_link_is_read_with_copies_in_the_queue(machine, monkeypatch):
    log = []

    class Watched(Driver):
        def pcie_link(self):
            log.append("link")
            return super().pcie_link()

    machine.driver = Watched()
    true = torch.Tensor.copy_

    def copy(*args, **options):
        log.append("copy")
        return true(*args, **options)

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    run(transfer, machine, lambda name, args: 1e-3, time_scale=0.05)
    assert log[-1] == "link"
    assert log[-1 - transfer.LINK_COPIES : -1] == ["copy"] * transfer.LINK_COPIES


def test_shared_memory_has_no_link(machine, monkeypatch):
    machine.driver = Driver(1, 1, 1, 1)
    monkeypatch.setattr(streams, "integrated", lambda: True)
    fields, _ = run(transfer, machine, copying(20e9), time_scale=0.05)
    assert fields["values"]["pcie_generation"] is None
    assert "shares the CPU's memory" in fields["unavailable"]["pcie_generation"]


@pytest.mark.parametrize("driver", [None, Driver(None, None, None, None)])
def test_a_silent_driver_costs_the_link_alone(machine, driver):
    machine.driver = driver
    fields, _ = run(transfer, machine, copying(20e9), time_scale=0.05)
    assert fields["values"]["pcie_width"] is None
    assert "driver" in fields["unavailable"]["pcie_width"]
    assert fields["values"]["h2d_pinned_bytes_per_second"] == pytest.approx(20e9)


def test_a_link_that_changes_a_byte_is_a_failure(machine, monkeypatch):
    true = torch.Tensor.copy_

    def copy(target, source, **options):
        result = true(target, source, **options)
        target.view(-1)[12345] += 1
        return result

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    fields, _ = run(transfer, machine, lambda name, args: 1e-3, time_scale=0.05)
    assert fields["correct"] is False
    assert "pinned memory came back changed" in fields["invalid_reason"]


def test_a_small_block_measures_no_link(machine):
    machine.free = 20 * MIB
    with pytest.raises(NoMemoryError, match="too small"):
        run(transfer, machine)


def test_pinned_memory_is_asked_for(monkeypatch):
    monkeypatch.undo()
    asked = {}
    monkeypatch.setattr(torch, "empty", lambda *args, **options: asked.update(options))
    streams.pinned(8)
    assert asked["pin_memory"] is True


@pytest.mark.parametrize(("probe", "word"), [(transfer, "link"), (overlap, "copy engine")])
def test_a_cpu_has_neither_link_nor_copy_engine(probe, word):
    with pytest.raises(UnsupportedError, match=word):
        run(probe, Machine(Clock(), "cpu", threads=2))


def graphs(monkeypatch, node_seconds, counts=True):
    """Graphs whose nodes take `node_seconds`; without `counts` they do nothing."""

    def capture(work):
        mode = next(mode for mode in modes if mode)
        mode.record = recorded = []
        work()
        mode.record = None

        def replay():
            for func, args, options in recorded if counts else ():
                with torch._C.DisableTorchFunction():
                    func(*args, **options)
            mode._clock.spend(node_seconds * len(recorded))

        return replay

    modes = []
    true = Priced.__enter__

    def enter(mode):
        modes.append(mode)
        return true(mode)

    monkeypatch.setattr(Priced, "__enter__", enter)
    monkeypatch.setattr(streams, "capture", capture)


def launching(name, args):
    return 5e-6 if name == "add_" else 0.0


def test_launches_and_what_graphs_gain(machine, monkeypatch):
    graphs(monkeypatch, 1e-6)
    fields, _ = run(launch, machine, launching)
    values = fields["values"]
    assert values["launch_seconds"] == pytest.approx(5e-6)
    assert values["round_trip_seconds"] == pytest.approx(5e-6)
    assert values["graph_launch_seconds"] == pytest.approx(1e-6)
    assert values["graph_gain_ratio"] == pytest.approx(5.0)
    assert fields["correct"] is True


def test_a_graph_that_does_nothing_is_found_out(machine, monkeypatch):
    graphs(monkeypatch, 1e-6, counts=False)
    fields, _ = run(launch, machine, launching)
    assert fields["correct"] is False


def test_on_a_cpu_it_is_an_eager_operation():
    fields, _ = run(launch, Machine(Clock(), "cpu", threads=2), launching)
    assert fields["values"]["eager_op_seconds"] == pytest.approx(5e-6)
    assert "launch_seconds" not in fields["values"]
    assert fields["correct"] is True


def overlapping(monkeypatch, machine, share):
    """Two streams of which `share` of the shorter work is hidden."""

    def side_by_side(here, there):
        def run_call():
            began = machine.clock()
            here()
            middle = machine.clock()
            there()
            first, second = middle - began, machine.clock() - middle
            machine.clock.spend(-share * min(first, second))

        return run_call

    monkeypatch.setattr(streams, "side_by_side", side_by_side)


def working(name, args):
    return {"copy_": 8e-3, "mm": 1e-3}.get(name, 0.0)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_two_streams_hide(machine, monkeypatch, share):
    monkeypatch.setattr(overlap, "SIZE", 64)
    overlapping(monkeypatch, machine, share)
    fields, _ = run(overlap, machine, working, time_scale=0.1)
    values = fields["values"]
    assert values["copy_seconds"] == pytest.approx(8e-3)
    assert values["compute_seconds"] == pytest.approx(8e-3)
    assert values["both_seconds"] == pytest.approx((2 - share) * 8e-3)
    assert values["overlap_ratio"] == pytest.approx(share)
    assert fields["labels"]["work"] == "8 MiB and 8 GEMMs of 64"
    assert fields["correct"] is True


def test_overlap_is_not_clamped():
    assert overlap.efficiency(2.0, 1.0, 1.9) == pytest.approx(1.1)
    assert overlap.efficiency(2.0, 1.0, 3.5) == pytest.approx(-0.5)


def test_a_copy_that_never_ran_is_found_out(machine, monkeypatch):
    monkeypatch.setattr(overlap, "SIZE", 64)
    monkeypatch.setattr(streams, "side_by_side", lambda here, there: here)
    true = torch.Tensor.copy_

    def copy(target, source, **options):
        if target.dtype != torch.uint8:
            true(target, source, **options)

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    fields, _ = run(overlap, machine, lambda name, args: 1e-3, time_scale=0.1)
    assert fields["correct"] is False
    assert fields["invalid_reason"] == "the copied data differ"

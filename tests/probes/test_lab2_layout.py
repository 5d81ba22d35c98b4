"""What the order of numbers in memory is worth, on a machine where the answer is known."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lab2_boards import MIB, cpu, gpu  # noqa: E402
from lab_machine import Bench, run  # noqa: E402

from topsmon.probes.lab import layout  # noqa: E402
from topsmon.probes.precisions import all_gemms  # noqa: E402
from topsmon.probes.verdict import Check  # noqa: E402


def price(name, args):
    """channels_last is 1.6 times as fast, a column-major right side 2.5 times, 5.5 in INT8."""
    if name == "conv2d":
        last = args[0].is_contiguous(memory_format=torch.channels_last)
        return 1.0 if last else 1.6
    if name in ("mm", "_int_mm"):
        row_major = args[1].is_contiguous()
        return (5.5 if name == "_int_mm" else 2.5) if row_major else 1.0
    return 0.0


@pytest.fixture
def machine():
    return cpu(free=40 * MIB)


def test_both_layouts_of_both_operations(machine):
    fields, _ = run(layout, machine, price)
    values = fields["values"]
    assert values["contiguous_seconds"] == pytest.approx(1.6)
    assert values["channels_last_seconds"] == pytest.approx(1.0)
    assert values["channels_last_speedup_ratio"] == pytest.approx(1.6)
    assert values["row_major_seconds"] == pytest.approx(2.5)
    assert values["column_major_seconds"] == pytest.approx(1.0)
    assert values["column_major_speedup_ratio"] == pytest.approx(2.5)
    assert values["int8_column_major_speedup_ratio"] == pytest.approx(5.5)
    # At a second a call the smallest size is all there is.
    assert fields["labels"] == {
        "precision": "fp32",
        "convolution_shape": "1x64x14x14 by 128x64x3x3",
        "product_shape": "N = 64",
        "int8_product_shape": "N = 64",
    }
    assert fields["correct"] is True


def test_a_slower_layout_is_a_ratio_below_one(machine):
    fields, _ = run(layout, machine, lambda name, args: 1.0 / (price(name, args) or 1e9))
    assert fields["values"]["channels_last_speedup_ratio"] == pytest.approx(1 / 1.6)


def test_the_sides_are_the_same_numbers_in_two_orders():
    sides = layout.Sides(Bench(cpu()), layout.Square(32, all_gemms()["fp32"]))
    assert sides.row_major.b.is_contiguous()
    assert sides.column_major.b.t().is_contiguous()
    assert not sides.column_major.b.is_contiguous()
    assert torch.equal(sides.row_major.b, sides.column_major.b)
    assert torch.equal(sides.run(), sides.row_major.out)
    assert all(check.correct for check in sides.checks())


def test_int8_that_the_library_refuses_is_named(machine, monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("_int_mm: not implemented for this layout")

    monkeypatch.setattr(torch, "_int_mm", refuse)
    fields, _ = run(layout, machine, price)
    assert "not implemented" in fields["unavailable"]["int8_column_major_speedup_ratio"]
    assert "int8_column_major_speedup_ratio" not in fields["values"]
    assert fields["correct"] is True


def test_a_spoilt_device_is_not_a_refusal(machine, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "_int_mm", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run(layout, machine, price)


def test_the_worst_check_is_a_wrong_one():
    good, better = Check(1e-3, 1e-2), Check(1e-7, 1e-5)
    wrong, not_finite = Check(2.0, 0.0), Check(float("nan"), 1.0)
    assert layout.worst([better, good]) == good
    assert layout.worst([good, wrong, better]) == wrong
    assert layout.worst([good, not_finite]) is not_finite


def test_a_gpu_of_tensor_cores_is_asked_in_its_half_type():
    fields, _ = run(layout, gpu(7, 0, free=40 * MIB), price)
    assert fields["labels"]["precision"] == "fp16"

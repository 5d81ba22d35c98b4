"""2:4 sparsity and torch.compile: where they cannot run, and their checks where they can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from lab2_boards import MIB, cpu, gpu  # noqa: E402
from lab_machine import run  # noqa: E402

from topsmon.probes.errors import UnsupportedError  # noqa: E402
from topsmon.probes.lab import fusion, sparsity  # noqa: E402
from topsmon.probes.precisions import DeviceFacts  # noqa: E402

CPU = DeviceFacts("cpu", "CPU")
T4 = DeviceFacts("gpu", "Tesla T4", (7, 5))
H100 = DeviceFacts("gpu", "NVIDIA H100 80GB HBM3", (9, 0))
P100 = DeviceFacts("gpu", "Tesla P100-PCIE-16GB", (6, 0))


def test_two_of_four_by_hand():
    rows = torch.tensor([[1.0, -5.0, 3.0, 2.0, 0.0, 0.0, 0.5, -0.25]])
    assert sparsity.pruned(rows).tolist() == [[0.0, -5.0, 3.0, 0.0, 0.0, 0.0, 0.5, -0.25]]


def test_no_four_keep_more_than_two():
    kept = sparsity.pruned(torch.randn(32, 64)).unflatten(1, (-1, 4)).ne(0).sum(-1)
    assert bool(kept.eq(2).all())


def test_where_there_is_no_structured_sparsity():
    assert "a CPU has none" in sparsity.refusal(CPU)
    assert "Tesla T4 has 7.5" in sparsity.refusal(T4)
    assert sparsity.refusal(H100) is None
    with pytest.raises(UnsupportedError, match="a CPU has none"):
        run(sparsity, cpu())


class Compressed:
    """Stands for a compressed weight: multiplies as the dense one, at the price of its own."""

    BACKEND = "made-up"

    def __init__(self, dense, spoil=0.0) -> None:
        self._dense = dense + spoil

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        weight, right = args
        return torch.matmul(weight._dense, right)


def sparse_price(name, args):
    return {"mm": 3e-3, "matmul": 2e-3}.get(name, 0.0)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(sparsity, "SIZES", (64,))


def test_sparse_against_dense(small, monkeypatch):
    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", Compressed)
    fields, _ = run(sparsity, gpu(8, 0, free=80 * MIB), sparse_price)
    values = fields["values"]
    assert values["dense_rate_ops_per_second"] == pytest.approx(2 * 64**3 / 3e-3)
    assert values["rate_ops_per_second"] == pytest.approx(2 * 64**3 / values["sparse_seconds"])
    assert values["speedup_ratio"] == pytest.approx(
        values["dense_seconds"] / values["sparse_seconds"]
    )
    assert fields["labels"] == {"precision": "fp16", "shape": "N = 64", "library": "made-up"}
    assert fields["correct"] is True


def test_a_sparse_kernel_that_is_wrong_is_not_correct(small, monkeypatch):
    monkeypatch.setattr(
        torch.sparse, "to_sparse_semi_structured", lambda dense: Compressed(dense, 0.1)
    )
    fields, _ = run(sparsity, gpu(8, 0, free=80 * MIB), sparse_price)
    assert fields["correct"] is False


def test_the_chain_by_hand():
    x, scale, shift = (torch.tensor([value], dtype=torch.float64) for value in (2.0, 3.0, -6.0))
    # y = 0: tanh(0 * sigmoid(0)) is 0, so that x * 0 + 0 is left.
    assert fusion.chain(x, scale, shift).item() == 0.0
    x, scale, shift = (torch.tensor([value], dtype=torch.float64) for value in (1.0, 100.0, 0.0))
    # y = 100: sigmoid and tanh are both 1.
    assert fusion.chain(x, scale, shift).item() == pytest.approx(101.0)


def test_a_compiler_is_needed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "C++ compiler on a CPU: g++, clang++, c++ not found" in fusion.refusal(CPU, {})
    assert "/nowhere/c++ not found" in fusion.refusal(CPU, {"CXX": "/nowhere/c++"})
    monkeypatch.setattr(fusion.util, "find_spec", lambda name: object())
    assert "Triton needs a C compiler" in fusion.refusal(H100, {})
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    assert fusion.refusal(CPU, {}) is None


def test_a_gpu_needs_triton(monkeypatch):
    assert "P100-PCIE-16GB has 6.0" in fusion.refusal(P100, {})
    monkeypatch.setattr(fusion.util, "find_spec", lambda name: None)
    assert "Triton on a GPU: the package is not installed" in fusion.refusal(H100, {})


@pytest.fixture
def compiler(monkeypatch):
    """A compiler there is; `torch.compile` is what the test makes of it."""
    monkeypatch.setattr(fusion, "refusal", lambda facts, environment: None)
    monkeypatch.setattr(fusion, "ELEMENTS", (1 << 12,))
    seen = {}

    def compile_as(transform):
        def compile_(function, **options):
            seen["folder"] = os.environ["TORCHINDUCTOR_CACHE_DIR"]
            assert Path(seen["folder"]).is_dir()
            return transform(function)

        monkeypatch.setattr(torch, "compile", compile_)
        return seen

    return compile_as


def fusion_price(name, args):
    return 1e-3 if name in ("mul", "add", "tanh", "sigmoid") else 0.0


def test_eager_against_compiled(compiler):
    seen = compiler(lambda function: function)
    fields, _ = run(fusion, cpu(), fusion_price)
    values = fields["values"]
    assert values["eager_seconds"] == pytest.approx(fusion.OPERATIONS * 1e-3)
    assert values["speedup_ratio"] == pytest.approx(1.0)
    assert values["compile_seconds"] == pytest.approx(fusion.OPERATIONS * 1e-3)
    assert fields["correct"] is True
    assert fields["labels"]["shape"] == "4096 elements"
    assert not Path(seen["folder"]).exists()


def test_a_compiler_that_changes_the_numbers_is_not_correct(compiler):
    compiler(lambda function: lambda *inputs: function(*inputs) * 1.001)
    fields, _ = run(fusion, cpu(), fusion_price)
    assert fields["correct"] is False


def test_a_compiler_that_fails_is_not_supported_here(compiler):
    def broken(function):
        raise RuntimeError("CppCompileError: Python.h: No such file\nand a lot more")

    compiler(broken)
    with pytest.raises(UnsupportedError, match=r"does not work here: CppCompileError: Python.h"):
        run(fusion, cpu(), fusion_price)


def test_the_compilers_settings_are_put_back(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with fusion.private_cache():
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert folder != "/somewhere"
        assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/somewhere"
    assert "TRITON_CACHE_DIR" not in os.environ
    assert not Path(folder).exists()

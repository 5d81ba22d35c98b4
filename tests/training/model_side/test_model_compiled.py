"""What keeps hooks away from compiled code."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from topsmon.training.recorder import compiled


def test_an_eager_model_may_be_hooked() -> None:
    assert compiled.reason(nn.Sequential(nn.Linear(1, 1))) == ""
    assert compiled.reason(None) == ""


@pytest.mark.real
def test_a_compiled_function_forbids_hooks() -> None:
    from torch._dynamo.utils import counters

    assert compiled.reason(nn.Linear(1, 1)) == ""
    try:
        torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2))
        assert "compiled functions" in compiled.reason(nn.Linear(1, 1))
    finally:
        torch._dynamo.reset()
        counters.clear()


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    jit = ModuleType("triton.runtime.jit")
    jit.JITFunction = type("JITFunction", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    return jit.JITFunction  # type: ignore[attr-defined]


def test_tritons_and_torchs_own_kernels_do_not_count(triton: Any) -> None:
    kernels = [triton(), triton()]
    kernels[0].__module__ = "torch.sparse._triton_ops"
    kernels[1].__module__ = "triton.language.standard"
    assert not compiled.triton_kernels()


def test_a_kernel_of_the_run_counts(triton: Any) -> None:
    kernel = triton()
    kernel.__module__ = "flash_kernels"
    assert compiled.triton_kernels()


def test_without_triton_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton.runtime.jit", raising=False)
    assert not compiled.triton_kernels()

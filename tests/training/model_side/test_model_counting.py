"""FLOPs of a live step: by hand, with checkpointing, accumulation and own derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from topsmon.training.recorder import compiled
from topsmon.training.recorder.counting import Count, StepCounter

PLAIN_CALL = nn.Module.__call__


class Recomputed(nn.Module):
    """Two layers 512 x 512 with ReLU, each perhaps under a checkpoint."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(2))
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.way == "none":
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.way == "reentrant")
        return x


def count(model: nn.Module, *batches: Any) -> Count | None:
    counter = StepCounter("sample")
    assert counter.wanted
    assert counter.arm(model) == ""
    for batch in batches:
        loss = model(batch).sum()
        with counter.backward():
            loss.backward()
    counted = counter.finish()
    assert not counter.active
    assert not counter.wanted
    assert nn.Module.__call__ is PLAIN_CALL
    return counted


@pytest.mark.parametrize("way", ["none", "non-reentrant", "reentrant"])
def test_recomputation_does_not_count(way: str) -> None:
    """Forward 2 x 2 x 64 x 512 x 512, backward twice that: the input needs a gradient."""
    counted = count(Recomputed(way), torch.randn(64, 512, requires_grad=True))
    assert counted == Count(201_326_592.0, lower_bound=False, uncounted=())


def test_micro_batches_are_summed_and_the_first_layer_has_no_input_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 2, bias=False))
    batches = [torch.randn(3, 4) for _ in range(5)]
    counted = count(model, *batches)
    # A batch: forward 2*3*4*8 + 2*3*8*2, weights the same again, input of the second layer once.
    assert counted is not None
    assert counted.flops == 5 * (2 * (192 + 96) + 96)


def test_a_grouped_convolution_counts_its_groups() -> None:
    """Conv2d(64, 128, 3, stride 2, padding 2, dilation 2, groups 4): 231,211,008 forward."""
    model = nn.Conv2d(64, 128, 3, 2, 2, 2, 4, bias=False)
    counted = count(model, torch.randn(8, 64, 56, 56, requires_grad=True))
    assert counted is not None
    assert counted.flops == 693_633_024


def test_validation_inside_the_step_does_not_count() -> None:
    model = nn.Linear(4, 4, bias=False)
    counter = StepCounter("sample")
    counter.arm(model)
    with torch.no_grad():
        model(torch.ones(100, 4))
    model(torch.ones(1, 4)).sum().backward()
    counted = counter.finish()
    assert counted is not None
    assert counted.flops == 2 * 32


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grads[0] @ w.t(), x.t() @ grads[0]


def test_a_derivative_written_in_python_is_counted_as_it_runs() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Doubled.apply(x, self.weight)

    counted = count(Own(), torch.ones(3, 4, requires_grad=True))
    assert counted is not None
    assert counted.flops == 3 * 2 * 3 * 4 * 5


def test_an_operation_without_a_formula_makes_a_lower_bound() -> None:
    library = torch.library.Library("topsmon_test", "DEF")
    library.define("strange(Tensor x) -> Tensor")
    library.impl("strange", torch.clone, "CPU")

    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ops.topsmon_test.strange(x)
            return self.layer(x)

    counted = count(Strange(), torch.ones(1, 2))
    library._destroy()
    assert counted == Count(16.0, lower_bound=True, uncounted=("topsmon_test::strange",))


def test_a_pass_that_raises_leaves_no_mode_behind() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    counter = StepCounter("sample")
    model = Fails()
    counter.arm(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1))
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    assert _get_current_dispatch_mode_stack() == []
    assert counter.finish() is None
    assert nn.Module.__call__ is PLAIN_CALL


def test_weights_and_random_numbers_are_the_same_bits() -> None:
    def run(*, counted: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True), nn.Linear(8, 3)
        )
        optimizer = torch.optim.AdamW(model.parameters())
        counter = StepCounter("sample")
        for step in range(3):
            if counted and step == 1:
                assert counter.arm(model) == ""
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(2, 4, 8)).float().pow(2).mean()
            with counter.backward():
                loss.backward()
            optimizer.step()
            if counter.active:
                assert counter.finish() is not None
        return [torch.rand(3), *model.parameters()]

    for plain, watched in zip(run(counted=False), run(counted=True), strict=True):
        assert torch.equal(plain, watched)


def test_a_number_is_given_and_nothing_is_counted() -> None:
    counter = StepCounter("1.5e12")
    assert (counter.given, counter.wanted) == (1.5e12, False)


@pytest.mark.parametrize("setting", [None, "", "nonsense", "0", "-3", "nan", "inf"])
def test_other_settings_count_nothing(setting: str | None) -> None:
    counter = StepCounter(setting)
    assert (counter.given, counter.wanted) == (None, False)


def test_compiled_code_and_own_triton_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].compile()
    counter = StepCounter("sample")
    assert "compile" in counter.arm(model)
    assert not counter.active
    assert not counter.wanted
    monkeypatch.setattr(compiled, "triton_kernels", lambda: True)
    assert "Triton" in StepCounter("sample").arm(nn.Linear(1, 1))
    assert nn.Module.__call__ is PLAIN_CALL


def test_an_unarmed_counter_costs_a_null_context() -> None:
    counter = StepCounter(None)
    with counter.backward():
        assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert nn.Module.__call__ is PLAIN_CALL

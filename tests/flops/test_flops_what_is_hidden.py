"""What cannot be counted is named; what needs values is run for real."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flops_models import Calls, counted, counts, products
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing

from topsmon.flops import counting
from topsmon.flops.errors import CountError, UsageError


def test_an_operation_without_a_formula_is_named() -> None:
    def solve(x: Any) -> Any:
        return torch.linalg.cholesky(x @ x.T + torch.eye(4))

    document = counts(lambda: Calls(solve), "4x4")
    assert document["uncounted"] == [
        {"operation": "aten::linalg_cholesky_ex", "calls": 1, "layer": ""}
    ]
    assert document["total"]["forward"]["flops"] == 2 * 4**3


class OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, gradient


def test_a_backward_pass_of_the_users_own_is_named_where_it_is_needed() -> None:
    weight = nn.Parameter(torch.zeros(8, 8))
    module = Calls(OwnBackward.apply)
    inputs = (torch.zeros(2, 8), weight)
    document = counts(lambda: (module, inputs))
    assert document["total"]["forward"]["flops"] == 2 * 2 * 8 * 8
    assert [item["operation"] for item in document["uncounted"]] == [
        "the backward pass of autograd.Function OwnBackward"
    ]
    weight.requires_grad_(False)
    assert counts(lambda: (module, inputs))["uncounted"] == []


class Selects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.inner(x[x.sum(-1) > -1e9])


def test_shapes_that_depend_on_values_are_counted_for_real_and_said_so() -> None:
    document = counts(Selects, "2x8")
    assert document["total"]["forward"]["flops"] == 2 * 2 * 64
    assert "DynamicOutputShape" in document["real_tensors_because"]


def test_a_factory_that_needs_values_is_still_run_on_shapes() -> None:
    def factory() -> nn.Module:
        rate = torch.linspace(0, 1, 3)[1].item()
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate))

    document = counts(factory, "2x8")
    assert document["total"]["forward"]["flops"] == 2 * 2 * 64
    assert document["real_tensors_because"] == ""


def test_a_huge_model_takes_no_memory_and_is_never_built_for_real(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side = 200_000
    assert products(lambda: nn.Linear(side, side), f"1x{side}")[0] == 2 * side * side
    built = []

    def factory() -> nn.Module:
        built.append(torch.empty(1).device.type)
        return nn.Linear(side, side)

    with pytest.raises(CountError, match="reduction dim"):
        products(factory, "1x3")
    assert built == ["meta"]
    monkeypatch.setattr(counting, "_free_memory_bytes", lambda: 10**15)
    with pytest.raises(CountError, match="nothing to see"):
        products(raising, "1x3")


def raising() -> nn.Module:
    raise ValueError("nothing to see\nhere")


def test_an_error_of_the_model_names_the_layer() -> None:
    with pytest.raises(CountError, match=r"RuntimeError: .* \(in 1, Linear\)"):
        products(lambda: nn.Sequential(nn.ReLU(), nn.Linear(8, 8)), "2x5")


def test_types_that_do_not_fit_say_how_to_convert() -> None:
    with pytest.raises(CountError, match="--dtype"):
        products(lambda: nn.Linear(8, 8), "2x8:float16")
    document = counts(lambda: nn.Linear(8, 8), "2x8", dtype="float16")
    assert document["flops_by_dtype"] == {"float16": 2 * 2 * 64}
    assert document["inputs"] == [{"name": None, "shape": [2, 8], "dtype": "float16"}]
    assert document["total"]["forward"]["bytes"] == 2 * (16 + 64 + 8 + 16)


def test_factories_return_a_module_or_a_module_with_inputs() -> None:
    linear = nn.Linear(8, 8)
    sample = torch.zeros(3, 8)
    for inputs in (sample, (sample,), [sample], {"input": sample}):
        assert products(lambda inputs=inputs: (linear, inputs))[0] == 2 * 3 * 64
    assert products(lambda: linear, "input=3x8")[0] == 2 * 3 * 64
    with pytest.raises(UsageError, match="no inputs"):
        products(lambda: linear)
    with pytest.raises(UsageError, match="returned int"):
        products(lambda: 3, "2")


def test_modules_that_are_registered_nowhere_are_named_after_their_parent() -> None:
    hidden = nn.Linear(8, 8)
    outer = nn.Sequential(Calls(lambda x: hidden(hidden(x))))
    layers = counts(lambda: outer, "2x8")["layers"]
    assert [(layer["path"], layer["calls"]) for layer in layers] == [("0/Linear", 2)]


def test_inference_mode_inside_the_model_hides_nothing() -> None:
    def infer(q: Any) -> Any:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(q @ q.mT, q, q)

    assert products(lambda: Calls(infer), "1x1x8x8", input_grad=True) == (3 * 2 * 8**3,) * 2


def test_autocast_products_are_of_the_narrow_type() -> None:
    linear = nn.Linear(8, 8)

    def cast(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return linear(x)

    assert counts(lambda: Calls(cast), "2x8")["flops_by_dtype"] == {"bfloat16": 2 * 2 * 64}


def test_a_model_that_differentiates_in_its_forward_pass() -> None:
    convolution = nn.Conv2d(2, 3, 3)

    def forces(x: Any) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(convolution(x).sum(), x)[0]

    macs = 3 * 16 * 2 * 9
    assert products(lambda: Calls(forces), "1x2x6x6")[0] == 2 * (2 * macs)


class Wrapped(torch.Tensor):
    """A tensor subclass that does its work on a plain tensor."""

    @staticmethod
    def __new__(cls, plain: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, plain.shape, dtype=plain.dtype)

    def __init__(self, plain: torch.Tensor) -> None:
        self.plain = plain

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plain = [item.plain if isinstance(item, Wrapped) else item for item in args]
        out = func(*plain, **kwargs)
        wrapped = Wrapped(out) if isinstance(out, torch.Tensor) else out
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def test_a_tensor_subclass_is_looked_into() -> None:
    weight = torch.zeros(8, 8)

    def multiply(x: Any) -> Any:
        return torch.mm(x, Wrapped(weight)).plain

    assert products(lambda: Calls(multiply), "2x8")[0] == 2 * 2 * 64


def test_an_existing_module_is_left_with_its_weights() -> None:
    linear = nn.Linear(4, 4)
    before = linear.weight.detach().clone()
    counted(lambda: linear, "2x4")
    assert torch.equal(linear.weight.detach(), before)

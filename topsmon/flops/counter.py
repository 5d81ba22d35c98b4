"""Count what a forward pass does, operation by operation, and ascribe it to modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import attention, elementwise, products, recurrent
from .work import Arguments, Formula, Tally, Work, tensors

FORMULAS: dict[str, Formula] = {**products.FORMULAS, **attention.FORMULAS, **recurrent.FORMULAS}


@dataclass
class Layer:
    """Own operations of one module, without those of the modules inside it."""

    module: Any
    parent: Layer | None
    calls: int = 0
    forward: Tally = field(default_factory=Tally)
    backward: Tally = field(default_factory=Tally)


class Counter(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed by the type checker
    """Counts every operation while it is active; use `watch` to have modules told apart.

    `uncounted` maps what has no formula to [calls, path of a layer], `flops_by_dtype` the forward
    products to the type of their first operand, `failed_in` the innermost module that raised.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.layers: dict[int, Layer] = {}
        self.uncounted: dict[str, tuple[int, Layer]] = {}
        self.flops_by_dtype: dict[str, int] = {}
        self.causal_flops = 0
        self.failed_in: Layer | None = None
        self._stack: list[Layer] = [Layer(None, None)]
        self._functions: list[str] = []

    @property
    def outside(self) -> Layer:
        """Operations outside of any module."""
        return self._stack[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(_dispatches_itself(kind) for kind in types):
            # A tensor subclass turns this into operations on plain tensors, which come here again.
            return NotImplemented
        name = func.name().partition(".")[0]
        schema = getattr(func, "_schema", None)
        if schema is None:
            out = func(*args, **kwargs)
            self._count_higher_order(name, args, out)
            return out
        formula = FORMULAS.get(name) or elementwise.find(name, func)
        if formula is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        self._count(name, formula, Arguments(schema, args, kwargs), out)
        return out

    def _count_higher_order(self, name: str, args: Any, out: Any) -> None:
        if name == "flex_attention":
            operands, result = (args[0], args[1], args[2]), next(tensors(out))
            self._add(attention.attention(operands, result), list(operands), [result])
            self._name_uncounted("score and mask functions of flex_attention")
        else:
            self._name_uncounted(name)

    def _count(self, name: str, formula: Formula | None, arguments: Arguments, out: Any) -> None:
        if formula is None:
            work = Work()
            self._name_uncounted(name)
        else:
            try:
                work = formula(arguments, out)
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                work = Work()
                self._name_uncounted(f"{name} ({error})")
        read = arguments.read()
        if work.flops and read:
            dtype = str(read[-1 if name.startswith("aten::addmm") else 0].dtype)
            dtype = dtype.replace("torch.", "")
            self.flops_by_dtype[dtype] = self.flops_by_dtype.get(dtype, 0) + work.flops
        self._add(work, read, list(tensors(out)))

    def _add(self, work: Work, read: list[Any], written: list[Any]) -> None:
        layer = self._stack[-1]
        layer.forward.flops += work.flops
        layer.forward.other += work.other
        self.causal_flops += work.causal_flops
        for tensor in (*read, *written) if work.moved is None else work.moved:
            layer.forward.move(tensor)
        if not torch.is_grad_enabled():
            return
        for gradient in work.gradients:
            if any(tensor.requires_grad for tensor in gradient.needed_by):
                layer.backward.flops += gradient.flops
                layer.backward.other += gradient.other
                for tensor in gradient.moved:
                    layer.backward.move(tensor)

    def _name_uncounted(self, name: str) -> None:
        calls, layer = self.uncounted.get(name, (0, self._stack[-1]))
        self.uncounted[name] = (calls + 1, layer)

    @contextlib.contextmanager
    def inside_module(self, module: Any) -> Iterator[None]:
        """Ascribe operations to this module."""
        layer = self.layers.get(id(module))
        if layer is None:
            # The layer keeps the module alive, so that its id stays its own.
            layer = self.layers[id(module)] = Layer(module, self._stack[-1])
        layer.calls += 1
        self._stack.append(layer)
        try:
            yield
        except BaseException:
            self.failed_in = self.failed_in or layer
            raise
        finally:
            self._stack.pop()

    def opaque_function(self, name: str) -> None:
        """Note that a user's autograd.Function has a backward pass of its own."""
        self._name_uncounted(f"the backward pass of autograd.Function {name}")


def _dispatches_itself(kind: Any) -> bool:
    """True for tensor subclasses that replace operations by others."""
    if issubclass(kind, FakeTensor):
        return False
    own = getattr(kind.__torch_dispatch__, "__func__", kind.__torch_dispatch__)
    return own is not torch._C._disabled_torch_dispatch_impl  # noqa: SLF001  torch's own marker


@contextlib.contextmanager
def watch(counter: Counter) -> Iterator[Counter]:
    """Count inside this block: module calls, operations, and what hides its backward pass.

    Reentrant checkpointing runs its forward pass without gradients and once more in the backward
    pass. Here it is an ordinary call, so that the forward pass counts once and has gradients.
    """
    call = torch.nn.Module.__call__
    # What Function.apply calls: the models have often bound Function.apply itself before.
    function_base = torch.autograd.Function.__mro__[1]
    reentrant = torch.utils.checkpoint.CheckpointFunction

    def counted_call(module: Any, *args: Any, **kwargs: Any) -> Any:
        with counter.inside_module(module):
            return call(module, *args, **kwargs)

    def counted_apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        differentiates = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in tensors((args, kwargs))
        )
        if differentiates and function.__module__ != torch.utils.checkpoint.__name__:
            counter.opaque_function(function.__name__)
        return super(function_base, function).apply(*args, **kwargs)

    class PlainCheckpoint:
        @staticmethod
        def apply(function: Any, _preserve_rng_state: bool, *args: Any) -> Any:
            return function(*args)

    torch.nn.Module.__call__ = counted_call
    function_base.apply = classmethod(counted_apply)
    torch.utils.checkpoint.CheckpointFunction = PlainCheckpoint
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # The fused layer of the fast path would hide the products inside it.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with counter:
            yield counter
    finally:
        torch.nn.Module.__call__ = call
        del function_base.apply
        torch.utils.checkpoint.CheckpointFunction = reentrant
        torch.backends.mha.set_fastpath_enabled(fast_path)

"""Run a forward pass, without values where possible, and count it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from . import model
from .counter import Counter, watch
from .errors import CountError, UsageError
from .shapes import Input
from .work import tensors

MEMORY_SHARE = 0.5
"""A module whose tensors take more of the free memory than this is not built for real."""


@dataclass(frozen=True)
class Options:
    """How to run the module: `training` in train mode, `input_grad` with gradients of its inputs.

    `dtype` converts the module and is the type of inputs that have none of their own.
    """

    training: bool = False
    input_grad: bool = False
    dtype: str | None = None


@dataclass
class Counted:
    """A module whose forward pass was counted. `reason`: why it took real tensors, else empty."""

    counter: Counter
    module: Any
    inputs: list[tuple[str | None, Any]]
    reason: str = ""


class _Attempts:
    """Ways to run the module, from free to costly, with what is learned on the way."""

    def __init__(
        self, factory: Callable[[], Any], inputs: Sequence[Input], options: Options
    ) -> None:
        self.factory, self.inputs, self.options = factory, inputs, options
        self.module_bytes: int | None = None
        self.counter = Counter()
        self.module: Any = None

    def run(self, *, build_device: str | None, values: bool) -> Counted:
        """Build the module (on no memory with the device "meta") and count its forward pass."""
        options = self.options
        self.counter, self.module = Counter(), None
        with contextlib.ExitStack() as stack:
            if build_device is not None:
                stack.enter_context(torch.device(build_device))
            self.module, own = model.build(self.factory, options.dtype)
        module = self.module
        self.module_bytes = sum(
            int(tensor.numel()) * int(tensor.element_size())
            for tensor in (*module.parameters(), *module.buffers())
            if not torch.nn.parameter.is_lazy(tensor)
        )
        with contextlib.ExitStack() as stack:
            if not values:
                stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            call = model.make_call(self.inputs, own, options.dtype)
            if not values:
                stack.enter_context(model.without_values(module, call))
            if options.input_grad:
                for tensor in tensors((call.positional, call.named)):
                    if tensor.is_floating_point() or tensor.is_complex():
                        tensor.requires_grad_(True)
            module.train(options.training)
            stack.enter_context(torch.enable_grad())
            with watch(self.counter):
                module(*call.positional, **call.named)
        return Counted(self.counter, module, call.labelled())

    def describe(self, error: BaseException) -> str:
        """Say in one line what was raised and in which layer."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        words = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        layer = self.counter.failed_in
        if layer is None or self.module is None:
            return words
        names = {id(part): name for name, part in self.module.named_modules()}
        path = names.get(id(layer.module), "")
        return f"{words} (in {path or 'the model'}, {type(layer.module).__name__})"


def count(
    factory: Callable[[], Any], inputs: Sequence[Input] = (), options: Options | None = None
) -> Counted:
    """Build what the factory makes and count one forward pass.

    First with no values at all, then with the module built for real and run on shapes alone, then
    wholly for real on the CPU: a factory may need values, and values may decide shapes.
    CountError: the module raised. UsageError: the factory made no module, or inputs are missing.
    """
    attempts = _Attempts(factory, inputs, options or Options())
    problems: list[tuple[str, Exception]] = []
    for build_device, values in (("meta", False), (None, False), (None, True)):
        size = attempts.module_bytes
        if problems and size is not None and size > MEMORY_SHARE * _free_memory_bytes():
            break
        try:
            counted = attempts.run(build_device=build_device, values=values)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001  whatever the user's module raises
            problems.append((attempts.describe(error), error))
            continue
        counted.reason = problems[-1][0] if values else ""
        return counted
    words, cause = problems[-1]
    if "same dtype" in words or "should be the same" in words:
        words += "; --dtype float16 (or another) converts the module"
    raise CountError(words) from cause


def _free_memory_bytes() -> int:
    """Memory that could be used without swapping; where it is unknown, that of pages never used."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""Samples of gradients and weights: norm, names of the bad ones, share of zeros.

Each is taken seldom. A budget keeps the time of each kind below 1 % of the run's, by the recorder's
own measure. On a GPU the host's time says nothing of the kernels', so the bytes that they read
count as well, at a bandwidth that the slowest boards reach.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .names import models
from .slots import Slots
from .tensors import countable, local, shard, torch_of_run

DEVICE_BYTES_PER_SECOND = 2e11
"""Below the memory bandwidth of every data-centre GPU since the T4 (320 GB/s)."""
FREE_LOOKS = 3
"""The first looks of a streak are not held back: they say what is wrong."""
ZERO_TENSORS, ZERO_ELEMENTS = 64, 1 << 20
"""Tensors looked at for zeros, spread over the model, and elements of each."""
ZERO_SAMPLES, ZERO_APART, ZERO_SCALE_RATIO = 8, 500, 16.0
"""Samples of zeros at most a scaler, calls between them, and the change of scale that asks anew."""


class Budget:
    """After work that took t seconds there is none for t / share seconds."""

    def __init__(self, share: float = 0.01, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share, self.clock = share, clock
        self._not_before = -math.inf

    def free(self) -> bool:
        """True if the next piece of work may begin."""
        return self.clock() >= self._not_before

    @contextmanager
    def spend(self, tensors: Iterable[Any] = ()) -> Iterator[None]:
        """Measure the work done inside; `tensors` are what it reads."""
        start = self.clock()
        try:
            yield
        finally:
            end = self.clock()
            device_bytes = sum(
                item.numel() * item.element_size() for item in tensors if item.device.type != "cpu"
            )
            seconds = end - start + device_bytes / DEVICE_BYTES_PER_SECOND
            self._not_before = end + seconds * (1 / self.share - 1)


def parameters_of(optimizer: Any) -> list[Any]:
    """An optimizer's parameters that have a gradient now, each once."""
    found = {
        id(parameter): parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    }
    return list(found.values())


class NormSampler:
    """The norm of all gradients, every N-th step.

    Where gradients are sharded (set `sharded`), a process has a part of the norm only: no sample.
    """

    def __init__(self, slots: Slots, every: int = 20, budget: Budget | None = None) -> None:
        self.sharded = False
        self._slots, self._every, self._budget = slots, every, budget or Budget()
        self._next = 2

    def due(self, step: int) -> bool:
        """True if this step's gradients should be sampled."""
        return step >= self._next and self._budget.free()

    def sample(
        self, step: int, parameters: Sequence[Any], scale: Any, then: Callable[[float], None]
    ) -> bool:
        """Have `then(norm)` called; `scale` is what the gradients are multiplied by, None for 1.

        False: not sampled.
        """
        self._next = step + self._every
        if self.sharded:
            return False
        gradients = []
        for gradient in (local(item.grad) for item in parameters if item.grad is not None):
            if gradient is None or gradient.is_sparse:
                return False
            if gradient.numel() and self._slots.can_read(gradient):
                gradients.append(gradient)
        if not gradients:
            return False
        torch = torch_of_run()
        with self._budget.spend(gradients), torch.no_grad():
            totals = [
                torch.linalg.vector_norm(torch.stack(norms).double())
                for norms in _norms(gradients, 2.0, precise=True)
            ]
            scales = [scale] if isinstance(scale, torch.Tensor) else []
            given = 1.0 if scale is None or scales else float(scale)
            count = len(totals)

            def arrived(values: list[float]) -> None:
                divisor = values[count] if len(values) > count else given
                then(math.hypot(*values[:count]) / divisor if divisor else math.nan)

            return self._slots.read([*totals, *scales], arrived)


def _norms(tensors: Sequence[Any], order: float, *, precise: bool = False) -> list[list[Any]]:
    """One 0-dim norm a tensor, in lists by device and type. `precise`: at least in FP32."""
    torch = torch_of_run()
    lists: dict[tuple[Any, Any], list[Any]] = {}
    for tensor in tensors:
        lists.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
    result = []
    for (_, dtype), group in lists.items():
        if precise and dtype.itemsize < 4:
            # Reduced in FP32 inside; only the result would overflow FP16.
            group = [  # noqa: PLW2901  the same tensors
                torch.linalg.vector_norm(tensor, order, dtype=torch.float32) for tensor in group
            ]
            result.append(group)
        else:
            result.append(list(torch._foreach_norm(group, order)))  # noqa: SLF001  torch's own name
    return result


def _look(
    slots: Slots,
    pairs: Sequence[tuple[int, Any]],
    then: Callable[[set[int], int], None],
    budget: Budget,
) -> bool:
    """Have `then(ids of those with a non-finite value, how many were looked at)` called."""
    by_kind: dict[tuple[Any, Any], list[tuple[int, Any]]] = {}
    for key, tensor in pairs:
        part = shard(tensor)
        part = part.coalesce().values() if part.is_sparse else part
        if countable(part) and part.dtype.itemsize > 1 and slots.can_read(part):
            by_kind.setdefault((part.device, part.dtype), []).append((key, part))
    ordered = [pair for group in by_kind.values() for pair in group]
    if not ordered:
        return False
    torch = torch_of_run()
    keys, tensors = [key for key, _ in ordered], [tensor for _, tensor in ordered]
    with budget.spend(tensors), torch.no_grad():
        norms = [torch.stack(group) for group in _norms(tensors, math.inf)]

        def arrived(values: list[float]) -> None:
            bad = {key for key, value in zip(keys, values) if not math.isfinite(value)}
            then(bad, len(keys))

        return slots.read(norms, arrived)


class SkipNames:
    """Which gradients made a step be skipped. They are still there after `scaler.step()`."""

    def __init__(self, slots: Slots, budget: Budget | None = None) -> None:
        self._slots, self._budget = slots, budget or Budget()

    def due(self, step: int, streak: int) -> bool:  # noqa: ARG002  the same shape as the others
        """True for the first skips of a streak, then at doublings within the budget."""
        if streak <= FREE_LOOKS:
            return True
        return streak & (streak - 1) == 0 and self._budget.free()

    def look(self, parameters: Sequence[Any], then: Callable[[set[int], int], None]) -> bool:
        """Have `then(ids of the bad ones, how many have gradients)` called."""
        pairs = [(id(item), item.grad) for item in parameters if item.grad is not None]
        return _look(self._slots, pairs, then, self._budget)


class WeightsCheck:
    """Are the weights finite? Looked at seldom, and at once after a non-finite loss."""

    def __init__(self, slots: Slots, every: int = 200, budget: Budget | None = None) -> None:
        self._slots, self._every, self._budget = slots, every, budget or Budget()
        self._next, self._step = every, 0
        self._free_looks = FREE_LOOKS

    def arm(self) -> None:
        """Look at the next step."""
        self._next = 0

    def due(self, step: int) -> bool:
        """True if the weights should be looked at after this step."""
        if step < self._next:
            return False
        self._step = step
        return self._budget.free() or (self._next == 0 and self._free_looks > 0)

    def look(self, parameters: Sequence[Any], then: Callable[[set[int], int], None]) -> bool:
        """Have `then(ids of the bad ones, how many were looked at)` called, for the due step."""
        if self._next == 0:
            self._free_looks -= 1
        self._next = self._step + self._every
        return _look(self._slots, [(id(item), item) for item in parameters], then, self._budget)


class _Zeros:
    __slots__ = ("calls", "sampled_at", "samples", "scale")

    def __init__(self) -> None:
        self.calls = self.samples = self.sampled_at = 0
        self.scale: float | None = None


class ZeroSampler:
    """The share of zeros in gradients that were computed in FP16, where small ones become zero."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._known: dict[int, _Zeros] = {}

    def due(self, key: int, scale: float | None = None) -> bool:
        """True at the first backward pass of a scaler (`key`), then rarely. Counts the call."""
        zeros = self._known.get(key)
        if zeros is None:
            zeros = self._known[key] = _Zeros()
        zeros.calls += 1
        if not zeros.samples:
            return True
        if zeros.samples >= ZERO_SAMPLES:
            return False
        if zeros.calls - zeros.sampled_at >= ZERO_APART:
            return True
        if not scale or not zeros.scale:
            return False
        return not 1 / ZERO_SCALE_RATIO < scale / zeros.scale < ZERO_SCALE_RATIO

    def sample(
        self,
        key: int,
        parameters: Sequence[Any] | None,
        scale: float | None,
        then: Callable[[float, float | None], None],
    ) -> bool:
        """Have `then(ratio, scale)` called. Without parameters, those of all live models.

        Embedding tables do not count: most of their rows have no gradient in a step.
        """
        zeros = self._known.setdefault(key, _Zeros())
        zeros.samples += 1
        zeros.sampled_at, zeros.scale = zeros.calls, scale
        if parameters is None:
            parameters = [item for model in models() for item in model.parameters()]
        tables = _embedding_tables()
        gradients = [
            shard(item.grad)
            for item in parameters
            if item.grad is not None and id(item) not in tables
        ]
        gradients = [item for item in gradients if countable(item) and self._slots.can_read(item)]
        if not gradients:
            return False
        stride = -(-len(gradients) // ZERO_TENSORS)
        parts = [_part(gradient) for gradient in gradients[::stride]]
        elements = sum(int(part.numel()) for part in parts)
        torch = torch_of_run()
        with torch.no_grad():
            counts = [torch.count_nonzero(part) for part in parts]
        return self._slots.read(counts, lambda values: then(1 - sum(values) / elements, scale))


def _embedding_tables() -> frozenset[int]:
    nn = torch_of_run().nn
    return frozenset(
        id(module.__dict__["_parameters"].get("weight"))
        for model in models()
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    )


def _part(tensor: Any) -> Any:
    """A view of the first rows of a tensor, about ZERO_ELEMENTS elements."""
    tensor = tensor.detach()
    if tensor.numel() <= ZERO_ELEMENTS:
        return tensor
    rows = int(tensor.shape[0])
    return tensor.narrow(0, 0, max(1, rows * ZERO_ELEMENTS // int(tensor.numel())))

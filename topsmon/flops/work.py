"""What one operation does: its FLOPs, the gradients it will need, the tensors it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class Arguments:
    """An operation's arguments by position or name, defaults filled in from its schema."""

    def __init__(self, schema: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._values: dict[str, Any] = {}
        for position, argument in enumerate(schema.arguments):
            if position < len(positional):
                self._values[argument.name] = positional[position]
            elif argument.name in named:
                self._values[argument.name] = named[argument.name]
            else:
                self._values[argument.name] = argument.default_value
        self._order = list(self._values.values())

    def __getitem__(self, position: int) -> Any:
        return self._order[position]

    def get(self, name: str) -> Any:
        """The argument of this name, None where the operation has none."""
        return self._values.get(name)

    def read(self) -> list[Any]:
        """The tensors among the arguments, without those that are only written (`out=`)."""
        return [
            tensor
            for name, value in self._values.items()
            if name != "out"
            for tensor in tensors(value)
        ]


class Part(NamedTuple):
    """Some `elements` of a tensor, as an embedding reads them of its table."""

    tensor: Any
    elements: int


@dataclass(frozen=True)
class Gradient:
    """One product or pass of the backward pass.

    It is computed when any tensor of `needed_by` needs a gradient, and moves `moved`: tensors (or
    parts) of the sizes of what it reads and writes.
    """

    needed_by: tuple[Any, ...]
    flops: int = 0
    other: int = 0
    moved: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Work:
    """Forward FLOPs of an operation and what its backward pass would do.

    `moved` None means all operands and results. `causal_flops` is the part of `flops` that a
    causal mask leaves without effect.
    """

    flops: int = 0
    other: int = 0
    gradients: tuple[Gradient, ...] = ()
    moved: tuple[Any, ...] | None = None
    causal_flops: int = 0


Formula = Callable[[Arguments, Any], Work]
"""Takes an operation's arguments and its result."""


@dataclass
class Tally:
    """Sums over operations. Bytes = `float_elements` at their sizes + `other_bytes`."""

    flops: int = 0
    other: int = 0
    bytes: int = 0
    float_elements: int = 0
    other_bytes: int = 0

    def move(self, tensor: Any) -> None:
        """Add one read or write of a tensor or of a `Part`."""
        if isinstance(tensor, Part):
            tensor, elements = tensor
        else:
            elements = stored_elements(tensor)
        size = elements * int(tensor.element_size())
        self.bytes += size
        if tensor.is_complex():
            self.float_elements += 2 * elements
        elif tensor.is_floating_point():
            self.float_elements += elements
        else:
            self.other_bytes += size

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.flops += other.flops
        self.other += other.other
        self.bytes += other.bytes
        self.float_elements += other.float_elements
        self.other_bytes += other.other_bytes


def product(sizes: Iterable[int]) -> int:
    """Product of sizes as a plain int; 1 for none."""
    result = 1
    for size in sizes:
        result *= int(size)
    return result


def tensors(value: Any) -> Iterator[Any]:
    """All tensors in nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)


def stored_elements(tensor: Any) -> int:
    """Elements that exist in memory: a dimension of stride 0 (`expand`) counts once."""
    if tensor.layout != torch.strided:
        return int(tensor.numel())
    return product(
        size if size == 0 or tensor.stride(dimension) else 1
        for dimension, size in enumerate(tensor.shape)
    )


def per_multiply_add(tensor: Any) -> int:
    """FLOPs of one multiply-add: 2, or 8 for complex numbers (4 multiplications, 4 additions)."""
    return 8 if tensor.is_complex() else 2

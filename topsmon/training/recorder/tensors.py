"""Small helpers on the tensors of the run: torch itself, nested containers, shards."""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Iterator
from typing import Any

DEPTH = 6
"""Containers nested deeper than this are not looked into."""


def torch_of_run() -> Any:
    """The torch that the run has imported; KeyError where it has none."""
    return sys.modules["torch"]


def tensors_in(value: Any, depth: int = DEPTH) -> Iterator[Any]:
    """All tensors in nested lists, tuples, dicts and plain objects of fields, in order.

    Only containers whose items can be read without running the user's code are opened.
    """
    if isinstance(value, torch_of_run().Tensor):
        yield value
    elif depth:
        for item in _items(value):
            yield from tensors_in(item, depth - 1)


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        return iter(tuple(value))
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, dict):
        return iter(tuple(dict.values(value)))
    if hasattr(type(value), "__dataclass_fields__"):
        return iter(tuple(getattr(value, "__dict__", {}).values()))
    return iter(())


def local(tensor: Any) -> Any | None:
    """A plain tensor with the same values; None where this process has a part of them only."""
    if type(tensor) is torch_of_run().Tensor:
        return tensor
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return tensor
    if all(placement.is_replicate() for placement in placements):
        return tensor.to_local()
    return None


def shard(tensor: Any) -> Any:
    """The part of a tensor that lies in this process, the tensor itself where it is whole."""
    return tensor.to_local() if getattr(tensor, "placements", None) is not None else tensor


def countable(tensor: Any) -> bool:
    """True if reductions over its values work: floating point, strided, not empty, with storage."""
    return bool(
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout == torch_of_run().strided
        and not tensor.is_nested
        and not tensor.is_meta
        and tensor.numel()
    )

"""A counted module as a document of plain values: layers, totals, what is missing, notes."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import torch

from .counter import Layer
from .counting import Counted, Options
from .work import Tally, tensors

SCHEMA = 1
"""Raised when a field changes its meaning."""


def document(counted: Counted, options: Options, target: str) -> dict[str, Any]:
    """Return what was counted, ready for JSON."""
    paths = _Paths(counted)
    layers = list(_rows(counted, paths))
    forward, backward = Tally(), Tally()
    for layer in (*counted.counter.layers.values(), counted.counter.outside):
        forward.add(layer.forward)
        backward.add(layer.backward)
    parameters = list(counted.module.parameters())
    return {
        "schema": SCHEMA,
        "target": target,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "mode": "train" if options.training else "eval",
        "inputs": list(_inputs(counted)),
        "real_tensors_because": counted.reason,
        "flops_by_dtype": counted.counter.flops_by_dtype,
        "layers": layers,
        "total": {
            "forward": _tally(forward),
            "backward": _tally(backward),
            "parameters": sum(_elements(item) for item in parameters),
            "trainable_parameters": sum(
                _elements(item) for item in parameters if item.requires_grad
            ),
        },
        "uncounted": [
            {"operation": name, "calls": calls, "layer": paths.of(layer)}
            for name, (calls, layer) in counted.counter.uncounted.items()
        ],
        "causal_masked_flops": counted.counter.causal_flops,
    }


class _Paths:
    """Names as `named_modules` gives them; what is registered nowhere is named after its parent."""

    def __init__(self, counted: Counted) -> None:
        # torch.compile wraps the module that the user knows.
        root = getattr(counted.module, "_orig_mod", counted.module)
        self.modules = dict(root.named_modules())
        self._names: dict[int, str] = {id(module): name for name, module in self.modules.items()}

    def of(self, layer: Layer) -> str:
        """Path of a layer, "" for the module itself."""
        if layer.module is None or layer.parent is None:
            return ""
        name = self._names.get(id(layer.module))
        if name is not None:
            return name
        parent = self.of(layer.parent)
        return f"{parent}/{type(layer.module).__name__}".lstrip("/")


def _rows(counted: Counted, paths: _Paths) -> Iterator[dict[str, Any]]:
    """Layers that compute, move or hold something, in the order in which the model defines them."""
    seen: set[int] = set()
    layers = dict(counted.counter.layers)
    for path, module in paths.modules.items():
        own = 0
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                own += _elements(parameter)
        layer = layers.pop(id(module), None) or Layer(module, None)
        row = _row(path, layer, own)
        if own or _works(layer):
            yield row
    rest = [layer for layer in layers.values() if _works(layer)]
    for layer in (*rest, counted.counter.outside):
        if _works(layer):
            yield _row(paths.of(layer), layer, 0)


def _row(path: str, layer: Layer, parameters: int) -> dict[str, Any]:
    return {
        "path": path,
        "class": "" if layer.module is None else type(layer.module).__name__,
        "calls": layer.calls,
        "parameters": parameters,
        "forward": _tally(layer.forward),
        "backward": _tally(layer.backward),
    }


def _works(layer: Layer) -> bool:
    return bool(layer.forward.flops or layer.forward.other or layer.forward.bytes)


def _tally(tally: Tally) -> dict[str, int]:
    """`flops` of products, half as many `macs`, `other_flops` of everything else, and bytes."""
    return {
        "flops": tally.flops,
        "macs": tally.flops // 2,
        "other_flops": tally.other,
        "bytes": tally.bytes,
        "float_elements": tally.float_elements,
        "other_bytes": tally.other_bytes,
    }


def _elements(parameter: Any) -> int:
    return 0 if torch.nn.parameter.is_lazy(parameter) else int(parameter.numel())


def _inputs(counted: Counted) -> Iterator[dict[str, Any]]:
    for name, value in counted.inputs:
        for tensor in tensors(value):
            yield {
                "name": name,
                "shape": [int(size) for size in tensor.shape],
                "dtype": str(tensor.dtype).replace("torch.", ""),
            }

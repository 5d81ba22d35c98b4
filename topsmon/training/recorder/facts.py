"""What a run trains: parameters of the whole model, their types, device, and what is not seen."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from . import active, compiled
from .names import WRAPPED, WRAPPERS
from .tensors import torch_of_run

SHARDED_NORM = "gradients are sharded: their norm is known from the run's own clip call only"
COMPILED = "compiled modules show no layers"
SPLIT_BY_MEGATRON = "tensor-parallel layers: the size of the whole model is not known here"
MEGATRON_TABLE = "VocabParallelEmbedding"


class _Weight(NamedTuple):
    """One trainable parameter of the whole model; `key` is its id where it is one of its own."""

    elements: int
    dtype: str
    lookup: bool
    key: int = 0


def describe(model: Any, optimizers: Sequence[Any] = ()) -> dict[str, Any]:
    """Fields of a run's identity. Without a model they come from the optimizers' parameters."""
    held = list(model.parameters()) if model is not None else []
    trained = [parameter for parameter in held if parameter.requires_grad]
    trained = trained or list(_of_optimizers(optimizers))
    weights = list(_weights(model)) if model is not None else list(_plain(trained))
    sharded = any(_is_shard(parameter) for parameter in trained) or bool(list(_flat(model)))
    split = any(getattr(item, "tensor_model_parallel", False) for item in trained)
    passed = _passed(model, weights, split=split)
    is_compiled = model is not None and compiled.has_compiled_modules(model)
    device = trained[0].device if trained else None
    types: dict[str, int] = {}
    for weight in weights:
        types[weight.dtype] = types.get(weight.dtype, 0) + weight.elements
    known = bool(weights) and not split
    lookups = sum(weight.elements for weight in weights if weight.lookup)
    limits = ((COMPILED, is_compiled), (SHARDED_NORM, sharded), (SPLIT_BY_MEGATRON, split))
    return {
        "parameters": sum(weight.elements for weight in weights) if known else None,
        "embedding_parameters": lookups if known and model is not None else None,
        **passed,
        "parameter_types": types,
        "transformer": is_transformer(model) if model is not None else None,
        "sharded": sharded,
        "compiled": is_compiled,
        "model": _class_name(unwrapped(model)) if model is not None else None,
        "torch_device": str(device) if device is not None else None,
        "device_uuid": device_uuid(device),
        "allow_tf32": _allow_tf32(device),
        "optimizers": tuple(type(optimizer).__name__ for optimizer in optimizers),
        "limits": tuple(words for words, holds in limits if holds),
    }


def _passed(model: Any, weights: Sequence[_Weight], *, split: bool) -> dict[str, Any]:
    """The parameters that a token passes on this rank, where they are not simply all of them."""
    told: dict[str, Any] = dict.fromkeys(("active_parameters", "active_note", "active_absence"), "")
    told["active_parameters"] = None
    if model is None:
        return told
    flat = next(_flat(model), None) is not None
    configuration = getattr(unwrapped(model), "config", None)
    found = active.active(model, configuration, opaque=flat)
    told["active_absence"] = found.absence
    if not flat and not found.absence:
        told.update(_frozen(model, found))
    if not found.absence and (found.shares or split):
        told["active_note"] = found.note or active.SPLIT_PART
        told["active_parameters"] = int(
            sum(one.elements * found.shares.get(one.key, 1) for one in weights if not one.lookup)
        )
    return told


def _frozen(model: Any, found: active.Active) -> dict[str, Any]:
    """The frozen matrices that a token passes, those gradients flow through, and their types."""
    lookups, flowing = _only_looked_up(model), active.flowing(model)
    total, passed_back = Fraction(0), Fraction(0)
    types: dict[str, int] = {}
    for item in active.frozen(model):
        if id(item) in lookups:
            continue
        passed = active.elements(item) * found.shares.get(id(item), Fraction(1))
        total += passed
        passed_back += passed if id(item) in flowing else 0
        types[_type_name(item)] = types.get(_type_name(item), 0) + int(passed)
    return {
        "frozen_parameters": int(total),
        "frozen_flowing": int(passed_back),
        "frozen_types": types,
    }


def is_compiled(model: Any) -> bool:
    """True if torch.compile wraps the model, or a module in it."""
    return compiled.has_compiled_modules(model)


def unwrapped(model: Any) -> Any:
    """The module that the user wrote, inside wrappers that distribute or compile it."""
    while True:
        children = model.__dict__.get("_modules", {})
        inner = next((children[name] for name in WRAPPED if name in children), None)
        if inner is None and type(model).__name__ in WRAPPERS:
            inner = children.get("module")
        if inner is None:
            return model
        model = inner


def _class_name(model: Any) -> str:
    """The user's class: `fully_shard` gives a model a class made of FSDPModule and it."""
    bases = type(model).__bases__
    made = len(bases) == 2 and bases[0].__name__ == "FSDPModule"
    return str((bases[1] if made else type(model)).__name__)


def _of_optimizers(optimizers: Sequence[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter


def _weights(model: Any) -> Iterator[_Weight]:
    """Trainable parameters of the whole model: tied ones once, shards at their whole size."""
    flat = list(_flat(model))
    for parameter in flat:
        yield from _inside_flat(parameter)
    inside = {id(parameter) for parameter in flat}
    for parameter in flat:
        inside.update(id(original) for original in parameter._params or ())  # noqa: SLF001  torch's
    rest = [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad and id(parameter) not in inside
    ]
    yield from _plain(rest, _only_looked_up(model))


def _plain(parameters: Sequence[Any], lookups: frozenset[int] = frozenset()) -> Iterator[_Weight]:
    for parameter in parameters:
        if torch_of_run().nn.parameter.is_lazy(parameter):
            continue
        key = id(parameter)
        yield _Weight(active.elements(parameter), _type_name(parameter), key in lookups, key)


def _only_looked_up(model: Any) -> frozenset[int]:
    """Ids of embedding tables that no other kind of module uses too."""
    torch = torch_of_run()
    tables: set[int] = set()
    others: set[int] = set()
    for module in model.modules():
        is_table = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        is_table = is_table or type(module).__name__ == MEGATRON_TABLE
        for parameter in module.__dict__.get("_parameters", {}).values():
            if parameter is not None:
                (tables if is_table else others).add(id(parameter))
    return frozenset(tables - others)


def _flat(model: Any) -> Iterator[Any]:
    """FSDP's flat parameters: their handles hang on the modules that FullyShardedDataParallel made.

    Fields as in torch/distributed/fsdp/_flat_param.py.
    """
    if model is None or "torch.distributed.fsdp" not in sys.modules:
        return
    for module in model.modules():
        parameter = getattr(module.__dict__.get("_handle"), "flat_param", None)
        if parameter is not None and getattr(parameter, "_shapes", None) is not None:
            yield parameter


def _inside_flat(flat: Any) -> Iterator[_Weight]:
    torch = torch_of_run()
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    kind = _type_name(flat)
    shared_elsewhere = {
        (id(info.prim_module), info.prim_param_name)
        for info in flat._shared_param_infos  # noqa: SLF001  torch's own list of tied weights
        if not isinstance(info.module, tables)
    }
    originals = flat._params or [flat] * len(flat._shapes)  # noqa: SLF001
    for shape, info, original in zip(flat._shapes, flat._param_infos, originals):  # noqa: SLF001
        if original.requires_grad:
            tied = (id(info.module), info.param_name) in shared_elsewhere
            lookup = isinstance(info.module, tables) and not tied
            yield _Weight(math.prod(shape), kind, lookup)


def _is_shard(parameter: Any) -> bool:
    placements = getattr(parameter, "placements", None) or ()
    return hasattr(parameter, "ds_numel") or any(item.is_shard() for item in placements)


def _type_name(tensor: Any) -> str:
    return str(tensor.dtype).replace("torch.", "")


def is_transformer(model: Any) -> bool:
    """True if the model has attention: torch's own, by name, or by the function it calls."""
    return any(active.is_attention(module) for module in model.modules())


def device_uuid(device: Any) -> str | None:
    """NVML's name of a CUDA device ("GPU-..."), None for others and where torch does not tell."""
    torch = torch_of_run()
    if device is None or device.type != "cuda" or torch.version.hip is not None:
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return None
    text = str(uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _allow_tf32(device: Any) -> bool | None:
    """Whether FP32 products may use TF32; None off CUDA. torch 2.9 brought `fp32_precision`."""
    if device is None or device.type != "cuda":
        return None
    matmul = torch_of_run().backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    if precision not in {None, "none"}:
        return bool(precision == "tf32")
    return bool(matmul.allow_tf32)

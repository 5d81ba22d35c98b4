"""How many parameters a token passes on this rank: the N of 6 N D.

All of them in a dense model. In a mixture of experts the router sends a token to some experts only;
where ranks split layers among them (tensor parallel), each computes a part for the same tokens.
What is not certain is refused, with words: too high an N would make a utilisation that is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from .tensors import torch_of_run

ATTENTION_FUNCTIONS = frozenset({"scaled_dot_product_attention", "flash_attn_func"})

EXPERT_COUNTS = (
    "num_experts",  # Qwen, Switch, DeepSpeed, torchtitan
    "num_local_experts",  # Mixtral, Llama 4, gpt-oss
    "n_routed_experts",  # DeepSeek
    "num_routed_experts",
    "num_moe_experts",  # Megatron
    "moe_num_experts",  # DBRX
    "n_experts",
)
CHOSEN_COUNTS = (
    "num_experts_per_tok",  # Hugging Face
    "num_experts_per_token",
    "experts_per_token",
    "num_selected_experts",
    "moe_router_topk",  # Megatron
    "moe_top_k",
    "moe_topk",
    "moe_k",  # ERNIE
)
CHOSEN_IN_MODULES = (*CHOSEN_COUNTS, "top_k", "topk")
"""Of a configuration `top_k` may be that of text generation."""
NOT_ALL_COMPUTED = (
    "capacity_factor",
    "expert_capacity",
    "expert_capacity_factor",
    "moe_expert_capacity_factor",
    "train_capacity_factor",
    "zero_expert_num",
)
"""Where these are set tokens may be dropped, or experts may compute nothing."""
ROUTERS = ("router", "gate", "wg")
_SKIPPED = re.compile(r"(^|\.)(original_module|lora_\w+|ema\w*|\w+_ema)$")
"""Of PEFT: what a trained copy replaces, adapters that are not in use. Averages of weights."""
_HOLDER = re.compile(r"Experts")
_LAYER = re.compile(r"(MoE|Moe|MOE)(Layer|Block)?$|SparseMLP$|MixtureOfExperts|ExpertChoice")

MIXTURE = (
    "mixture of experts, and how many of its parameters a token passes is not known "
    "(--flops sample counts them)"
)
SPLIT = "tensor-parallel ranks share the work on the same tokens"
SPLIT_PART = "this rank's part of split layers"


class Active(NamedTuple):
    """`shares` of parameters by id, where not whole; `absence` says why N is not known."""

    shares: Mapping[int, Fraction] = {}
    note: str = ""
    absence: str = ""


class _Mixture(NamedTuple):
    """One layer's experts: the modules around them that may tell of them, and the experts."""

    around: tuple[Any, ...]
    experts: Any


def active(model: Any, configuration: Any, *, opaque: bool) -> Active:
    """What of each parameter a token passes.

    `configuration` is the model's own, None without one; `opaque`: parameters lie flattened, so
    that the experts' own cannot be told.
    """
    if splits(model):
        return Active(absence=SPLIT)
    mixtures = list(_mixtures(model))
    hidden = _hidden_layers(model, mixtures)
    if not mixtures and not hidden and not _is_mixture(configuration):
        return Active()
    if opaque or hidden or not mixtures or _split_by_megatron(model):
        return Active(absence=MIXTURE)
    shares: dict[int, Fraction] = {}
    notes: set[tuple[int, int]] = set()
    for mixture in mixtures:
        counts = _counts(mixture, configuration)
        if counts is None:
            return Active(absence=MIXTURE)
        notes.add(counts)
        share = Fraction(*counts)
        shares.update((id(item), share) for item in mixture.experts.parameters())
    words = " and ".join(f"{chosen} of {experts}" for chosen, experts in sorted(notes))
    return Active(shares, f"{words} experts")


def splits(model: Any) -> bool:
    """True if ranks compute parts of layers for the same tokens, or may.

    A DTensor is a shard of data parallelism where fully_shard made it: one dimension of its mesh
    shards it, the last one, after replicas. Else, or with another sharded dimension, it is split.
    """
    size = _attribute(model, "tp_size")  # transformers
    if isinstance(size, int) and size > 1:
        return True
    sharded = [_dimensions(item) for item in model.parameters() if hasattr(item, "placements")]
    if not any(any(dimensions) for dimensions in sharded):
        return False
    kinds = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    return "FSDPModule" not in kinds or any(
        dimensions and (sum(dimensions) != 1 or not dimensions[-1]) for dimensions in sharded
    )


def _dimensions(parameter: Any) -> list[bool]:
    """Whether a DTensor is sharded, by dimension of its mesh; one rank alone is no dimension."""
    sizes = parameter.device_mesh.shape
    return [one.is_shard() for one, size in zip(parameter.placements, sizes) if size > 1]


def _split_by_megatron(model: Any) -> bool:
    return any(getattr(item, "tensor_model_parallel", False) for item in model.parameters())


def _mixtures(model: Any) -> Iterator[_Mixture]:
    """All experts of the model, by the name of the module or that of its class."""
    for parent in model.modules():
        children = parent.__dict__.get("_modules", {})
        routers = [children[name] for name in ROUTERS if children.get(name) is not None]
        for name, child in children.items():
            if child is None or "shared" in name:
                continue
            # `local_experts` of Megatron lie in a module that is called `experts`.
            if name == "experts" or _HOLDER.search(type(child).__name__):
                yield _Mixture((parent, child, *routers), child)


def _hidden_layers(model: Any, mixtures: Iterable[_Mixture]) -> bool:
    """True if a module calls itself a mixture of experts, and its experts were not found."""
    known = {id(inner) for one in mixtures for inner in one.experts.modules()}
    for module in model.modules():
        named = _LAYER.search(type(module).__name__)
        if named and not any(id(inner) in known for inner in module.modules()):
            return True
    return False


def _is_mixture(configuration: Any) -> bool:
    return any(count > 1 for count in _numbers(_parts(configuration), EXPERT_COUNTS))


def _counts(mixture: _Mixture, configuration: Any) -> tuple[int, int] | None:
    """How many experts a token passes, of how many: where all that tell of it agree."""
    own = [_attribute(module, "config") for module in mixture.around]
    parts = [part for one in (configuration, *own) for part in _parts(one)]
    told = set(_numbers((*mixture.around, *parts), EXPERT_COUNTS))
    chosen = {*_numbers(mixture.around, CHOSEN_IN_MODULES), *_numbers(parts, CHOSEN_COUNTS)}
    experts = _experts_in(mixture.experts)
    dropping = any(
        _attribute(thing, name) for thing in (*mixture.around, *parts) for name in NOT_ALL_COMPUTED
    )
    if dropping or experts is None or told != {experts} or len(chosen) != 1:
        return None
    count = chosen.pop()
    return (count, experts) if count <= experts else None


def _experts_in(module: Any) -> int | None:
    """How many equal experts there are: one a child, or one a row of every parameter."""
    own = [item for item in module.__dict__.get("_parameters", {}).values() if item is not None]
    children = list(module.__dict__.get("_modules", {}).values())
    if own and len(own) == len(list(module.parameters())):
        rows = {int(item.shape[0]) if item.dim() > 1 else 0 for item in own}
        return rows.pop() if len(rows) == 1 else None
    if own or any(child is None for child in children):
        return None
    sizes = {sum(elements(item) for item in child.parameters()) for child in children}
    return len(children) if len(sizes) == 1 and sizes != {0} else None


def is_attention(module: Any) -> bool:
    """True for torch's own attention, one by name, or one by the function that it calls."""
    kind = type(module)
    if isinstance(module, torch_of_run().nn.MultiheadAttention):
        return True
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    named = "attention" in kind.__name__.lower()
    return named or (code is not None and bool(ATTENTION_FUNCTIONS.intersection(code.co_names)))


def frozen(model: Any) -> list[Any]:
    """Matrices that do not train; left out are those under names that the forward pass skips."""
    skipped = {
        id(item)
        for name, module in model.named_modules()
        if _SKIPPED.search(name)
        for item in module.parameters()
    }
    return [
        item
        for item in model.parameters()
        if not item.requires_grad and id(item) not in skipped and _is_matrix(item)
    ]


def _is_matrix(parameter: Any) -> bool:
    lazy = torch_of_run().nn.parameter.is_lazy(parameter)
    return not lazy and len(getattr(parameter, "ds_shape", None) or parameter.shape) > 1


def flowing(model: Any) -> set[int]:
    """Ids of frozen parameters that gradients surely flow through.

    Those of a stack of equal layers, each with one attention, after the first layer that trains.
    Beside a second attention (a decoder's, over an encoder) not all matrices lie on the way back.
    """
    nn, found = torch_of_run().nn, set()
    for module in model.modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        layers = list(module)
        if len({type(layer) for layer in layers}) != 1 or any(_attentions(x) != 1 for x in layers):
            continue
        trains = False
        for layer in layers:
            held = list(layer.parameters())
            found |= {id(item) for item in held if trains and not item.requires_grad}
            trains = trains or any(item.requires_grad for item in held)
    return found


def _attentions(layer: Any) -> int:
    """Attentions inside a layer, those inside another one left out; 0 where it is one itself."""
    if is_attention(layer):
        return 0
    children = [child for child in layer.__dict__.get("_modules", {}).values() if child is not None]
    return sum(1 if is_attention(child) else _attentions(child) for child in children)


def elements(parameter: Any) -> int:
    """Elements of the whole parameter; DeepSpeed's ZeRO stage 3 keeps them beside an empty one."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _parts(configuration: Any) -> list[Any]:
    """A configuration and those in it that may tell of experts."""
    if configuration is None:
        return []
    inner = (_attribute(configuration, name) for name in ("text_config", "ffn_config"))
    return [configuration, *(part for part in inner if part is not None)]


def _numbers(things: Iterable[Any], names: Iterable[str]) -> list[int]:
    """All positive whole numbers of these names."""
    found = (_attribute(thing, name) for thing in things for name in names)
    return [value for value in found if type(value) is int and value > 0]


def _attribute(thing: Any, name: str) -> Any:
    """An attribute, or a mapping's value; None without one, or where asking for it fails."""
    try:
        value = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property of the run's own
        return None
    tensor = torch_of_run().Tensor
    return None if isinstance(value, tensor) else value

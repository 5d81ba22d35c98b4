"""Names of parameters as `named_parameters()` of their root module gives them.

Root modules are known from torch's global registration hooks, which cost something only while
modules are built. After a late attach, and for models that were copied or unpickled, one pass over
the garbage collector's objects finds them. Modules are held weakly.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from .tensors import torch_of_run

GC_PASSES = 3
"""A pass over millions of objects takes up to a second, so there are few in a run's life."""
WRAPPED = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})
WRAPPERS = frozenset(
    {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "Float16Module"}
)
"""Classes whose only child is called "module"."""
FLAT = "_flat_param"


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows the id of what it referred to."""

    __slots__ = ("key",)

    key: int


class _Registry:
    def __init__(self) -> None:
        self.seen: dict[int, _Ref] = {}
        self.handles: list[Any] = []
        self.passes_left = GC_PASSES

    def note(self, module: Any, _name: str = "", _value: Any = None) -> None:
        """Remember a module to which a child or a parameter is being added."""
        known = self.seen.get(id(module))
        if known is not None and known() is module:
            return
        reference = _Ref(module, self._forget)
        reference.key = id(module)
        self.seen[reference.key] = reference

    def _forget(self, reference: _Ref) -> None:
        if self.seen.get(reference.key) is reference:
            del self.seen[reference.key]

    def alive(self) -> list[Any]:
        modules = (reference() for reference in list(self.seen.values()))
        return [module for module in modules if module is not None]


_REGISTRY = _Registry()


def note_modules() -> None:
    """Watch the construction of modules from now on."""
    module = sys.modules.get("torch.nn.modules.module")
    if module is None or _REGISTRY.handles:
        return
    _REGISTRY.handles = [
        module.register_module_module_registration_hook(_REGISTRY.note),
        module.register_module_parameter_registration_hook(_REGISTRY.note),
    ]


def forget_modules() -> None:
    """Stop watching, and forget what was seen."""
    for handle in _REGISTRY.handles:
        handle.remove()
    _REGISTRY.handles = []
    _REGISTRY.seen.clear()
    _REGISTRY.passes_left = GC_PASSES


def models() -> list[Any]:
    """Live root modules that have parameters, in the order of their construction."""
    alive = _REGISTRY.alive()
    inner = {
        id(child)
        for module in alive
        for child in module.__dict__.get("_modules", {}).values()
        if child is not None
    }
    return [
        module
        for module in alive
        if id(module) not in inner and next(iter(module.parameters()), None) is not None
    ]


def model_of(parameters: Iterable[Any]) -> Any | None:
    """The root module that owns most of these parameters, else the one that is wrapped, or None."""
    owners = _owners([id(parameter) for parameter in parameters])
    return max(owners, key=lambda owner: len(owner[1]))[0] if owners else _wrapped_model()


def _wrapped_model() -> Any | None:
    """The root that distributes its model, None unless there is exactly one.

    DeepSpeed and Megatron give their optimizers copies of the parameters, which no module owns.
    """
    roots = [root for root in models() if type(root).__name__ in WRAPPERS]
    return roots[0] if len(roots) == 1 else None


def names_of(parameters: Iterable[Any]) -> dict[int, str]:
    """Names by id in forward order, which is the order in which a root registered them.

    Where several roots own some, their class goes before the name. A parameter of no module is
    called by its place among the given ones ("parameter 2") and comes last.
    """
    wanted = {id(parameter): f"parameter {place}" for place, parameter in enumerate(parameters)}
    return _named(wanted)


def names_of_groups(optimizers: Sequence[Any]) -> dict[int, str]:
    """Names as `names_of`; a parameter of no module is called "group 0, parameter 2"."""
    wanted: dict[int, str] = {}
    for index, optimizer in enumerate(optimizers):
        prefix = f"optimizer {index}, " if len(optimizers) > 1 else ""
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                wanted.setdefault(id(parameter), f"{prefix}group {number}, parameter {place}")
    return _named(wanted)


def _named(wanted: dict[int, str]) -> dict[int, str]:
    owners = _owners(list(wanted))
    named: dict[int, str] = {}
    for number, (root, owned) in enumerate(owners):
        prefix = ""
        if len(owners) > 1:
            kind = type(root).__name__
            same = [other for other, _ in owners if type(other).__name__ == kind]
            prefix = f"{kind}#{number + 1}." if len(same) > 1 else f"{kind}."
        named.update((key, prefix + display(name, root)) for key, name in owned.items())
    named.update((key, name) for key, name in wanted.items() if key not in named)
    return named


def _owners(wanted: Sequence[int]) -> list[tuple[Any, dict[int, str]]]:
    """Root modules with the wanted parameters that they own; each parameter has one owner."""
    missing = set(wanted)
    owners = _claim(missing)
    # Copies that a wrapper gave its optimizer are found in no module, however long one looks.
    if missing and _REGISTRY.passes_left and (owners or _wrapped_model() is None):
        _REGISTRY.passes_left -= 1
        _find_modules()
        missing = set(wanted)
        owners = _claim(missing)
    return owners


def _claim(missing: set[int]) -> list[tuple[Any, dict[int, str]]]:
    """Give parameters to roots, those first that own most; take them out of `missing`."""
    roots = models()
    offers = [
        {id(parameter): name for name, parameter in root.named_parameters()} for root in roots
    ]
    claims: dict[int, dict[int, str]] = {}
    while missing and offers:
        shares = [len(missing.intersection(offer)) for offer in offers]
        best = max(range(len(offers)), key=shares.__getitem__)
        if not shares[best]:
            break
        claims[best] = {key: name for key, name in offers[best].items() if key in missing}
        missing.difference_update(claims[best])
    return [(roots[index], claims[index]) for index in sorted(claims)]


def _find_modules() -> None:
    """Note all live modules. Types are asked, not objects: a proxy may answer by running code."""
    kind = torch_of_run().nn.Module
    for thing in gc.get_objects():
        if issubclass(type(thing), kind) and "_modules" in thing.__dict__:
            _REGISTRY.note(thing)


def display(name: str, root: Any = None) -> str:
    """A name without what wrappers (DDP, FSDP, checkpointing, torch.compile) put before it."""
    parts = name.split(".")
    while type(root).__name__ in WRAPPERS and parts[:1] == ["module"]:
        root, parts = root.__dict__["_modules"].get("module"), parts[1:]
    parts = [part for part in parts if part not in WRAPPED]
    if parts and parts[-1] == FLAT:
        parts[-1:] = ["(flat parameter)"]
    return ".".join(parts)


def likely_origin(names: Sequence[str]) -> str | None:
    """The layer where a backward overflow most likely began, of bad parameters in forward order.

    It is the last one: what overflows there goes back through all layers before it.
    """
    if not names:
        return None
    layer, _, own = names[-1].rpartition(".")
    return layer or own

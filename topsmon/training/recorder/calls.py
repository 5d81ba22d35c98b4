"""See every module call for a short while, without a hook on any of the user's modules.

`torch.nn.Module.__call__` is replaced while somebody looks, as torch.fx does while it traces, and
put back afterwards. So there is nothing in a module that could be pickled, copied or left behind.
Each change makes Python forget what it has cached of the class, so this is for rare looks only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .tensors import torch_of_run

Observer = Callable[[Callable[..., Any], Any, "tuple[Any, ...]", "dict[str, Any]"], Any]
"""Gets how to make the call, module and arguments; makes the call and returns its result."""


class _Interception:
    def __init__(self) -> None:
        self.observers: tuple[Observer, ...] = ()
        self.original: Any = None
        self.replacement: Any = None


_NOW = _Interception()


def observe(observer: Observer) -> None:
    """Let this observer make all module calls from now on."""
    _NOW.observers = (*_NOW.observers, observer)
    module_class = torch_of_run().nn.Module
    if module_class.__call__ is _NOW.replacement:
        return
    original = _NOW.original = module_class.__call__

    def observed_call(module: Any, *args: Any, **kwargs: Any) -> Any:
        # One that somebody else has wrapped, and that ours was put around again, passes on.
        observers = _NOW.observers if _NOW.replacement is observed_call else ()
        return _through(observers, original, module, args, kwargs)

    _NOW.replacement = module_class.__call__ = observed_call


def release(observer: Observer) -> None:
    """Stop; harmless if it was not observing. Calls under way end as they began."""
    _NOW.observers = tuple(other for other in _NOW.observers if other != observer)
    module_class = torch_of_run().nn.Module
    # Who has replaced it after us still calls ours, which passes everything on.
    if not _NOW.observers and module_class.__call__ is _NOW.replacement:
        module_class.__call__ = _NOW.original
        _NOW.original = _NOW.replacement = None


def release_all() -> None:
    """Stop all observers: the recorder leaves."""
    for observer in _NOW.observers:
        release(observer)


def _through(
    observers: tuple[Observer, ...],
    call: Callable[..., Any],
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if not observers:
        return call(module, *args, **kwargs)

    def inner(module: Any, *args: Any, **kwargs: Any) -> Any:
        return _through(observers[1:], call, module, args, kwargs)

    return observers[0](inner, module, args, kwargs)

"""Find what the user named, build the module, and make its inputs."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import UsageError
from .shapes import Input


@dataclass(frozen=True)
class Target:
    """MODULE:FACTORY as typed, and the literal arguments of FACTORY(...)."""

    module: str
    attribute: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


def parse_target(text: str) -> Target:
    """Parse MODULE:FACTORY or MODULE:FACTORY(literals); MODULE may be a path ending in .py."""
    module, colon, factory = text.partition(":")
    if not colon or not module.strip() or not factory.strip():
        raise UsageError(
            f"{text}: write MODULE:FACTORY, such as torchvision.models:resnet50 or model.py:make"
        )
    try:
        expression = ast.parse(factory.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise UsageError(f"{text}: {factory!r} is no name after the colon") from None
    if not isinstance(expression, ast.Call):
        return Target(module.strip(), _dotted(expression, text))
    try:
        arguments = tuple(ast.literal_eval(argument) for argument in expression.args)
        keywords = tuple(
            (str(keyword.arg), ast.literal_eval(keyword.value))
            for keyword in expression.keywords
            if keyword.arg is not None
        )
    except ValueError:
        raise UsageError(f"{text}: arguments in brackets must be plain values") from None
    return Target(module.strip(), _dotted(expression.func, text), arguments, keywords)


def _dotted(expression: ast.expr, text: str) -> str:
    names = []
    while isinstance(expression, ast.Attribute):
        names.append(expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        raise UsageError(f"{text}: after the colon comes a name, perhaps with (arguments)")
    return ".".join([expression.id, *reversed(names)])


def find_factory(target: Target) -> Callable[[], Any]:
    """Import the module and return a function that builds what the user named.

    UsageError: there is no such module or attribute. What the user's code raises is left as it is.
    """
    loaded = _load_file(target.module) if target.module.endswith(".py") else _load(target.module)
    try:
        found = operator.attrgetter(target.attribute)(loaded)
    except AttributeError:
        raise UsageError(f"{target.module} has no {target.attribute!r}") from None
    if isinstance(found, torch.nn.Module) and not target.arguments and not target.keywords:
        return lambda: found
    if not callable(found):
        raise UsageError(f"{target.module}:{target.attribute} is neither a function nor a module")
    return lambda: found(*target.arguments, **dict(target.keywords))


def _load(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        raise UsageError(
            f"no module named {error.name!r} in this interpreter ({sys.executable})"
        ) from None


def _load_file(path: str) -> Any:
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"{path}: no such file")
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, str(file))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def build(factory: Callable[[], Any], dtype: str | None) -> tuple[Any, Any]:
    """Call the factory; return the module and the inputs that came with it, None if none did."""
    made, own = factory(), None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module):
        made, own = made
    if not isinstance(made, torch.nn.Module):
        raise UsageError(
            f"the factory returned {type(made).__name__}, not a torch.nn.Module or (module, inputs)"
        )
    return (made if dtype is None else made.to(getattr(torch, dtype))), own


@dataclass
class Call:
    """The arguments of a forward pass."""

    positional: list[Any]
    named: dict[str, Any]

    def labelled(self) -> list[tuple[str | None, Any]]:
        """All arguments with their names, None for those by position."""
        return [(None, value) for value in self.positional] + list(self.named.items())


def make_call(inputs: Sequence[Input], own: Any, dtype: str | None) -> Call:
    """Make the inputs that the user described, or take those that came with the module.

    Floating inputs are random, integers 0 (a valid index of anything), bools true.
    """
    if inputs:
        return Call(
            [_make(item, dtype) for item in inputs if item.name is None],
            {item.name: _make(item, dtype) for item in inputs if item.name is not None},
        )
    if own is None:
        raise UsageError(
            "no inputs: give --input SHAPE once for each argument of forward,"
            " or let the factory return (module, inputs)"
        )
    if isinstance(own, dict):
        return Call([], dict(own))
    return Call(list(own) if isinstance(own, (tuple, list)) else [own], {})


def _make(item: Input, dtype: str | None) -> Any:
    kind = getattr(torch, item.dtype or dtype or "float32")
    if kind == torch.bool:
        return torch.ones(item.shape, dtype=kind)
    if not (kind.is_floating_point or kind.is_complex):
        return torch.zeros(item.shape, dtype=kind)
    # Types of 8 bits have no random numbers of their own.
    return torch.randn(item.shape, dtype=kind if kind.itemsize > 1 else torch.float32).to(kind)


@contextlib.contextmanager
def without_values(module: Any, call: Call) -> Iterator[None]:
    """Put an empty tensor on the CPU in place of every tensor of the module and of its inputs.

    For use where empty tensors take no memory. Tied weights stay tied; the module gets its tensors
    back at the end.
    """
    originals: list[tuple[dict[str, Any], str, Any]] = []
    replaced: dict[int, tuple[Any, Any]] = {}

    def replace(tensor: Any) -> Any:
        if torch.nn.parameter.is_lazy(tensor):
            return tensor
        if id(tensor) not in replaced:
            empty = torch.empty_like(tensor, device="cpu", requires_grad=False)
            if isinstance(tensor, torch.nn.Parameter):
                empty = torch.nn.Parameter(empty, tensor.requires_grad)
            else:
                empty.requires_grad_(tensor.requires_grad)
            # The original is kept so that no other tensor gets its id.
            replaced[id(tensor)] = (empty, tensor)
        return replaced[id(tensor)][0]

    for part in module.modules():
        for members in (part.__dict__["_parameters"], part.__dict__["_buffers"], part.__dict__):
            for name, value in list(members.items()):
                if isinstance(value, torch.Tensor):
                    originals.append((members, name, value))
                    members[name] = replace(value)
    call.positional[:] = [_map(replace, value) for value in call.positional]
    call.named.update({name: _map(replace, value) for name, value in call.named.items()})
    try:
        yield
    finally:
        for members, name, value in originals:
            members[name] = value


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to all tensors in nested plain containers."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in {list, tuple}:
        return type(value)(_map(function, item) for item in value)
    if type(value) is dict:
        return {key: _map(function, item) for key, item in value.items()}
    return value

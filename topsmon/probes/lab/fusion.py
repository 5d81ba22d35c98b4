"""Operator fusion: a chain of elementwise operations one by one, and compiled into one kernel."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib import util
from typing import Any, NamedTuple

import torch

from .. import verdict
from ..errors import UnsupportedError
from ..precisions import DeviceFacts
from .context import Context, judged, relative_error
from .sizing import largest

NAME = "fusion"
SECONDS = 60.0
OPT_IN = True

OPERATIONS = 7
ELEMENTS = tuple(1 << power for power in range(14, 27, 2))
CHECKED_ELEMENTS = 1 << 16
ERROR_LIMIT = 1e-5
"""Of seven FP32 roundings and a compiler's own sigmoid and tanh."""
WINDOW_SECONDS = 0.2
CXX = ("g++", "clang++", "c++")
CC = ("gcc", "clang", "cc")


def chain(x: Any, scale: Any, shift: Any) -> Any:
    """Seven elementwise operations: x * tanh(y * sigmoid(y)) + y with y = x * scale + shift."""
    y = x * scale + shift
    return x * torch.tanh(y * torch.sigmoid(y)) + y


class Size(NamedTuple):
    """FP32 vectors of so many elements."""

    elements: int

    @property
    def work(self) -> float:
        """Elements."""
        return float(self.elements)

    @property
    def needed_bytes(self) -> float:
        """Three inputs, two results, and what lies between them one by one."""
        return 4.0 * 8 * self.elements


class Chain:
    """Random inputs."""

    def __init__(self, bench: Context, size: Size) -> None:
        self.inputs = tuple(bench.random(size.elements) for _ in range(3))

    def run(self) -> Any:
        """One operation after the other."""
        return chain(*self.inputs)


def refusal(facts: DeviceFacts, environment: Mapping[str, str]) -> str | None:
    """Why torch.compile cannot run; None if it can be tried."""
    if facts.kind == "cpu":
        names = (environment["CXX"],) if environment.get("CXX") else CXX
        if not any(shutil.which(name) for name in names):
            return f"torch.compile needs a C++ compiler on a CPU: {', '.join(names)} not found"
        return None
    if (facts.capability or (0, 0)) < (7, 0):
        major, minor = facts.capability or (0, 0)
        return f"Triton needs compute capability 7.0: {facts.name} has {major}.{minor}"
    if util.find_spec("triton") is None:
        return "torch.compile needs Triton on a GPU: the package is not installed"
    names = (environment["CC"],) if environment.get("CC") else CC
    if not any(shutil.which(name) for name in names):
        return f"Triton needs a C compiler: {', '.join(names)} not found"
    return None


@contextlib.contextmanager
def private_cache() -> Iterator[None]:
    """Let the compiler begin from nothing, leave nothing behind and start no helper processes."""
    folder = tempfile.mkdtemp(prefix="topsmon-")
    wanted = {
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


def compiled_chain(bench: Context, inputs: tuple[Any, ...]) -> tuple[Any, float]:
    """The compiled chain and the seconds that compiling and the first call took."""
    began = bench.clock()
    try:
        function = torch.compile(chain, dynamic=False, fullgraph=True)
        function(*inputs)
        bench.synchronize()
    except (RuntimeError, ImportError, OSError) as error:
        if verdict.kind_of_failure(error) != "library":
            raise
        raise UnsupportedError(
            f"torch.compile does not work here: {verdict.in_one_line(error)}"
        ) from error
    return function, bench.clock() - began


def run(bench: Context) -> dict[str, Any]:
    """Seconds one by one and fused, and seconds of compiling."""
    reason = refusal(bench.device.facts, os.environ)
    if reason is not None:
        raise UnsupportedError(reason)
    eager = largest(bench, [Size(count) for count in ELEMENTS], lambda size: Chain(bench, size))
    inputs = eager.inputs
    with private_cache():
        fused, compile_seconds = compiled_chain(bench, inputs)
        times = bench.compare(
            {"eager": eager.run, "compiled": lambda: fused(*inputs)}, WINDOW_SECONDS
        )
        got = fused(*inputs)[:CHECKED_ELEMENTS]
    expected = chain(*(one[:CHECKED_ELEMENTS].to(torch.float64) for one in inputs))
    elements = inputs[0].numel()
    return {
        **judged(relative_error(got, expected), ERROR_LIMIT),
        "values": {
            "eager_seconds": times["eager"].median,
            "compiled_seconds": times["compiled"].median,
            "speedup_ratio": times["eager"].median / times["compiled"].median,
            "compile_seconds": compile_seconds,
            "compiled_bytes_per_second": 4 * 4.0 * elements / times["compiled"].median,
        },
        "labels": {"precision": "fp32", "shape": f"{elements} elements"},
        "method": (
            f"{OPERATIONS} elementwise operations on FP32 vectors, eager against torch.compile "
            "with an empty cache; a whole network gains less, by its share of such operations; "
            f"taking turns, median of calls {bench.device.timing_words}"
        ),
    }

"""Is torch.compile or Triton at work? Hooks and counting stay away from both."""

from __future__ import annotations

import gc
import sys
from typing import Any

OPTIMIZED = "OptimizedModule"


def reason(model: Any) -> str:
    """Why module calls of this run must not be hooked; empty where they may be.

    Hooks make torch.compile compile again, and a compiled module does not show its layers.
    """
    if model is not None and has_compiled_modules(model):
        return "torch.compile: compiled modules show no layers"
    if _frames_compiled():
        return "torch.compile: compiled functions are in use, hooks would compile them again"
    return ""


def has_compiled_modules(model: Any) -> bool:
    """True if a module in it was wrapped by torch.compile or compiled in place."""
    return any(
        type(module).__name__ == OPTIMIZED or module.__dict__.get("_compiled_call_impl") is not None
        for module in model.modules()
    )


def _frames_compiled() -> bool:
    utilities = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utilities, "counters", None)
    frames = counters.get("frames") if counters is not None else None
    return bool(frames and frames.get("ok"))


def triton_kernels() -> bool:
    """True if the run has Triton kernels of its own: those that come with torch do not count.

    One pass over all objects, so only for what is asked for once.
    """
    if "triton.runtime.jit" not in sys.modules:
        return False
    kinds = tuple(
        kind
        for name in ("JITFunction", "Autotuner", "Heuristics")
        for module in ("triton.runtime.jit", "triton.runtime.autotuner")
        if isinstance(kind := getattr(sys.modules.get(module), name, None), type)
    )
    for thing in gc.get_objects():
        if issubclass(type(thing), kinds):
            home = str(getattr(thing, "__module__", ""))
            if home.partition(".")[0] not in {"torch", "triton"}:
                return True
    return False

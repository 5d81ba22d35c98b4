"""FLOPs of one optimizer step, counted by topsmon's own counter while the step runs.

Model FLOPs, as MFU wants them: forward passes with gradients count, and the backward pass is
derived from them operation by operation. What a checkpoint computes again does not count. Only for
eager code: torch.compile hides its operations, and Triton kernels are not seen.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import active, calls, compiled, given
from .slots import in_the_way
from .tensors import torch_of_run

SAMPLE = "sample"
PACKAGE = "_topsmon_flops"
FOLDER = Path(__file__).resolve().parents[2] / "flops"
SPLIT = "of layers that ranks split among them it would count the whole"
TRITON = "Triton kernels are in use, which the FLOPs counter does not see"


@dataclass(frozen=True)
class Count:
    """FLOPs of one optimizer step, forward and backward, of this process.

    `uncounted` names operations without a formula; with any the count is a lower bound.
    """

    flops: float
    lower_bound: bool
    uncounted: tuple[str, ...]


def _counter_module() -> Any:
    """The FLOPs counter, loaded by path under a name of its own."""
    name = PACKAGE + ".counter"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            PACKAGE, str(FOLDER / "__init__.py"), submodule_search_locations=[str(FOLDER)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{FOLDER}: the FLOPs counter is not there")
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKAGE])
    return importlib.import_module(name)


def _tally() -> Any:
    """A counter of model FLOPs that may run through backward passes as well.

    In a backward pass only nodes written in Python count. Without gradients they compute a
    derivative of their own. With gradients they compute again what their forward pass did without,
    as reentrant checkpointing does: then only the products of the gradients are new.
    """
    counter_module = _counter_module()
    torch = torch_of_run()

    class Tally(counter_module.Counter):  # type: ignore[misc, name-defined]  # loaded by path
        def __init__(self) -> None:
            super().__init__()
            self.model_flops = 0

        def _add(self, work: Any, _read: Any, _written: Any) -> None:
            backward, derivative = _place()
            if backward and not derivative:
                return
            graded = torch.is_grad_enabled()
            if not (backward and graded):
                self.model_flops += work.flops
            if graded:
                self.model_flops += sum(
                    gradient.flops
                    for gradient in work.gradients
                    if any(tensor.requires_grad for tensor in gradient.needed_by)
                )

        def _name_uncounted(self, name: str) -> None:
            backward, derivative = _place()
            if not backward or derivative:
                super()._name_uncounted(name)

    return Tally()


def _place() -> tuple[bool, bool]:
    """Whether a backward pass runs, and whether one of its nodes that is written in Python."""
    torch = torch_of_run()
    if torch._C._current_graph_task_id() == -1:  # noqa: SLF001  torch has no public name for it
        return False, False
    node = torch._C._current_autograd_node()  # noqa: SLF001
    return True, isinstance(node, torch.autograd.function.BackwardCFunction)


class StepCounter:
    """Counts one step when asked. `setting` is "sample", a number of FLOPs a step, or None."""

    def __init__(self, setting: str | None) -> None:
        text = (setting or "").strip()
        self.sampling = text == SAMPLE
        self.given: float | None = None
        if text and not self.sampling:
            with contextlib.suppress(ValueError):
                self.given = given.number(given.FLOPS, float(text))
        self._tally: Any = None
        self._known: frozenset[int] = frozenset()
        self._done = False

    @property
    def wanted(self) -> bool:
        """True while a count is asked for and has not been made or refused."""
        return self.sampling and not self._done

    @property
    def active(self) -> bool:
        """True while a step is being counted."""
        return self._tally is not None

    def arm(self, model: Any) -> str:
        """Count from now to `finish`; returns why not, empty if it does. Tried once."""
        self._done = True
        if model is None:
            return "FLOPs not counted: no model is known"
        refused = compiled.reason(model) or (TRITON if compiled.triton_kernels() else "")
        refused = refused or (SPLIT if active.splits(model) else "")
        if refused:
            return f"FLOPs not counted: {refused}"
        self._tally = _tally()
        self._known = frozenset(id(module) for module in model.modules())
        calls.observe(self._call)
        return ""

    def _call(self, call: Any, module: Any, args: Any, kwargs: Any) -> Any:
        tally = self._tally
        counts = (
            tally is not None
            and id(module) in self._known
            and torch_of_run().is_grad_enabled()
            and not in_the_way()
            and not self._counting()
        )
        with tally if counts else contextlib.nullcontext():
            return call(module, *args, **kwargs)

    def _counting(self) -> bool:
        """True inside a call or a backward pass that is being counted."""
        modes = sys.modules["torch.utils._python_dispatch"]._get_current_dispatch_mode_stack()  # noqa: SLF001
        return any(mode is self._tally for mode in modes)

    def backward(self) -> Any:
        """A context for the original backward call: derivatives written in Python are counted."""
        if self._tally is None or self._counting():
            return contextlib.nullcontext()
        return self._tally

    def finish(self) -> Count | None:
        """End the count at the step's end; None if no forward pass was seen."""
        tally, self._tally = self._tally, None
        calls.release(self._call)
        if tally is None or not tally.model_flops:
            return None
        names = tuple(tally.uncounted)
        return Count(float(tally.model_flops), bool(names), names)

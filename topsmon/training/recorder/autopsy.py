"""Which module produced the first non-finite value? One step's forward passes, call by call.

Two reductions a tensor (its extremes), read together when the step has ended. Nothing is attached
to the user's modules.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import calls, compiled
from .names import display
from .slots import Slots, in_the_way
from .tensors import countable, shard, tensors_in, torch_of_run

PER_STREAK, IN_ALL = 3, 50
"""Autopsies of one streak of non-finite losses, and of a run."""
TENSORS_EACH, CALLS_EACH = 16, 20_000
INPUT_BAD = "the input batch is not finite"
LOSS_BAD = "every module's output is finite: look at the loss function and at the labels"
OTHERS = "what else is trained was not watched"
QUIET = "passes without gradients were not watched"
THREADS = "calls in other threads were not watched"
CAPTURED = "captured or compiled calls were not watched"
CUT = f"the look ended after {CALLS_EACH:,} module calls"
UNJUDGED = "some tensors could not be judged"
UNSEEN = "no forward pass of the model was seen"


@dataclass(frozen=True)
class Result:
    """What an autopsy found.

    `where`: "module" (its inputs were finite), "own-code" (in the forward of names[0] itself,
    before it called names[1]), "input", "loss" (all outputs were finite) or "unseen".
    """

    where: str
    names: tuple[str, ...]
    message: str
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class Call:
    """One module call: `inputs`, `outputs` and own `weights` are places of extremes in all values.

    An output that is one of the inputs, such as a mask handed through, is judged as an input.
    """

    name: str
    kind: str
    parent: int | None
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    passed_on: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


def find(records: Sequence[Call], finished: Sequence[int], values: Sequence[float]) -> Result:
    """Judge from records in the order of their beginning, and the order in which they finished.

    `values` are minimum and maximum of each tensor. Minus infinity is right in an input: masks have
    it.
    """

    def bad_input(record: Call) -> bool:
        return any(math.isnan(values[i]) or values[i + 1] == math.inf for i in record.inputs)

    def bad(places: Sequence[int]) -> bool:
        return any(not (math.isfinite(values[i]) and math.isfinite(values[i + 1])) for i in places)

    def bad_output(record: Call) -> bool:
        return bad(record.outputs) or any(
            math.isnan(values[i]) or values[i + 1] == math.inf for i in record.passed_on
        )

    numbers = {"modules": float(len(records))}
    input_result = Result("input", (), INPUT_BAD, {**numbers, "input_finite": 0.0})
    first = next((index for index in finished if bad_output(records[index])), None)
    if first is None:
        if any(record.parent is None and bad_input(record) for record in records):
            return input_result
        return Result("loss", (), LOSS_BAD, numbers)
    culprit = records[first]
    below = None
    while bad_input(culprit):
        if culprit.parent is None:
            return input_result
        below, culprit = culprit, records[culprit.parent]
    if bad(culprit.weights):
        message = f"{culprit.kind}, whose own weights are not finite"
        return Result("module", (culprit.name,), message, {**numbers, "weights_finite": 0.0})
    if below is None:
        return Result("module", (culprit.name,), culprit.kind, numbers)
    message = f"{culprit.kind}, in its own code before {below.name}"
    return Result("own-code", (culprit.name, below.name), message, numbers)


class _Forward:
    """Observes the calls of one step's forward passes."""

    def __init__(self, model: Any, slots: Slots) -> None:
        self.slots = slots
        root_name = self.name = type(model).__name__
        self.root = weakref.ref(model)
        self.known = {
            id(module): (display(name, model) or root_name, type(module).__name__)
            for name, module in model.named_modules()
        }
        self.records: list[Call] = []
        self.finished: list[int] = []
        self.extremes: list[Any] = []
        self.stack: list[int] = []
        self.thread: int | None = None
        self.over = self.paused = False
        self.gaps: dict[str, None] = {}

    def __call__(self, call: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Make a module call and note the extremes of what goes in and comes out."""
        if self.over or self.paused or id(module) not in self.known or not self._begins():
            return call(module, *args, **kwargs)
        index = len(self.records)
        record = Call(*self.known[id(module)], self.stack[-1] if self.stack else None)
        self.records.append(record)
        self.stack.append(index)
        try:
            self._note(record.weights, module.__dict__.get("_parameters"), frozenset())
            given = self._note(record.inputs, (args, kwargs), frozenset())
            result = call(module, *args, **kwargs)
            self._note(record.outputs, result, given, record.passed_on)
        finally:
            del self.stack[self.stack.index(index) :]
            self.finished.append(index)
        return result

    def _begins(self) -> bool:
        """False for passes without gradients (validation) and for other threads' calls."""
        if len(self.records) >= CALLS_EACH:
            return self._passed_over(CUT)
        if in_the_way():
            return self._passed_over(CAPTURED)
        if self.thread is None and torch_of_run().is_grad_enabled():
            self.thread = threading.get_ident()
        if not (self.stack or torch_of_run().is_grad_enabled()):
            return self._passed_over(QUIET)
        return self.thread == threading.get_ident() or self._passed_over(THREADS)

    def _passed_over(self, why: str) -> bool:
        self.gaps[why] = None
        return False

    def _note(
        self, places: list[int], value: Any, given: frozenset[int], passed_on: Any = None
    ) -> frozenset[int]:
        torch = torch_of_run()
        ids: set[int] = set()
        try:
            for tensor in tensors_in(value):
                if len(ids) >= TENSORS_EACH:
                    self.gaps[UNJUDGED] = None
                    break
                ids.add(id(tensor))
                part = shard(tensor)
                if not (countable(part) and self.slots.can_read(part)):
                    if (part.is_floating_point() or part.is_complex()) and part.numel():
                        self.gaps[UNJUDGED] = None
                    continue
                with torch.no_grad():
                    part = part.detach()
                    part = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
                    extremes = torch.aminmax(part)
                place = passed_on if passed_on is not None and id(tensor) in given else places
                place.append(len(self.extremes))
                self.extremes.extend(extremes)
        except Exception:  # noqa: BLE001  a tensor of a kind that cannot be reduced is not judged
            self.gaps[UNJUDGED] = None
        return frozenset(ids)


class Autopsy:
    """Looks at one step's forward passes when asked, a few times in a streak of bad losses."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._forward: _Forward | None = None
        self._then: Callable[..., None] | None = None
        self._in_streak = self._in_all = 0

    @property
    def armed(self) -> bool:
        """True from `arm` until `finish` has taken what was seen."""
        return self._forward is not None

    def arm(self, model: Any, then: Callable[..., None], *, others: bool = False) -> str:
        """Look at the model until `finish`; returns why not, empty if it will.

        `others`: more is trained than this model.
        """
        if self.armed:
            return ""
        if model is None:
            return "no model is known"
        refused = compiled.reason(model)
        if refused:
            return refused
        if self._in_streak >= PER_STREAK or self._in_all >= IN_ALL:
            return "looked at often enough"
        self._in_streak += 1
        self._in_all += 1
        self._forward, self._then = _Forward(model, self._slots), then
        if others:
            self._forward.gaps[OTHERS] = None
        calls.observe(self._forward)
        return ""

    def streak_over(self) -> None:
        """A loss was finite again."""
        self._in_streak = 0

    def pause(self, paused: bool) -> None:
        """Pass over module calls: a backward pass repeats those under checkpointing."""
        if self._forward is not None:
            self._forward.paused = paused

    def finish(self, *about: Any) -> None:
        """Stop looking, read what was seen, call `then(result, *about)`.

        Does nothing before a forward pass has begun.
        """
        forward, then = self._forward, self._then
        if forward is None or then is None or not (forward.records or forward.root() is None):
            return
        self._forward = self._then = None
        forward.over = True
        calls.release(forward)
        if not forward.extremes:
            then(Result("unseen", (), UNSEEN), *about)
            return
        self._slots.read(forward.extremes, lambda values: then(_judge(forward, values), *about))


def _judge(forward: _Forward, values: Sequence[float]) -> Result:
    """What was found, in words that claim no more than was watched."""
    result = find(forward.records, forward.finished, values)
    if result.where == "input" and OTHERS in forward.gaps:
        message = f"the input of {forward.name} is not finite; {OTHERS}"
        return Result("input", (), message, {"modules": result.values["modules"]})
    if result.where != "loss" or not forward.gaps:
        return result
    count = sum(record.parent is None for record in forward.records)
    passes = "the forward pass" if count == 1 else f"the {count:,} forward passes"
    message = f"no output of {forward.name}'s modules was bad in {passes} watched"
    return Result("loss", (), "; ".join((message, *forward.gaps)), result.values)

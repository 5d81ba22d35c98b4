"""Optimizers and their schedulers: which step ends a step of the run, and which must not happen.

torch.optim.optimizer calls global hooks before and after each optimizer's step(). Schedulers count
their own steps (`_step_count`, torch/optim/lr_scheduler.py), so theirs needs no hook.
"""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from . import layout
from .patches import around, not_traced
from .records import Step

if TYPE_CHECKING:
    from .recorder import Recorder

OPTIMIZER, SCHEDULER = "torch.optim.optimizer", "torch.optim.lr_scheduler"
OTHERS_MAX = 16
"""Steps of other optimizers without one of the main one: then another becomes it."""
JUMP_MAX = 1000
"""A scheduler that moves further between two steps was loaded, not stepped."""


class Known:
    """One optimizer. `scaled` and `plain` are the backward passes before its latest step;
    `scaled_by_us`: a scaler has stepped or unscaled it.
    """

    __slots__ = ("plain", "reference", "scaled", "scaled_by_us")

    def __init__(self, reference: Any) -> None:
        self.reference = reference
        self.scaled = self.plain = 0
        self.scaled_by_us = False


class StepWatch:
    """All optimizers. `fired` counts their steps, `depth` those under way; `newest` refers to the
    one that stepped last.
    """

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder
        self.known: dict[int, Known] = {}
        self.newest: Any = None
        self.fired = 0
        self.depth = 0
        self._main = 0
        self._others = 0
        self._scaled_before = 0
        self._owners: dict[int, int] | None = None

    def meet(self, optimizer: Any) -> Known:
        """What is known of an optimizer; the first time it makes itself known to the run."""
        known = self.known.get(id(optimizer))
        if known is None:
            key, all_known = id(optimizer), self.known
            # Another optimizer may get the same id once this one is gone.
            known = Known(weakref.ref(optimizer, lambda _: all_known.pop(key, None)))
            all_known[key] = known
            self._owners = None
            self.recorder.schedulers.find(optimizer)
            self.recorder.open()
            self.recorder.examiner.describe(optimizer)
        return known

    def alive(self) -> list[Any]:
        """All optimizers that have been met and still exist."""
        found = (known.reference() for known in list(self.known.values()))
        return [optimizer for optimizer in found if optimizer is not None]

    # Bodies of the hooks --------------------------------------------------------------------------

    def before(self, optimizer: Any) -> None:
        """An optimizer's step begins."""
        recorder = self.recorder
        losses, known = recorder.losses, self.meet(optimizer)
        if losses.scaled != known.scaled and recorder.scalers.inside is None:
            self._check_bypass(optimizer, known)
        recorder.examiner.before_step(optimizer)
        known.scaled, known.plain = losses.scaled, losses.plain

    def after(self, optimizer: Any) -> None:
        """An optimizer's step has ended; without a scaler that ends a step of the run."""
        self.depth = 0
        recorder, scalers = self.recorder, self.recorder.scalers
        recorder.examiner.after_step(optimizer)
        if scalers.inside is not None:
            return
        if recorder.step.bypassed:
            recorder.step.watched = scalers.current
            recorder.step.scale = scalers.scale_now()
        elif not scalers.awaited:
            if not self._is_main(optimizer):
                return
            scalers.idle += 1
            if scalers.busy():
                return
        self.newest = weakref.ref(optimizer)
        recorder.finish()

    def _is_main(self, optimizer: Any) -> bool:
        if id(optimizer) == self._main and self._main in self.known:
            self._others = 0
            return True
        self._others += 1
        if self._main in self.known and self._others <= OTHERS_MAX:
            return False
        self._main, self._others = id(optimizer), 0
        return True

    def _check_bypass(self, optimizer: Any, known: Known) -> None:
        """Tell if this step uses gradients that are still scaled."""
        recorder = self.recorder
        if self._bypasses(optimizer, known):
            recorder.step.bypassed = True
            recorder.step.flags |= layout.BYPASS
            recorder.totals.bypasses += 1
            recorder.event("bypass", names=(type(optimizer).__name__,))

    def _bypasses(self, optimizer: Any, known: Known) -> bool:
        """True if the gradients come from scaled backward passes and were not unscaled.

        A second optimizer may do without a scaler: its gradients come from plain backward passes.
        """
        losses, scalers = self.recorder.losses, self.recorder.scalers
        if scalers.unscaled(id(optimizer)):
            return False
        if not known.scaled_by_us and losses.plain != known.plain:
            return False
        return any(
            parameter.grad is not None
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def hooks_alive(self, optimizer: Any) -> bool:
        """True if a step of this optimizer would have called the hooks for certain.

        Somebody may have put a function of their own in the place of `optimizer.step`.
        """
        module = sys.modules.get(OPTIMIZER)
        if module is None or not isinstance(optimizer, module.Optimizer):
            return False
        step = vars(optimizer).get("step") or getattr(type(optimizer), "step", None)
        while step is not None:
            if getattr(step, "hooked", False):
                return True
            step = getattr(step, "__wrapped__", None)
        return False

    def gradients_scaled(self, parameters: Any) -> bool:
        """True if these parameters' gradients come from a scaled backward and are still scaled."""
        losses, scalers = self.recorder.losses, self.recorder.scalers
        if losses.scaled == self._scaled_before:
            return False
        if len(self.known) > 1:
            owner = self._owner(_first_of(parameters))
            known = None if owner is None else self.known.get(owner)
            if known is not None:
                pending = losses.scaled != known.scaled and not scalers.unscaled(owner)
                return pending and (known.scaled_by_us or losses.plain == known.plain)
        return scalers.pending and not scalers.unscaled()

    def _owner(self, parameter: Any) -> int | None:
        if self._owners is None:
            self._owners = {
                id(item): id(optimizer)
                for optimizer in self.alive()
                for group in optimizer.param_groups
                for item in group["params"]
            }
        return self._owners.get(id(parameter))

    def take(self, step: Step) -> None:
        """Give a finished step its learning rate and the schedulers' steps."""
        self._scaled_before = self.recorder.losses.scaled
        if self.recorder.schedulers.known:
            self.recorder.totals.scheduler_steps += self.recorder.schedulers.moved()
        optimizer = self.newest() if self.newest is not None else None
        if optimizer is None:
            return
        rate = optimizer.param_groups[0].get("lr")
        if isinstance(rate, (float, int)):
            step.rate = rate
        elif isinstance(rate, self.recorder.torch.Tensor) and rate.numel() == 1:
            if rate.is_cpu:
                step.rate = rate.item()
            else:
                step.device_rate = rate.detach().reshape(())
                step.away = True


class Schedulers:
    """Learning-rate schedulers by the steps that they have counted themselves.

    `known` are pairs of a reference and the count when it was last looked at.
    """

    def __init__(self) -> None:
        self.known: list[list[Any]] = []
        self._sought = False

    def made(self, args: Any, _kwargs: Any, _result: Any) -> None:
        """A scheduler was made: count its steps from now on."""
        self._add(args[0])

    def _add(self, scheduler: Any) -> None:
        self.known.append([weakref.ref(scheduler), _count(scheduler)])

    def begin(self) -> None:
        """The run's first step begins: what schedulers did before, such as loading, is past."""
        for entry in self.known:
            entry[1] = _count(entry[0]())

    def moved(self) -> int:
        """Steps since the last call, of the scheduler that has moved most: others are its parts."""
        most = 0
        for entry in self.known:
            count = _count(entry[0]())
            moved, entry[1] = count - entry[1], count
            if most < moved <= JUMP_MAX:
                most = moved
        return most

    def find(self, optimizer: Any) -> None:
        """Look for schedulers made before the recorder came in, in one pass over all objects.

        A scheduler leaves its mark on the optimizer: without one there is nothing to look for.
        """
        kind = getattr(sys.modules.get(SCHEDULER), "LRScheduler", None)
        marked = hasattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched")
        if kind is None or not marked or self._sought or self.known:
            return
        self._sought = True
        for item in gc.get_objects():
            # type(): isinstance() would run the code of proxies.
            if issubclass(type(item), kind):
                self._add(item)


def patch(recorder: Recorder) -> None:
    """Register the global hooks; notice the construction of optimizers and schedulers."""
    module = sys.modules.get(OPTIMIZER)
    if module is not None and hasattr(module, "Optimizer"):
        recorder.patches.once("steps", partial(_register, recorder, module))
        # By then the run has imported what it needs; when torch.optim came, that was not so.
        again = partial(_around_init, recorder, {"before": recorder.installer.patch_again})
        recorder.patches.put(module.Optimizer, "__init__", again)
    scheduler = getattr(sys.modules.get(SCHEDULER), "LRScheduler", None)
    if scheduler is not None:
        made = partial(_around_init, recorder, {"after": recorder.schedulers.made})
        recorder.patches.put(scheduler, "__init__", made)


def _around_init(recorder: Recorder, bodies: dict[str, Any], original: Any) -> Any:
    return around(recorder, original, **bodies)


def _register(recorder: Recorder, module: Any) -> Any:
    call = recorder.call
    optimizers, scalers, examiner = recorder.optimizers, recorder.scalers, recorder.examiner

    def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        optimizers.fired += 1
        optimizers.depth += 1
        # A subclass may call its parent's step(). Inside a scaler's step() the rest is known.
        if optimizers.depth == 1 and (
            scalers.inside is None or recorder.steps >= examiner.norm_after
        ):
            call(optimizers.before, optimizer)

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        optimizers.depth -= 1
        if optimizers.depth <= 0 and (
            scalers.inside is None or recorder.steps >= examiner.weights_after
        ):
            call(optimizers.after, optimizer)

    handles = (
        module.register_optimizer_step_pre_hook(not_traced(before_step)),
        module.register_optimizer_step_post_hook(not_traced(after_step)),
    )

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def _count(scheduler: Any) -> int:
    count = getattr(scheduler, "_step_count", 0)
    return count if isinstance(count, int) else 0


def _first_of(parameters: Any) -> Any:
    """The first of the parameters given to a clip call, without using up a generator."""
    if isinstance(parameters, (list, tuple)):
        return parameters[0] if parameters else None
    frame = getattr(parameters, "gi_frame", None)
    if frame is None:
        return parameters
    # module.parameters() that has not begun: its frame knows the module.
    module = frame.f_locals.get("self")
    return next(module.parameters(), None) if hasattr(module, "parameters") else None

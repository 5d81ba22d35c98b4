"""What is looked at beyond the healthy path: facts, samples, and what a failure calls for.

Each look has its own budget in its module; here is when it is due and what is told of it.
"""

from __future__ import annotations

import math
import os
import weakref
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from . import facts, layout, names
from .autopsy import Autopsy, Result
from .counting import StepCounter
from .gradients import NormSampler, SkipNames, WeightsCheck, ZeroSampler, parameters_of
from .profile import StepProfile
from .records import Step
from .settling import DEAD_SCALE

if TYPE_CHECKING:
    from .recorder import Recorder

COUNT_AT = 3
"""FLOPs are counted in the step after this one: the first steps allocate and tune."""
RETRY_STEPS = 10
"""Whether a sample is due, and its budget allows it, is asked so seldom."""
SUSPECT_STEPS = 3
"""After a skip that was learned of late, gradients of so many steps are looked at in advance."""


class Examiner:
    """Decides what to look at; the answers come at once or steps later.

    `half`: there are parameters in FP16; `looking`: at the next forward and backward pass; `busy`:
    there is something to do at the end of a step. `norm_after` and `weights_after` are steps before
    which nothing of that kind is due.
    """

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder
        slots = recorder.slots
        self.norms = NormSampler(slots)
        self.skip_names = SkipNames(slots)
        self.zeros = ZeroSampler(slots)
        self.weights = WeightsCheck(slots)
        self.autopsy = Autopsy(slots)
        self.counter = StepCounter(os.environ.get("TOPSMON_FLOPS"))
        self._count = self.counter.wanted
        self.profile: StepProfile | None = None
        self._model: Any = None
        self._described = 0
        self.half = self.looking = False
        self.norm_after, self.weights_after = 1, 0
        self.busy = self._count
        self._suspect = 0

    # Facts ----------------------------------------------------------------------------------------

    def given(self) -> dict[str, Any]:
        """Fields of the identity that the user has given."""
        if self.counter.given is None:
            return {}
        return {"flops_per_step": self.counter.given, "flops_source": "given"}

    def model(self) -> Any:
        """The root module, None while it is not known or once it is gone."""
        return self._model() if self._model is not None else None

    def set_model(self, model: Any) -> None:
        """Take a model as the run's, whatever the optimizers hold."""
        self._model = weakref.ref(model)
        self._describe()

    def describe(self, optimizer: Any) -> None:
        """A new optimizer was met: tell what it trains."""
        if self.model() is None:
            found = names.model_of(
                item for group in optimizer.param_groups for item in group["params"]
            )
            self._model = None if found is None else weakref.ref(found)
        if self._described < 8:
            self._describe()

    def _describe(self) -> None:
        self._described += 1
        recorder = self.recorder
        optimizers = recorder.optimizers.alive()
        told = facts.describe(self.model(), optimizers)
        recorder.identify(**told)
        self.norms.sharded = bool(told.get("sharded"))
        self.half = "float16" in (told.get("parameter_types") or ())
        first = next(
            (item for one in optimizers for group in one.param_groups for item in group["params"]),
            None,
        )
        recorder.device = getattr(first, "device", None)

    # Hooks ----------------------------------------------------------------------------------------

    def before_step(self, optimizer: Any) -> None:
        """Sample the norm where the run does not measure it itself by clipping."""
        recorder, number = self.recorder, self.recorder.steps + 1
        if number <= self.norm_after:
            return
        self.norm_after = recorder.steps + RETRY_STEPS
        if recorder.step.flags & layout.CLIP_CALLED or not self.norms.due(number):
            return
        scale = getattr(optimizer, "grad_scale", None)
        if scale is None and recorder.step.bypassed:
            scale = recorder.scalers.scale_now()
        self.norms.sample(
            number, parameters_of(optimizer), scale, partial(recorder.sampled_norm, recorder.step)
        )

    def after_step(self, optimizer: Any) -> None:
        """Look at the weights now and then, and when they are in danger."""
        recorder, number = self.recorder, self.recorder.steps + 1
        scaled = recorder.scalers.busy()
        if not (scaled or math.isfinite(recorder.step.loss_sum)):
            self.arm_weights()
        if number <= self.weights_after:
            return
        self.weights_after = recorder.steps + RETRY_STEPS
        if self.weights.due(number):
            parameters = [item for group in optimizer.param_groups for item in group["params"]]
            self.weights.look(parameters, partial(self._weights_seen, number, optimizer))

    def arm_weights(self) -> None:
        """Have the weights looked at after the next step of an optimizer."""
        self.weights.arm()
        self.weights_after = 0

    def after_skip(self, optimizer: Any) -> None:
        """The scaler has skipped, and the gradients are still there: name the bad ones."""
        number = self.recorder.steps + 1
        if self.skip_names.due(number, self.recorder.totals.streak + 1):
            self._look_at_gradients(number, optimizer)

    def after_unknown(self, optimizer: Any) -> None:
        """Whether it has skipped is learned later: look in advance while skips are likely."""
        if self._suspect:
            self._suspect -= 1
            self._look_at_gradients(self.recorder.steps + 1, optimizer)

    def after_backward(self) -> None:
        """Gradients were computed in FP16: look how many are zero."""
        recorder, scalers = self.recorder, self.recorder.scalers
        watched = scalers.current if scalers.busy() else None
        key, scale = (0, None) if watched is None else (id(watched), watched.scale)
        if self.zeros.due(key, scale):
            optimizers = recorder.optimizers.alive()
            parameters = [item for optimizer in optimizers for item in parameters_of(optimizer)]
            self.zeros.sample(key, parameters or None, scale, self._zeros_seen)

    def before_backward(self) -> Any:
        """A forward pass is over. Returns what `leave_counting` ends after the backward pass."""
        self.autopsy.pause(True)
        context = self.counter.backward() if self.counter.active else nullcontext()
        context.__enter__()
        return context

    def leave_counting(self, context: Any) -> None:
        """The end of that context."""
        context.__exit__(None, None, None)
        self.autopsy.pause(False)

    # Steps ----------------------------------------------------------------------------------------

    def step_ended(self, step: Step) -> None:
        """A step is over, though all of it may not be known yet."""
        if self.looking:
            self.autopsy.finish(step)
            if self.counter.active:
                self._counted()
            self._still_looking()
        if self._count and step.number >= COUNT_AT:
            self._count = False
            refused = self.counter.arm(self.model())
            self._still_looking()
            if refused:
                self.recorder.event("recorder", refused, step=step.number)
        if self.profile is not None:
            self._profiled(step.number)
            self._still_looking()

    def step_settled(self, step: Step, loss_finite: bool | None) -> None:
        """A step is known; a loss that is not finite calls for a look at the next step."""
        if step.skipped and step.found:
            self._suspect = SUSPECT_STEPS
        if step.watched is not None and step.scale < DEAD_SCALE:
            self.arm_weights()
        if loss_finite:
            self.autopsy.streak_over()
        elif loss_finite is False:
            if step.watched is None and step.device_losses:
                self.arm_weights()
            model = self.model()
            others = model is not None and self._trains_others(model)
            refused = self.autopsy.arm(model, self._autopsied, others=others)
            self._still_looking()
            if refused and self.recorder.totals.loss_streak == 1:
                self.recorder.event("nonfinite-output", refused, step=step.number)

    def open_profile(self, path: str) -> None:
        """Prepare the profile that the user may have asked for, beside the ring."""
        profile = StepProfile(os.environ.get("TOPSMON_PROFILE_STEP"), path)
        self.profile = profile if profile.wanted else None
        if self.profile is not None:
            self._profiled(self.recorder.steps)
        self._still_looking()

    def ring_moved(self, path: str) -> None:
        """The ring's file lies elsewhere from now on: so will what is put beside it."""
        if self.profile is not None:
            self.profile.place(path)

    def _still_looking(self) -> None:
        self.looking = self.autopsy.armed or self.counter.active
        self.busy = self.looking or self._count or self.profile is not None

    # Answers --------------------------------------------------------------------------------------

    def _look_at_gradients(self, number: int, optimizer: Any) -> None:
        self.skip_names.look(
            parameters_of(optimizer), partial(self._gradients_seen, number, weakref.ref(optimizer))
        )

    def _gradients_seen(self, number: int, reference: Any, bad: set[int], seen: int) -> None:
        if bad:
            found = _named(bad, reference())
            values = {"parameters": float(seen), "bad": float(len(bad))}
            self.recorder.event(
                "nonfinite-gradients", names.likely_origin(found) or "", found, values, number
            )

    def _weights_seen(self, number: int, optimizer: Any, bad: set[int], seen: int) -> None:
        if bad:
            values = {"parameters": float(seen), "bad": float(len(bad))}
            self.recorder.event("nonfinite-weights", "", _named(bad, optimizer), values, number)

    def _zeros_seen(self, ratio: float, scale: float | None) -> None:
        values = {"ratio": ratio}
        if scale is not None:
            values["scale"] = scale
        self.recorder.event("gradient-zeros", values=values)

    def _trains_others(self, model: Any) -> bool:
        """True if parameters are trained that are not the model's; copies of its own are not."""
        own = {id(parameter) for parameter in model.parameters()}
        optimizers = self.recorder.optimizers.alive()
        trained = {
            id(item) for one in optimizers for group in one.param_groups for item in group["params"]
        }
        return bool(trained & own and trained - own)

    def _autopsied(self, result: Result, step: Step) -> None:
        if result.where != "loss":
            self._tell(result, step.number)
        elif step.values is not None:
            self._tell_if_bad(result, step)
        else:
            # All outputs were finite: then it is news only if the loss made of them is not.
            step.after = [*(step.after or ()), partial(self._tell_if_bad, result)]

    def _tell_if_bad(self, result: Result, step: Step) -> None:
        if step.flags & layout.NONFINITE_LOSS:
            self._tell(result, step.number)

    def _tell(self, result: Result, number: int) -> None:
        self.recorder.event("nonfinite-output", result.message, result.names, result.values, number)

    def _counted(self) -> None:
        count = self.counter.finish()
        if count is not None:
            self.recorder.identify(
                flops_per_step=count.flops,
                flops_source="counted",
                flops_lower_bound=count.lower_bound,
            )

    def _profiled(self, number: int) -> None:
        told = self.profile.at(number) if self.profile is not None else None
        if told is not None and self.profile is not None:
            kind = "recorder" if self.profile.trouble else "profile"
            self.recorder.event(kind, told[0], told[1], told[2], number)
            self.profile = None


def _named(bad: set[int], optimizer: Any) -> list[str]:
    """Names of the bad parameters in forward order."""
    known = names.names_of_groups([optimizer]) if optimizer is not None else {}
    return [name for key, name in known.items() if key in bad]

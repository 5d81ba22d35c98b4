"""The loss scalers of DeepSpeed and Megatron, where a run has imported them.

DeepSpeed's (deepspeed/runtime/fp16/loss_scaler.py) keeps its scale on the host. Megatron's
(megatron/core/optimizer/grad_scaler.py) keeps it on the device, but is given its constants and
each step's overflow as host values, from which the scale follows. Both are told of an overflow
before the optimizer steps, and both hand losses to backward() that are scaled already.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from .mirror import single
from .patches import around
from .records import NAN, calibration_steps
from .scalers import Watched

if TYPE_CHECKING:
    from .recorder import Recorder

DEEPSPEED = "deepspeed.runtime.fp16.loss_scaler"
MEGATRON = "megatron.core.optimizer.grad_scaler"


class Foreign(Watched):
    """A scaler that is not torch's. `constants` are fields of events.Scaler."""

    __slots__ = ("constants", "read_scale")

    def __init__(self, reference: Any, constants: dict[str, Any]) -> None:
        super().__init__(reference)
        self.constants = constants
        self.scale = self.settled_scale = float(constants["init_scale"])
        self.calibration = calibration_steps(self.scale)
        self.read_scale: Callable[[Any], float] | None = None

    def scale_now(self) -> float:
        """The scale of the gradients, from the scaler's host field where it has one."""
        scaler = self.reference()
        if self.read_scale is not None and scaler is not None:
            return self.read_scale(scaler)
        return NAN if self.scale is None else self.scale

    def loss_divisor(self) -> float:
        """What backward() is given is the loss times the scale."""
        return self.scale_now()


class ForeignWatch:
    """Bodies of the hooks on foreign scalers."""

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder

    def deepspeed_made(self, args: Any, _kwargs: Any, _result: Any) -> None:
        """A DeepSpeed scaler; a static scale of 1 scales nothing."""
        scaler = args[0]
        watched = self._meet(scaler, {"init_scale": float(scaler.cur_scale)})
        watched.read_scale = _current_scale

    def deepspeed_updated(self, args: Any, kwargs: Any, _result: Any) -> None:
        """update_scale(overflow)."""
        scaler = args[0]
        fields = vars(scaler)
        watched = self.recorder.scalers.known.get(id(scaler))
        if isinstance(watched, Foreign):
            tracker = fields.get("cur_iter", 0) - fields.get("last_overflow_iter", -1) - 1
            self._updated(watched, args[1] if len(args) > 1 else kwargs.get("overflow"), tracker)

    def megatron_made(self, args: Any, kwargs: Any, _result: Any) -> None:
        """A Megatron scaler: its constants are numbers only as arguments of __init__."""
        first = args[1] if len(args) > 1 else kwargs["initial_scale"]
        self._meet(args[0], {"init_scale": float(first)})

    def megatron_dynamic(self, args: Any, kwargs: Any, _result: Any) -> None:
        """One whose scale moves, after the part above was done for it."""
        scaler = args[0]
        given = signature(type(scaler).__init__).bind(*args, **kwargs).arguments
        names = ("growth_factor", "backoff_factor", "growth_interval", "min_scale")
        constants = {name: given.get(name) for name in names}
        self._meet(scaler, {"init_scale": float(given["initial_scale"]), **constants})

    def megatron_updated(self, args: Any, kwargs: Any, _result: Any) -> None:
        """update(found_inf): repeat on the host what it has done to the scale."""
        scaler = args[0]
        watched = self.recorder.scalers.known.get(id(scaler))
        if not isinstance(watched, Foreign):
            return
        found_inf = args[1] if len(args) > 1 else kwargs.get("found_inf")
        fields, constants = vars(scaler), watched.constants
        tracker = fields.get("_growth_tracker", -1)
        if watched.scale is not None and constants.get("growth_factor") is not None:
            if found_inf and fields["_hysteresis_tracker"] <= 0:
                backed_off = single(watched.scale * single(constants["backoff_factor"]))
                watched.scale = max(backed_off, single(constants["min_scale"]))
            elif not found_inf and tracker == 0:
                watched.scale = single(watched.scale * single(constants["growth_factor"]))
        self._updated(watched, found_inf, tracker)

    def megatron_loaded(self, args: Any, _kwargs: Any, _result: Any) -> None:
        """load_state_dict() brings the scale as a tensor: not known on the host."""
        watched = self.recorder.scalers.known.get(id(args[0]))
        if watched is not None:
            watched.scale, watched.settled_scale = None, NAN

    def _meet(self, scaler: Any, constants: dict[str, Any]) -> Foreign:
        scalers = self.recorder.scalers
        key, known = id(scaler), scalers.known
        reference = weakref.ref(scaler, lambda _: known.pop(key, None))
        watched = Foreign(reference, constants)
        known[key] = watched
        scalers.used(watched)
        enabled = constants["init_scale"] != 1.0
        self.recorder.identify(
            scaler={"kind": type(scaler).__name__, "enabled": enabled, **constants}
        )
        return watched

    def _updated(self, watched: Foreign, overflow: object, tracker: int) -> None:
        """A skipped step ends here; another one when the optimizer has stepped."""
        self.recorder.open()
        scalers, step = self.recorder.scalers, self.recorder.step
        if scalers.awaited:
            self.recorder.finish()
            step = self.recorder.step
        scalers.used(watched)
        step.watched = watched
        step.skipped = isinstance(overflow, (bool, int)) and bool(overflow)
        step.scale, step.tracker = watched.scale_now(), tracker
        scalers.awaited = not step.skipped
        if step.skipped:
            self.recorder.finish()


def patch(recorder: Recorder) -> None:
    """Put the hooks around the classes that are there; runs without them cost nothing."""
    for module, kind, method, hook in (
        (DEEPSPEED, "LossScalerBase", "__init__", "deepspeed_made"),
        (DEEPSPEED, "LossScalerBase", "update_scale", "deepspeed_updated"),
        (DEEPSPEED, "DynamicLossScaler", "update_scale", "deepspeed_updated"),
        (MEGATRON, "MegatronGradScaler", "__init__", "megatron_made"),
        (MEGATRON, "DynamicGradScaler", "__init__", "megatron_dynamic"),
        (MEGATRON, "ConstantGradScaler", "update", "megatron_updated"),
        (MEGATRON, "DynamicGradScaler", "update", "megatron_updated"),
        (MEGATRON, "DynamicGradScaler", "load_state_dict", "megatron_loaded"),
    ):
        owner = getattr(sys.modules.get(module), kind, None)
        if owner is not None:
            body = getattr(recorder.foreign, hook)
            recorder.patches.put(owner, method, partial(_around, recorder, body))


def _around(recorder: Recorder, body: Any, original: Any) -> Any:
    return around(recorder, original, after=body)


def _current_scale(scaler: Any) -> float:
    return float(scaler.cur_scale)

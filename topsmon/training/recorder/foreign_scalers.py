"""The loss scalers of DeepSpeed and Megatron, where a run has imported them.

DeepSpeed's (deepspeed/runtime/fp16/loss_scaler.py) keeps its scale on the host, and so do its FP16
optimizers that work without ZeRO and scale by themselves (fused_optimizer.py beside it). Megatron's
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
DEEPSPEED_FUSED = "deepspeed.runtime.fp16.fused_optimizer"
DEEPSPEED_UNFUSED = "deepspeed.runtime.fp16.unfused_optimizer"
MEGATRON = "megatron.core.optimizer.grad_scaler"


class Foreign(Watched):
    """A scaler that is not torch's. `constants` are fields of events.Scaler.

    `scales_losses` is False while backward() is called on losses that it has not scaled.
    """

    __slots__ = ("constants", "read_scale", "scales_losses")

    def __init__(self, reference: Any, constants: dict[str, Any]) -> None:
        super().__init__(reference)
        self.constants = constants
        self.scale = self.settled_scale = float(constants["init_scale"])
        self.calibration = calibration_steps(self.scale)
        self.read_scale: Callable[[Any], float] | None = None
        self.scales_losses = True

    def scale_now(self) -> float:
        """The scale of the gradients, from the scaler's host field where it has one."""
        scaler = self.reference()
        if self.read_scale is not None and scaler is not None:
            return self.read_scale(scaler)
        return NAN if self.scale is None else self.scale

    def loss_divisor(self) -> float:
        """What backward() is given is the loss times the scale."""
        return self.scale_now() if self.scales_losses else 1.0


class ForeignWatch:
    """Bodies of the hooks on foreign scalers."""

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder

    def deepspeed_made(self, args: Any, _kwargs: Any, _result: Any) -> None:
        """A DeepSpeed scaler. One made for BF16 or FP32 has a static scale of 1: it is none."""
        scaler = args[0]
        if vars(scaler).get("dynamic") or scaler.cur_scale != 1.0:
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

    def fp16_made(self, args: Any, _kwargs: Any, _result: Any) -> None:
        """An FP16 optimizer: only what its own backward() is given gets scaled."""
        optimizer = args[0]
        fields = _scaling_of(optimizer)
        if fields.get("dynamic_loss_scale") or fields["cur_scale"] != 1.0:
            constants = {
                "growth_factor": fields.get("scale_factor"),
                "growth_interval": fields.get("scale_window"),
                "min_scale": fields.get("min_loss_scale"),
            }
            watched = self._meet(optimizer, {"init_scale": float(fields["cur_scale"]), **constants})
            watched.read_scale = _scale_of_optimizer
            watched.scales_losses = False

    def fp16_backward(self, args: Any, _kwargs: Any) -> None:
        """backward(loss) of an FP16 optimizer begins."""
        self._set_scaling(args[0], scales=True)

    def fp16_backward_done(self, args: Any, *_: Any) -> None:
        """It is over, or has raised."""
        self._set_scaling(args[0], scales=False)

    def fp16_updated(self, args: Any, kwargs: Any, _result: Any) -> None:
        """_update_scale(skip)."""
        watched = self.recorder.scalers.known.get(id(args[0]))
        if isinstance(watched, Foreign):
            fields = _scaling_of(args[0])
            last = fields.get("last_overflow_iter")
            tracker = -1 if last is None else fields.get("cur_iter", 0) - last - 1
            self._updated(watched, args[1] if len(args) > 1 else kwargs.get("skip"), tracker)

    def _set_scaling(self, optimizer: Any, *, scales: bool) -> None:
        watched = self.recorder.scalers.known.get(id(optimizer))
        if isinstance(watched, Foreign):
            watched.scales_losses = scales

    def megatron_made(self, args: Any, kwargs: Any, _result: Any) -> None:
        """A Megatron scaler: its constants are numbers only as arguments of __init__."""
        first = args[1] if len(args) > 1 else kwargs["initial_scale"]
        if float(first) != 1.0:
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
        self.recorder.identify(scaler={"kind": type(scaler).__name__, "enabled": True, **constants})
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
    for module, kind in (
        (DEEPSPEED_FUSED, "FP16_Optimizer"),
        (DEEPSPEED_UNFUSED, "FP16_UnfusedOptimizer"),
    ):
        owner = getattr(sys.modules.get(module), kind, None)
        if owner is not None:
            made, updated = recorder.foreign.fp16_made, recorder.foreign.fp16_updated
            recorder.patches.put(owner, "__init__", partial(_around, recorder, made))
            recorder.patches.put(owner, "_update_scale", partial(_around, recorder, updated))
            recorder.patches.put(owner, "backward", partial(_around_backward, recorder))


def _around_backward(recorder: Recorder, original: Any) -> Any:
    foreign = recorder.foreign
    done = foreign.fp16_backward_done
    return around(recorder, original, foreign.fp16_backward, after=done, failed=done)


def _around(recorder: Recorder, body: Any, original: Any) -> Any:
    return around(recorder, original, after=body)


def _current_scale(scaler: Any) -> float:
    return float(scaler.cur_scale)


def _scaling_of(optimizer: Any) -> dict[str, Any]:
    """The fields of a DeepSpeed optimizer's scaling: its own, since 0.19 in an object of theirs."""
    fields: dict[str, Any] = vars(getattr(optimizer, "loss_scale_config", optimizer))
    return fields


def _scale_of_optimizer(optimizer: Any) -> float:
    return float(_scaling_of(optimizer)["cur_scale"])

"""Calls that clip the norm of gradients: what norm they found, and whether gradients were scaled.

torch.nn.utils.clip_grad_norm_ (under both its names), clip_grads_with_norm_, which is given the
norm, and the method of FSDP's wrapper. A name that the run has bound before the recorder came in is
missed; the norm is then sampled instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import layout
from .records import NAN
from .traceable import around_traceable

if TYPE_CHECKING:
    from .recorder import Recorder

FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"
FUNCTIONS = ("torch.nn.utils.clip_grad", "torch.nn.utils")
NAME = "clip_grad_norm_"
NAME_WITH_NORM = "clip_grads_with_norm_"
"""torch 2.6 and newer; clip_grad_norm_ does not call it by this name."""


class ClipWatch:
    """`_verdicts` are whether gradients were scaled, for the calls under way: FSDP's method may
    call the function, and only the outer call counts.
    """

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder
        self._verdicts: list[bool] = []

    def before(self, args: Any, kwargs: Any) -> None:
        """Clipping is wrong where a scaled backward pass is pending and nothing was unscaled."""
        parameters = args[0] if args else kwargs.get("parameters")
        self._verdicts.append(self.recorder.optimizers.gradients_scaled(parameters))

    def failed(self, _args: Any, _error: BaseException) -> None:
        """The call raised: with error_if_nonfinite, or for another reason."""
        self._verdicts.clear()

    def after(self, args: Any, kwargs: Any, result: Any) -> None:
        """Keep the norm: read now from the host's memory, later from a device."""
        scaled = self._verdicts.pop() if self._verdicts else False
        if self._verdicts:
            return
        recorder, step = self.recorder, self.recorder.step
        max_norm = args[1] if len(args) > 1 else kwargs.get("max_norm")
        if not isinstance(max_norm, (int, float)):
            max_norm = NAN
        step.flags |= layout.CLIP_CALLED
        recorder.totals.clip_calls += 1
        scale = recorder.scalers.scale_now() if scaled else 1.0
        norm = NAN
        # A DTensor's value needs other processes.
        if type(result) is recorder.torch.Tensor and result.numel() == 1:
            if result.is_cpu:
                norm = result.item()
                step.clipped_at(norm, max_norm, scale)
            else:
                clips = step.device_clips = step.device_clips or []
                clips.append((result.detach().reshape(()), max_norm, scale))
                step.away = True
        if scaled:
            step.flags |= layout.SCALED_CLIP
            recorder.totals.scaled_clips += 1
            values = {"norm": norm, "max_norm": float(max_norm), "scale": scale}
            recorder.event("scaled-clip", values=values)

    def after_given(self, args: Any, kwargs: Any, _result: Any) -> None:
        """As `after`, of a call that was given the norm and returns nothing."""
        self.after(args, kwargs, args[2] if len(args) > 2 else kwargs.get("total_norm"))


def patch(recorder: Recorder) -> None:
    """Put the hooks around the clipping functions and methods that the run has imported."""
    clips = recorder.clips
    modules = [module for module in map(sys.modules.get, FUNCTIONS) if module is not None]
    owners = [*modules, getattr(sys.modules.get(FSDP), "FullyShardedDataParallel", None)]
    for owner in owners:
        if owner is not None:
            recorder.patches.put(owner, NAME, partial(_around_clip, recorder, clips.after))
            given = partial(_around_clip, recorder, clips.after_given)
            recorder.patches.put(owner, NAME_WITH_NORM, given)


def _around_clip(recorder: Recorder, after: Callable[..., None], original: Any) -> Any:
    clips = recorder.clips
    return around_traceable(recorder, original, clips.before, after, clips.failed)

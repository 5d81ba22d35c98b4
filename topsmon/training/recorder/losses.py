"""Losses, unscaled, and backward passes: at scaler.scale(), else at backward().

torch.Tensor.backward looks up torch.autograd.backward each time (torch/_tensor.py), so that one
patch sees both.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import layout
from .patches import not_traced

if TYPE_CHECKING:
    from .recorder import Recorder

DEVICE_LOSSES_MAX = 8
"""Losses of one step that are kept apart on their device; more are added up there."""
SEVERAL_MAX = 8


class LossWatch:
    """`scaled` and `plain` count backward passes of scaled losses and of others."""

    def begin(self, recorder: Recorder) -> None:
        """A run begins."""
        self.recorder = recorder
        self.scaled = self.plain = 0
        self.inside = False
        self._tensor = recorder.torch.Tensor

    def note(self, value: Any, divisor: float = 1.0) -> None:
        """Add a loss to this step: a tensor of one element, or several of them."""
        # Subclasses of Tensor may be fake, or shards whose value needs other processes.
        if type(value) is self._tensor:
            if value.numel() != 1:
                return
            step = self.recorder.step
            if value.is_cpu:
                step.loss_sum += value.item() / divisor
                step.loss_count += 1
                return
            value = value.detach().reshape(())
            losses = step.device_losses = step.device_losses or []
            losses.append(value if divisor == 1.0 else value / divisor)
            step.loss_count += 1
            step.away = True
            if len(losses) > DEVICE_LOSSES_MAX:
                step.device_losses = [self.recorder.torch.stack(losses).sum()]
        elif isinstance(value, (list, tuple)):
            for item in value[:SEVERAL_MAX]:
                self.note(item, divisor)

    def plain_backward(self, args: Any, kwargs: Any) -> None:
        """backward() is called on what no scaler has scaled: that is the loss."""
        self.plain += 1
        divisor = self.recorder.scalers.loss_divisor()
        self.note(args[0] if args else kwargs.get("tensors"), divisor)


def patch(recorder: Recorder) -> None:
    """Put the hooks around torch.autograd.backward."""
    module = sys.modules.get("torch.autograd")
    if module is not None:
        recorder.patches.put(module, "backward", functools.partial(_around_backward, recorder))


def _around_backward(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    call, losses, examiner = recorder.call, recorder.losses, recorder.examiner
    scalers, optimizers = recorder.scalers, recorder.optimizers

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        # Reentrant checkpointing calls backward() from inside a backward pass, once a layer.
        if losses.inside:
            return original(*args, **kwargs)
        step = recorder.step
        # An optimizer that calls its closure again tries other weights: that is no further loss.
        again = step.closure
        if optimizers.depth:
            step.closure = step.closure or optimizers.depth > 0
            optimizers.depth = 0  # a step that has raised will not report its end
        if not again:
            step.backwards += 1
        if scalers.outstanding:
            scalers.outstanding -= 1
            scalers.pending = True
            losses.scaled += 1
        elif not again:
            call(losses.plain_backward, args, kwargs)
        counting = call(examiner.before_backward) if examiner.looking else None
        losses.inside = True
        try:
            result = original(*args, **kwargs)
        finally:
            losses.inside = False
            if counting is not None:
                call(examiner.leave_counting, counting)
        if examiner.half or recorder.autocast & layout.AUTOCAST_FP16:
            call(examiner.after_backward)
        return result

    return not_traced(backward)

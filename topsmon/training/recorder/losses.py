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
                step.add_loss(value.item() / divisor)
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

    def before_backward(self, args: Any, kwargs: Any) -> Any:
        """backward() is called by the run itself, not from inside another backward pass.

        Returns a context to run it in, None for none.
        """
        recorder = self.recorder
        recorder.step.backwards += 1
        recorder.optimizers.depth = 0  # a step that has raised will not report its end
        scalers = recorder.scalers
        if scalers.outstanding:
            scalers.outstanding -= 1
            scalers.pending = True
            self.scaled += 1
        else:
            self.plain += 1
            self.note(args[0] if args else kwargs.get("tensors"), scalers.loss_divisor())
        if recorder.examiner.autopsy.armed:
            recorder.examiner.autopsy.finish()
        if recorder.examiner.counter.active:
            return recorder.examiner.enter_counting()
        return None


def patch(recorder: Recorder) -> None:
    """Put the hooks around torch.autograd.backward."""
    module = sys.modules.get("torch.autograd")
    if module is not None:
        recorder.patches.put(module, "backward", functools.partial(_around_backward, recorder))


def _around_backward(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    torch, losses, examiner = recorder.torch, recorder.losses, recorder.examiner

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        # Reentrant checkpointing calls backward() from inside a backward pass, once a layer.
        if torch.compiler.is_compiling() or losses.inside:
            return original(*args, **kwargs)
        counting = recorder.call(losses.before_backward, args, kwargs)
        losses.inside = True
        try:
            result = original(*args, **kwargs)
        finally:
            losses.inside = False
            if counting is not None:
                recorder.call(examiner.leave_counting, counting)
        if examiner.half or recorder.autocast & layout.AUTOCAST_FP16:
            recorder.call(examiner.after_backward)
        return result

    return backward

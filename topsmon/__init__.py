"""topsmon: live achieved TOPS beside the right theoretical ceiling."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "watch"]


def watch(
    model: Any = None, optimizer: Any = None, scaler: Any = None, **options: float | None
) -> None:
    """Record this process's training run, for `topsmon` to show; call it before the first step.

    Nothing needs to be given: optimizers and scalers are found when they step. `options` are
    `flops_per_step`, `tokens_per_step` and `samples_per_step`, each per optimizer step and rank.
    TypeError for another option, ValueError for an impossible number. Calling it again, or under
    `topsmon run`, changes nothing else.
    """
    import importlib

    # By name: what imports this package must not be seen to import its recorder.
    inside = importlib.import_module("topsmon.training.inside")
    inside.recorder("install").watch(model, optimizer, scaler, **options)

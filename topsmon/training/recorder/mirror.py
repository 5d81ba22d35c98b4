"""The loss scale and growth tracker of torch.amp.GradScaler, repeated on the host.

A scaler has them on its device, and reading them there would make the training wait. But it tells
the host whether it skipped, and the rest is arithmetic: that of torch._amp_update_scale_
(ATen/native/cuda/AmpKernels.cu), a product in double rounded to float32.
"""

from __future__ import annotations

import math
from ctypes import c_float

_LARGEST_TRACKER = 2**31 - 1


def single(value: float) -> float:
    """Round to float32, to nearest; infinity beyond its range."""
    return c_float(value).value


def after_skip(scale: float, backoff_factor: float) -> tuple[float, int]:
    """Return scale and growth tracker after an update that found inf or NaN."""
    return single(scale * backoff_factor), 0


def after_step(
    scale: float, tracker: int, growth_factor: float, growth_interval: int
) -> tuple[float, int]:
    """Return scale and growth tracker after an update that found none.

    A scale that would become infinite stays (since pytorch#98876).
    """
    successful = tracker + 1
    if successful != growth_interval:
        return scale, min(successful, _LARGEST_TRACKER)
    grown = single(scale * growth_factor)
    return (grown if math.isfinite(grown) else scale), 0

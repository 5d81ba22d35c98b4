"""Which type autocast computes in: noted whenever a region of it is entered.

At the time of the loss or of backward() the region has usually been left already.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import layout

if TYPE_CHECKING:
    from .recorder import Recorder


def patch(recorder: Recorder) -> None:
    """Watch torch.autocast, whose deprecated variants inherit from it."""
    kind = getattr(sys.modules.get("torch.amp.autocast_mode"), "autocast", None)
    # When torch.amp is imported, torch itself is not complete yet; this is called again then.
    if kind is not None and hasattr(recorder.torch, "bfloat16"):
        recorder.patches.put(kind, "__enter__", functools.partial(_around_enter, recorder))


def _around_enter(recorder: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    torch = recorder.torch
    flags = {torch.float16: layout.AUTOCAST_FP16, torch.bfloat16: layout.AUTOCAST_BF16}

    @functools.wraps(original)
    def enter(region: Any) -> Any:
        # A model may have a region in each layer, so that this is no guarded hook: it cannot fail.
        fields = region.__dict__
        if fields.get("_enabled"):
            recorder.autocast |= flags.get(fields.get("fast_dtype"), 0)
        return original(region)

    return enter

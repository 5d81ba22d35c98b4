"""Keep torch.compile from tracing the recorder: in compiled code hooks must still be called.

A hook that is traced is compiled away, with a warning about clocks. What torch.compile must be able
to trace through lies in `traceable.py`, all else is named to it as code to call as it is.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from .patches import around

if TYPE_CHECKING:
    from .recorder import Recorder

RULES = "torch._dynamo.trace_rules"
TRACEABLE = "traceable"


class Tracing:
    """Tells torch.compile once, as soon as it is there."""

    def __init__(self) -> None:
        self.told = False

    def tell(self, *_args: Any) -> None:
        """Name our modules to be skipped, if the run has imported torch._dynamo by now."""
        add = getattr(sys.modules.get(RULES), "add", None)
        if self.told or add is None:
            return
        self.told = True
        package = __package__ + "."
        for name in [name for name in sys.modules if name.startswith(package)]:
            if not name.endswith("." + TRACEABLE) and getattr(sys.modules[name], "__spec__", None):
                add(name)


def patch(recorder: Recorder) -> None:
    """Notice when the run begins to use torch.compile."""
    recorder.tracing.tell()
    if "compile" in vars(recorder.torch):
        recorder.patches.put(
            recorder.torch, "compile", functools.partial(_around_compile, recorder)
        )


def _around_compile(recorder: Recorder, original: Any) -> Any:
    return around(recorder, original, after=recorder.tracing.tell)

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
        """Name our files to be skipped, if the run has imported torch._dynamo by now."""
        rules = sys.modules.get(RULES)
        if self.told or rules is None:
            return
        self.told = True
        skipped: list[str] = rules.SKIP_DIRS
        ours = {origin: name for name, origin in _files() if origin not in skipped}
        if not ours:
            return
        # Each `add` compiles one expression of all that is skipped, so it is called but once.
        *others, last = ours
        skipped.extend(others)
        rules.add(ours[last])


def _files() -> list[tuple[str, str]]:
    """Our modules and their files, but for what torch.compile may trace."""
    package = __package__ + "."
    found = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if name.startswith(package) and not name.endswith("." + TRACEABLE) and origin:
            found.append((name, str(origin)))
    return found


def patch(recorder: Recorder) -> None:
    """Notice when the run begins to use torch.compile."""
    recorder.tracing.tell()
    if "compile" in vars(recorder.torch):
        recorder.patches.put(
            recorder.torch, "compile", functools.partial(_around_compile, recorder)
        )


def _around_compile(recorder: Recorder, original: Any) -> Any:
    return around(recorder, original, after=recorder.tracing.tell)

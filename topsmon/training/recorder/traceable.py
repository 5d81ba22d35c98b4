"""Functions around those of the run that torch.compile traces through, to the original."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recorder import Recorder


def around_traceable(
    recorder: Recorder,
    original: Callable[..., Any],
    before: Callable[..., Any],
    after: Callable[..., Any],
    failed: Callable[..., Any],
) -> Callable[..., Any]:
    """As `patches.around`, for what can be compiled; then nothing is seen of it."""
    torch = recorder.torch

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        recorder.call(before, args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            recorder.call(failed, args, error)
            raise
        recorder.call(after, args, kwargs, result)
        return result

    return wrapper

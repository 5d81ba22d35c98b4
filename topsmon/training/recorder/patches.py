"""Put functions around those of the run, and take them away again.

What is put around never changes arguments, results or exceptions: it looks before and after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recorder import Recorder


def around(
    recorder: Recorder,
    original: Callable[..., Any],
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
    failed: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return `original` with calls before it (args, kwargs), after it (args, kwargs, result) and
    when it has raised (args, error).

    Each of the three is timed, and its own errors are counted; none is called once the recorder is
    off, nor for what a scaler's step() calls. It is all in one function, because each step of
    the run comes through several of these.
    """
    scalers = recorder.scalers

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if scalers.inside is not None or not recorder.on:
            return original(*args, **kwargs)
        if before is not None:
            start = perf_counter()
            try:
                before(args, kwargs)
            except Exception as error:  # noqa: BLE001 - nothing may reach the run
                recorder.failed(error)
            recorder.seconds += perf_counter() - start
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if failed is not None:
                recorder.call(failed, args, error)
            raise
        if after is not None:
            start = perf_counter()
            try:
                after(args, kwargs, result)
            except Exception as error:  # noqa: BLE001 - as above
                recorder.failed(error)
            recorder.seconds += perf_counter() - start
        return result

    return not_traced(wrapper)


def not_traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have torch.compile call a function as it is, as torch.compiler.disable would.

    That one imports torch._dynamo.
    """
    function.__dict__["_torchdynamo_disable"] = True
    return function


class Patches:
    """Attributes that were replaced, and what else must be undone; `remove` gives all back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._undo: list[Callable[[], Any]] = []
        self._once: set[str] = set()

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name`, where it has its own such attribute, by `make(original)`, once."""
        original = vars(owner).get(name)
        if original is None or any(
            known is owner and attribute == name for known, attribute, _, _ in self._replaced
        ):
            return
        replacement = make(original)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, original, replacement))

    def once(self, name: str, do: Callable[[], Callable[[], Any] | None]) -> None:
        """Call `do` the first time that this name is given; it returns what undoes it."""
        if name in self._once:
            return
        self._once.add(name)
        undo = do()
        if undo is not None:
            self._undo.append(undo)

    def remove(self) -> None:
        """Give everything back that nobody else has replaced since."""
        while self._replaced:
            owner, name, original, replacement = self._replaced.pop()
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
        while self._undo:
            self._undo.pop()()
        self._once.clear()

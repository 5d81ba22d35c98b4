"""Work that may wait for a disk or a network, beside an event loop that must be able to end.

`asyncio.to_thread` keeps the whole program from ending until such a call returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


async def aside(
    function: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs
) -> Result:
    """Call a function on a thread of its own and return what it returns or raises.

    A call that is given up (cancelled) is left alone; the program's end does not wait for it.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # what the function returned

    def work() -> None:
        result, error = None, None
        try:
            result = function(*arguments, **named)
        except Exception as raised:  # noqa: BLE001  it is raised where it is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await answer

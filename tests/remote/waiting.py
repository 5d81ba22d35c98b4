"""Waiting for what must happen, without knowing when."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_SECONDS = 60.0


async def until(holds: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> None:
    deadline = time.monotonic() + limit_seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError("it has not happened")
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

"""How many connections begin at a time: a bastion's sshd drops those that come all at once."""

from __future__ import annotations

import asyncio

PARALLEL_CONNECTS = 6
STAGGER_SECONDS = 0.05
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
REFUSED_SECONDS = 120.0
"""After a refusal: often enough to see that it was mended, too rare to be banned for (fail2ban
counts 5 failures in 10 min)."""


def pause(failures: int, *, refused: bool) -> float:
    """Seconds to wait after so many failures in a row (1 and up)."""
    if refused:
        return REFUSED_SECONDS
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10), LONGEST_PAUSE_SECONDS))


class Gate:
    """Lets a few connects begin at a time, one after another. Of one event loop."""

    def __init__(
        self, parallel: int = PARALLEL_CONNECTS, stagger_seconds: float = STAGGER_SECONDS
    ) -> None:
        self._places = asyncio.Semaphore(parallel)
        self._stagger = stagger_seconds
        self._next = 0.0

    async def __aenter__(self) -> None:
        """Wait for a place; it is free again once the connection stands or has failed."""
        await self._places.acquire()
        try:
            loop = asyncio.get_running_loop()
            begin = max(loop.time(), self._next)
            self._next = begin + self._stagger
            await asyncio.sleep(begin - loop.time())
        except asyncio.CancelledError:
            self._places.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Give the place to the next."""
        self._places.release()

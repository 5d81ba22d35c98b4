"""What a rank tells of itself while it runs, so that the others can say where it was last.

Each entry goes to the ranks' common store and, where there is one, into a file of a folder that the
parent process reads: the store is lost with rank 0's machine, the file with this one.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

GATHER_SECONDS = 3.0
"""How long rank 0 waits for the last words of the others after something failed."""
_POLL_SECONDS = 0.02


class Diary:
    """One rank's report. `report` holds everything that is known of the rank, ready for JSON.

    `steps` counts the stages and the collective calls that the rank has entered: of ranks that wait
    for each other, the one with the fewest is waited for. `limit_seconds` bounds a stage; `overdue`
    tells when it is over.
    """

    def __init__(self, rank: int, store: Any, folder: Path | None, limit_seconds: float) -> None:
        self.report: dict[str, Any] = {
            "rank": rank,
            "pid": os.getpid(),
            "host": os.uname().nodename,
        }
        self.steps = 0
        self.store = store
        self._rank = rank
        self._folder = folder
        self._limit = limit_seconds
        self._deadline = time.monotonic() + limit_seconds
        self._lock = threading.Lock()

    def stage(self, name: str, *, limit_seconds: float | None = None) -> None:
        """Enter a stage."""
        self._deadline = time.monotonic() + (limit_seconds or self._limit)
        self.steps += 1
        self.report["stage"] = name
        self._write()

    @property
    def overdue(self) -> bool:
        """True when the stage takes longer than it may."""
        return time.monotonic() > self._deadline

    def end(self, failure: str = "") -> bool:
        """The last words; False if they were said before."""
        if "ended" in self.report:
            return False
        self.report["ended"] = "failed" if failure else "finished"
        self.report["failure"] = failure
        self._deadline = float("inf")
        self._write()
        return True

    def _write(self) -> None:
        with self._lock:
            self.report["steps"] = self.steps
            self.report["wrote_unix_seconds"] = time.time()
            text = json.dumps(self.report)
            if self._folder is not None:
                write_whole(self._folder / f"rank-{self._rank}.json", text)
            if self.store is not None:
                try:
                    self.store.set(f"rank/{self._rank}", text)
                except RuntimeError:  # rank 0 is gone, and the store with it
                    self.store = None

    def gather(self, world_size: int, seconds: float) -> list[dict[str, Any]]:
        """The reports of all ranks that have said anything, waiting for their last words."""
        until = time.monotonic() + seconds
        found: dict[int, dict[str, Any]] = {self._rank: self.report}
        waiting = [rank for rank in range(world_size) if rank != self._rank]
        while waiting and self.store is not None:
            for rank in tuple(waiting):
                told = self.read(f"rank/{rank}")
                if told is not None:
                    found[rank] = json.loads(told)
                if "ended" in found.get(rank, {}):
                    waiting.remove(rank)
            if time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS)
        return [found[rank] for rank in sorted(found)]

    def read(self, key: str) -> str | None:
        """A key of the store, None while nobody has set it. Never waits."""
        try:
            if self.store is None or not self.store.check([key]):
                return None
            return str(self.store.get(key).decode())
        except RuntimeError:
            self.store = None
            return None

    def wait(self, key: str, seconds: float) -> str | None:
        """A key of the store once somebody sets it, None if nobody does in time."""
        until = time.monotonic() + seconds
        while (told := self.read(key)) is None and self.store is not None:
            if time.monotonic() > until:
                return None
            time.sleep(_POLL_SECONDS)
        return told


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step: readers see the old one or the new one, never a part."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)

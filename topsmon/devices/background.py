"""Questions that may take for ever, answered in daemon threads that nobody waits for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

STUCK_SECONDS = 1.0
"""A thread that is out with one question for so long gets a successor."""
MOST_THREADS = 6
_KEPT = 4096

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")


class Background(Generic[_Key, _Answer]):
    """Answers by key, kept until they are forgotten. Safe to use from several threads."""

    def __init__(self, answer: Callable[[_Key], _Answer], name: str) -> None:
        self._answer = answer
        self._name = name
        self._known: dict[_Key, _Answer] = {}
        self._asked: set[_Key] = set()
        self._queue: queue.SimpleQueue[_Key] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._working: list[float | None] = []

    def get(self, keys: Iterable[_Key], patience: float) -> dict[_Key, _Answer]:
        """Return the answers that are there, after `patience` seconds at the most for the rest."""
        wanted = set(keys)
        deadline = time.monotonic() + patience
        with self._changed:
            for key in wanted - self._known.keys() - self._asked:
                self._asked.add(key)
                self._queue.put(key)
            self._start_thread()
            while not wanted <= self._known.keys():
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    break
            return {key: self._known[key] for key in wanted if key in self._known}

    def known(self, key: _Key) -> _Answer | None:
        """Return an answer that is there."""
        with self._changed:
            return self._known.get(key)

    def forget(self, key: _Key) -> None:
        """Ask anew the next time."""
        with self._changed:
            self._known.pop(key, None)

    def _start_thread(self) -> None:
        """Start the first thread, or one more where all others are stuck."""
        if self._queue.empty() or len(self._working) >= MOST_THREADS:
            return
        late = time.monotonic() - STUCK_SECONDS
        if all(since is not None and since < late for since in self._working):
            place = len(self._working)
            self._working.append(None)
            threading.Thread(target=self._run, args=(place,), name=self._name, daemon=True).start()

    def _run(self, place: int) -> None:
        while True:
            key = self._queue.get()
            with self._changed:
                self._working[place] = time.monotonic()
            answer = self._answer(key)
            with self._changed:
                self._working[place] = None
                if len(self._known) >= _KEPT:
                    self._known.clear()
                self._known[key] = answer
                self._asked.discard(key)
                self._changed.notify_all()

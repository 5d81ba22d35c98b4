"""Events as JSON lines on a pipe, with the names of the stream's vocabulary (topsmon/events.py)."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCHEMA = 1
"""`topsmon.events.SCHEMA_VERSION`; a test holds the two together."""


def version() -> str:
    """The version of the topsmon that this folder belongs to, read without importing it."""
    try:
        text = (Path(__file__).parent.parent / "__init__.py").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    return match.group(1) if match else "unknown"


def finite(value: Any) -> Any:
    """The value with NaN and infinities as None: JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Writer:
    """Writes events of one device. `write` takes one whole line; safe from several threads."""

    def __init__(self, device: str, write: Callable[[bytes], Any]) -> None:
        self._device = device
        self._source = f"{os.uname().nodename}/{device}"
        self._write = write
        self._lock = threading.Lock()

    def hello(self) -> None:
        """Say who speaks."""
        self._send(
            {
                "type": "hello",
                "version": version(),
                "schema": SCHEMA,
                "role": "prober",
                "pid": os.getpid(),
            }
        )

    def emit(self, tag: str, **fields: Any) -> None:
        """Write one event about the device."""
        self._send({"type": tag, "device": self._device, **fields})

    def _send(self, event: dict[str, Any]) -> None:
        event.update(time=time.time(), monotonic=time.monotonic(), source=self._source)
        cleaned = {name: finite(value) for name, value in event.items()}
        line = json.dumps(cleaned, separators=(",", ":"), allow_nan=False) + "\n"
        with self._lock:
            self._write(line.encode())


def private_stdout() -> Callable[[bytes], None]:
    """Take stdout for events alone: whatever else prints, in Python or C, goes to stderr.

    A reader that is gone ends the process: nobody is left to measure for.
    """
    events = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def write(line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(events, rest) :]
        except OSError:
            os._exit(0)

    return write

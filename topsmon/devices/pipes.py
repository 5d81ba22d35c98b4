"""The poller's pipes: event lines out, command lines in, and the end of either."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from topsmon import events
from topsmon.devices.pace import Pace

EOF_SECONDS = 0.2
"""Grace for the main thread after the end of input: it may be blocked in a write."""
MAX_COMMAND_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


class Writer:
    """Writes each event as one line. A reader that is gone ends the poller quietly."""

    def __init__(self, pace: Pace, write: Callable[[bytes], None] | None = None) -> None:
        self._pace = pace
        self._write = write or write_to_stdout
        self._lock = threading.Lock()

    def emit(self, event: events.AnyEvent) -> None:
        """Write one event; safe to call from any thread."""
        line = events.encode(event)
        with self._lock:
            try:
                self._write(line)
            except (OSError, ValueError):  # a broken or a closed pipe
                self._pace.leave(0)


def write_to_stdout(data: bytes) -> None:
    """Write all bytes to standard output, past Python's buffer."""
    descriptor = sys.stdout.fileno()
    while data:
        # Whoever started us may have made the pipe non-blocking.
        select.select([], [descriptor], [])
        with contextlib.suppress(BlockingIOError):
            data = data[os.write(descriptor, data) :]


def obey(pace: Pace, descriptor: int = 0) -> None:
    """Carry out commands until the input ends; then end this process, whatever it is doing."""
    rest = b""
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:
            break
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-MAX_COMMAND_BYTES:]
        for line in lines:
            error = command(pace, line)
            if error is not None:
                print(f"topsmon stream: {error}", file=sys.stderr, flush=True)
    pace.leave(0)
    time.sleep(EOF_SECONDS)
    os._exit(0)


def command(pace: Pace, line: bytes) -> str | None:
    """Carry out one command line; return what is wrong with it, None where nothing is."""
    try:
        content = json.loads(line) if line.strip() else {"command": "nothing"}
    except ValueError:
        return f"not a JSON command: {line[:80]!r}"
    match content:
        case {"command": "nothing"}:
            pass
        case {"command": "pause" | "resume" as word}:
            pace.pause(word == "pause")
        case {"command": "counters", "on": bool() as on}:
            pace.counters = on
        case {"command": "stop"}:
            pace.leave(0)
        case {"command": "interval", "seconds": int() | float() as seconds} if seconds > 0:
            pace.set_interval(float(seconds))
        case _:
            return f"unknown command: {line[:80]!r}"
    return None


def become_child() -> None:
    """End with the parent, even one that is killed; leave Ctrl-C to it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

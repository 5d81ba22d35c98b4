"""Work in a forked child: code that crashes, hangs or ends its process costs the child alone.

Fork before that code is loaded. A fork starts in a few milliseconds, where a new interpreter would
have to import everything again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import re
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from topsmon.devices import pipes

REAP_SECONDS = 0.5
"""A child that does not end within this time is held by the kernel: it is left to end alone."""
PIPE_BYTES = 1 << 20
"""So much may be told before anybody reads it."""
CRASH_SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"})
_DONE = b"finished\n"
_CRASH = b"Fatal Python error: "
_FRAME = re.compile(rb"line \d+ in (\w+)")


@dataclass(frozen=True)
class Outcome:
    """What a child told, line by line, and how it ended.

    `end` is None where the work was finished, "" where the child was still at it, else the name of
    a signal or "exit code 1". `frames` are the Python functions in which it crashed, innermost
    first.
    """

    lines: tuple[bytes, ...]
    end: str | None = None
    frames: tuple[str, ...] = ()

    @property
    def crashed(self) -> bool:
        """True if the code crashed, and nobody ended the child."""
        return self.end in CRASH_SIGNALS or bool(self.frames)


@dataclass
class Child:
    """A child, and the pipe that it writes to. `reaped`: it has ended, and its PID is free."""

    pid: int
    descriptor: int
    reaped: bool = False

    def outcome(self, until: float) -> Outcome:
        """Return what the child tells until it has finished or ended, or until monotonic time."""
        told = bytearray()
        ended = False
        while not ended and not _is_finished(told):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.descriptor], [], [], left)[0]:
                return Outcome(_lines(told), end="")
            chunk = os.read(self.descriptor, 1 << 16)
            told += chunk
            ended = not chunk
        if _is_finished(told):
            return Outcome(_lines(told))
        whole, _, last_words = bytes(told).partition(_CRASH)
        frames = tuple(name.decode() for name in _FRAME.findall(last_words))
        return Outcome(_lines(whole), end_words(self._reap()), frames)

    def end(self) -> None:
        """Kill the child if it still runs."""
        if not self.reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> int | None:
        """Return the exit code, negative for a signal; None if the child does not end."""
        deadline = time.monotonic() + REAP_SECONDS
        while time.monotonic() < deadline:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # SIGCHLD is ignored here: the kernel does not keep the code
                self.reaped = True
                return None
            if pid:
                self.reaped = True
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.001)
        return None


@contextlib.contextmanager
def child(work: Callable[[Callable[[bytes], None]], None]) -> Iterator[Child]:
    """Run `work(write)` in a child, which is killed at the end if it still runs.

    `work` writes whole lines. The child ends with its parent, even one that is killed, and leaves
    Ctrl-C to it. OSError: no process can be started.
    """
    reading, writing = os.pipe()
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    # An interrupt between the fork and what follows would run the parent's code in the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    if pid == 0:
        os.close(reading)
        _work(work, writing, parent, mask)
    os.close(writing)
    running = Child(pid, reading)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield running
    finally:
        running.end()
        os.close(reading)


def _work(
    work: Callable[[Callable[[bytes], None]], None],
    descriptor: int,
    parent: int,
    mask: Iterable[int],
) -> NoReturn:
    """Do the work and end: nothing of the parent's code may run after it."""
    code = 1
    try:
        pipes.become_child()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        faulthandler.enable(descriptor, all_threads=False)

        def write(data: bytes) -> None:
            while data:
                data = data[os.write(descriptor, data) :]

        if os.getppid() == parent:
            work(write)
            write(_DONE)
            code = 0
    except BaseException:  # noqa: BLE001 - it must not reach the parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


def _is_finished(told: bytes | bytearray) -> bool:
    return told.startswith(_DONE) or b"\n" + _DONE in told


def _lines(told: bytes | bytearray) -> tuple[bytes, ...]:
    """The whole lines; one that a crash has cut is dropped."""
    return tuple(line for line in bytes(told).split(b"\n")[:-1] if line + b"\n" != _DONE)


def end_words(code: int | None) -> str:
    """The name of a signal where the exit code is negative, else the code in words."""
    if code is None:
        return "an end that nobody has seen"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"

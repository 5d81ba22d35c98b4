"""`topsmon stream` by hand: a driver library that crashes does not end the stream.

As a child of the screen it is started again by the screen; by hand nobody else does it.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from types import FrameType

from topsmon import events
from topsmon.devices import forked, pipes
from topsmon.devices.stamp import stamp

POLLER = "poller"
RESTARTS = 3
WINDOW_SECONDS = 120.0
FIRST_PAUSE_SECONDS = 0.5
"""After more than so many crashes within this time the GPUs are left alone. The pause before each
new start is twice that before the one before."""


def go_on_in_child() -> bool:
    """Fork and return in the child: True where it is to read the GPUs, as the first one is.

    The parent starts another one after each crash of the driver library and tells of it in the
    stream; it ends as the child does, without returning.
    """
    crashes: deque[float] = deque()
    total, gpu = 0, True
    # Whoever started us may ignore it, and then nobody learns how a child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while True:
        pid = _fork()
        if pid == 0:
            return gpu
        code = _wait(pid)
        name = forked.end_words(code)
        if name not in forked.CRASH_SIGNALS or not gpu:
            os._exit(code if code >= 0 else 128 - code)
        total += 1
        crashes.append(time.monotonic())
        while crashes[-1] - crashes[0] > WINDOW_SECONDS:
            crashes.popleft()
        gpu = len(crashes) <= RESTARTS
        _tell(name, total, given_up=not gpu)
        if gpu:
            time.sleep(FIRST_PAUSE_SECONDS * 2 ** (len(crashes) - 1))


def _fork() -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pipes.end_with_parent()
        if os.getppid() != parent:
            os._exit(1)
    return pid


def _wait(pid: int) -> int:
    """Return the exit code of a child, negative for a signal. An interrupt is for the child."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        os.kill(pid, number)

    before = signal.signal(signal.SIGINT, hand_on)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(name: str, total: int, *, given_up: bool) -> None:
    """Tell of a crash in the stream and on stderr; a line that it has cut ends here."""
    detail = f"killed by {name}"
    worker = events.Worker(
        **stamp(""),
        worker=POLLER,
        condition="restarted",
        restarts=total,
        detail=detail,
    )
    lines = b"\n" + events.encode(worker)
    words = f"the NVIDIA driver library crashed ({name}); reading it again"
    if given_up:
        problem = events.Problem(
            **stamp(""),
            subject=POLLER,
            code="crashed",
            message=f"driver library crashed: {detail}",
            remedy="See dmesg and topsmon doctor; update or reinstall the NVIDIA driver.",
        )
        lines += events.encode(problem)
        words = f"the NVIDIA driver library crashed ({name}) {total} times; going on without GPUs"
    try:
        pipes.write_to_stdout(lines)
    except OSError:  # whoever read the stream is gone
        os._exit(0)
    os.write(2, f"topsmon: {words}\n".encode())

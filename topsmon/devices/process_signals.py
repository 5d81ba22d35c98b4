"""Send a signal to exactly one process, or to none: a PID may belong to another one by now."""

from __future__ import annotations

import os
import signal

from topsmon.devices.process_files import start_ticks

SIGNALS: dict[str, str] = {
    "TERM": "ask it to end; it may save its work first",
    "INT": "interrupt it, as Ctrl-C does",
    "KILL": "end it at once; nothing is saved",
    "STOP": "halt it where it is; its memory stays held",
    "CONT": "let it go on after STOP",
    "HUP": "its terminal has gone; some programs reload their settings",
}
"""The signals on offer, the default first, and what each is for."""


def send(pid: int, ticks: int | None, name: str) -> str | None:
    """Send signal `name` of `SIGNALS` to the process with this PID that started at `ticks`.

    Return why it was not sent, None once it was. Never waits.
    """
    if pid <= 1 or ticks is None:
        return f"PID {pid} is not sure to be the process that was shown: nothing was sent"
    number = getattr(signal, f"SIG{name}")
    try:
        return _through_handle(pid, ticks, number)
    except ProcessLookupError:
        return f"PID {pid} has ended: nothing was sent"
    except PermissionError:
        return f"no permission to signal PID {pid}: it belongs to another user"
    except OSError as error:
        return f"SIG{name} could not be sent to PID {pid}: {error.strerror}"


def _through_handle(pid: int, ticks: int, number: int) -> str | None:
    """Check and send through a handle of the process: no later one of its PID can get it.

    Kernels before 5.3 have no such handles (pidfd_open(2)).
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        handle = None
    try:
        now = start_ticks(pid)
        if now is None:
            raise ProcessLookupError
        if now != ticks:
            return f"PID {pid} is another process by now: nothing was sent"
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
        return None
    finally:
        if handle is not None:
            os.close(handle)

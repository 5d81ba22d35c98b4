"""What the parent wants: commands from stdin, and the waiting that they may cut short."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

STOP_GRACE_SECONDS = 0.04
"""A stop ends the process within this, even while a call is running that cannot be interrupted."""
MAX_COMMAND_BYTES = 1 << 16


class StopRequested(Exception):  # noqa: N818 - no error: the parent asked
    """The parent wants this process to end."""


class BurstAbandoned(Exception):  # noqa: N818 - no error: the parent asked
    """The parent paused the prober, or no longer wants what is being measured."""


def rest_seconds(busy_seconds: float, duty: float) -> float:
    """Seconds to rest after working `busy_seconds`, so that busy / (busy + rest) = `duty`."""
    return busy_seconds * (1.0 / duty - 1.0)


class Control:
    """The wishes of the parent, changed by the reader's thread, read by the measuring one.

    `duty` is the share of time to work, 0 < duty <= 1. `chosen` holds precision keys, None = all.
    `pause_reason` None means "measure". `changes` counts the commands carried out.
    """

    def __init__(
        self, duty: float, known: tuple[str, ...], pause_reason: str | None = None
    ) -> None:
        self.duty = duty
        self.chosen: tuple[str, ...] | None = None
        self.pause_reason = pause_reason
        self.measuring: str | None = None
        self.changes = 0
        self._known = known
        self._stopping = False
        self._choice = 0
        self._changed = threading.Condition()

    def apply(self, command: dict[str, Any]) -> str | None:
        """Carry out one command. Returns what is wrong with it in words, None when it is fine."""
        verb = command.get("command")
        problem: str | None = None
        with self._changed:
            if verb == "stop":
                self._stopping = True
            elif verb == "pause":
                self.pause_reason = str(command.get("reason") or "paused")
            elif verb == "resume":
                self.pause_reason = None
            elif verb == "duty":
                value = command.get("value")
                if not isinstance(value, (int, float)) or not 0 < value <= 1:
                    return f"duty {value!r} is not over 0 and up to 1"
                self.duty = float(value)
            elif verb == "precisions":
                keys = command.get("keys")
                if not isinstance(keys, list):
                    return f"precisions {keys!r} is not a list of keys"
                unknown = [key for key in keys if key not in self._known]
                self.chosen = tuple(key for key in keys if key in self._known)
                self._choice += 1
                if unknown:
                    problem = f"unknown precisions left out: {', '.join(map(str, unknown))}"
            else:
                return f"unknown command {verb!r}"
            self.changes += 1
            self._changed.notify_all()
        return problem

    def stop(self) -> None:
        """Ask the measuring thread to end."""
        self.apply({"command": "stop"})

    def checkpoint_stop(self) -> None:
        """Raise if the process is to end."""
        if self._stopping:
            raise StopRequested

    def checkpoint(self) -> None:
        """Raise if the work in progress is no longer wanted. Called between any two calls."""
        self.checkpoint_stop()
        if self.pause_reason is not None:
            raise BurstAbandoned
        unwanted = self.chosen is not None and self.measuring not in self.chosen
        if unwanted and self.measuring is not None:
            raise BurstAbandoned

    def rest(
        self,
        busy_seconds: float,
        floor_duty: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Rest after a burst as the duty cycle wants, or until a command says otherwise.

        `floor_duty` is a duty cycle that holds even if the parent's is lower.
        """
        began = clock()
        with self._changed:
            choice = self._choice
            while not self._stopping and self.pause_reason is None and choice == self._choice:
                rest = rest_seconds(busy_seconds, max(self.duty, floor_duty))
                left = began + rest - clock()
                if left <= 0:
                    return
                self._changed.wait(left)
            if self._stopping:
                raise StopRequested

    def wait_for_change(self, since: int, seconds: float | None = None) -> None:
        """Wait until there are more `changes` than `since`, at most `seconds`."""
        with self._changed:
            if not self._stopping and self.changes == since:
                self._changed.wait(seconds)
            if self._stopping:
                raise StopRequested

    def wait_while_paused(self, tell: Callable[[str], None]) -> None:
        """Wait until the parent lets us measure. `tell` gets each reason once."""
        told: str | None = None
        while True:
            with self._changed:
                if self._stopping:
                    raise StopRequested
                reason = self.pause_reason
                if reason is None:
                    return
                if reason == told:
                    self._changed.wait()
                    continue
            told = reason
            tell(reason)


def read_commands(control: Control, descriptor: int = 0) -> None:
    """Obey JSON lines from the parent; never returns. The end of the stream ends the process."""
    pending = b""
    while True:
        try:
            data = os.read(descriptor, 4096)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        *lines, pending = (pending + data).split(b"\n")
        if len(pending) > MAX_COMMAND_BYTES:
            pending = b""
        for line in lines:
            if line.strip():
                _obey(control, line)


def _obey(control: Control, line: bytes) -> None:
    try:
        command = json.loads(line)
        problem = control.apply(command) if isinstance(command, dict) else "not a JSON object"
    except ValueError:
        command, problem = None, "not a JSON object"
    if problem:
        shown = line[:200].decode("utf-8", "replace")
        print(f"command {shown!r} ignored: {problem}", file=sys.stderr, flush=True)
    elif command["command"] == "stop":
        time.sleep(STOP_GRACE_SECONDS)
        os._exit(0)

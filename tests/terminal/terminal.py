"""A real pseudo-terminal with a screen that can be read, for running the real program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pyte

TOPSMON = [sys.executable, "-m", "topsmon"]
END = b"\0"
PATIENCE_SECONDS = 60.0
"""Long after what must happen has happened, on a machine that has much else to do."""


class Terminal:
    """Run a command in a terminal of `columns` x `rows`; a thread plays the terminal's part.

    `output` holds every byte written, `screen` what a person sees.
    """

    def __init__(
        self,
        command: list[str],
        *,
        columns: int = 120,
        rows: int = 40,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.output = bytearray()
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={
                **os.environ,
                "TERM": "xterm-256color",
                "COLUMNS": "",
                "LINES": "",
                **(environment or {}),
            },
            start_new_session=True,
            preexec_fn=_become_foreground,  # noqa: PLW1509  no other thread runs yet
        )
        self._slave = slave
        self._closing = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closing:
            try:
                ready, _, _ = select.select([self.master], [], [], 0.05)
                data = os.read(self.master, 1 << 16) if ready else None
            except (OSError, ValueError):
                return
            if data:
                with self._lock:
                    self.output += data
                    self._stream.feed(data)

    def text(self) -> str:
        """The screen as lines of text."""
        with self._lock:
            return "\n".join(line.rstrip() for line in self.screen.display)

    def send(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the window size, as a terminal emulator does."""
        self.set_size(columns, rows)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def set_size(self, columns: int, rows: int) -> None:
        """Change the window size; the kernel tells the group in the foreground of it."""
        with self._lock:
            self.screen.resize(rows, columns)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, what: str | Callable[[str], bool], seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until a text is on the screen (or a condition on it holds); return the screen."""
        holds = what if callable(what) else lambda text: what in text
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.text()
            if holds(text):
                return text
            time.sleep(0.02)
        raise AssertionError(f"not on the screen after {seconds} s: {what!r}\n{self.text()}")

    def wait_for_output(self, what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until a text has been written, though it may be gone from the screen again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._lock:
                if what.encode() in self.output:
                    return
            time.sleep(0.02)
        raise AssertionError(f"not written after {seconds} s: {what!r}\n{self.text()}")

    def wait_for_end(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait until the program has ended and all that it wrote is read; return its exit code."""
        code = self.process.wait(seconds)
        if not self._closing:
            # Our own last byte comes after all of the program's.
            os.write(self._slave, END)
            deadline = time.monotonic() + seconds
            while END not in self.output:
                assert time.monotonic() < deadline, "the terminal's output is not read"
                time.sleep(0.02)
            with self._lock:
                self.output = self.output.replace(END, b"")
        return code

    def wait_for_children(
        self, count: int, seconds: float = PATIENCE_SECONDS
    ) -> list[psutil.Process]:
        """Wait until the program has this many child processes; return them."""
        parent = psutil.Process(self.process.pid)
        deadline = time.monotonic() + seconds
        children: list[psutil.Process] = []
        while time.monotonic() < deadline:
            with contextlib.suppress(psutil.Error):
                children = parent.children(recursive=True)
            if len(children) >= count:
                return children
            time.sleep(0.02)
        raise AssertionError(f"{len(children)} children after {seconds} s, not {count}")

    def restored(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """True when the terminal is as it was: same modes, main screen, no mouse, cursor shown.

        What the program wrote last may still be on its way through the pseudo-terminal.
        """
        deadline = time.monotonic() + seconds
        while not self._is_restored():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _is_restored(self) -> bool:
        after = termios.tcgetattr(self._slave)
        with self._lock:
            written = bytes(self.output)
        return after[:4] == self.before[:4] and all(
            written.rfind(off) > written.rfind(on)
            for on, off in (
                (b"\x1b[?1049h", b"\x1b[?1049l"),
                (b"\x1b[?1003h", b"\x1b[?1003l"),
                (b"\x1b[?25l", b"\x1b[?25h"),
            )
            if on in written
        )

    def hang_up(self) -> None:
        """Close the terminal, as a dropped ssh connection does."""
        self._stop_reading()
        os.close(self._slave)
        os.close(self.master)

    def _stop_reading(self) -> None:
        """Without this the thread would go on reading the descriptor's next owner."""
        self._closing = True
        self._reader.join()

    def close(self) -> None:
        """End whatever is left of the program and the terminal."""
        if self.process.poll() is None:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    child.kill()
            self.process.kill()
            self.process.wait()
        self._stop_reading()
        for descriptor in (self.master, self._slave):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _become_foreground() -> None:
    """Make the terminal on stdin the controlling one of the new session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def gone(
    processes: list[psutil.Process], seconds: float = PATIENCE_SECONDS
) -> list[psutil.Process]:
    """Wait up to `seconds` for processes to end; return those that live on."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [process for process in alive if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False

"""The screen in a real pseudo-terminal: how it starts, what it sends, how it leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

PROGRAM = """
import os, subprocess, sys
sys.path.insert(0, {tests!r})
import screen_demo
from topsmon.tui import ScreenOptions, run

class Session(screen_demo.FakeSession):
    async def start(self):
        self.child = subprocess.Popen(["sleep", "60"])
        with open({pid_file!r}, "w") as file:
            file.write(str(self.child.pid))
    async def stop(self):
        if getattr(self, "child", None) is not None:
            self.child.kill()
            self.child.wait()
            self.child = None
    def findings(self):
        if os.path.exists({crash_file!r}):
            raise RuntimeError("crash on purpose")
        return (screen_demo.capped_finding(),)

code = run(Session(screen_demo.eight(ticks=4)), ScreenOptions({options}))
print("torch" in sys.modules, "pynvml" in sys.modules, file=sys.stderr)
sys.exit(code)
"""

ALTERNATE_ON, ALTERNATE_OFF = b"\x1b[?1049h", b"\x1b[?1049l"
MOUSE_OFF, CURSOR_ON = b"\x1b[?1000l", b"\x1b[?25h"


class Terminal:
    """A child in a pseudo-terminal and everything that it wrote."""

    def __init__(self, pid: int, master: int, crash_file: Path, pid_file: Path) -> None:
        self.pid = pid
        self.master = master
        self.crash_file = crash_file
        self.pid_file = pid_file
        self.data = b""

    def read_until(self, pattern: bytes, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not re.search(pattern, self.data, re.DOTALL):
            left = end - time.monotonic()
            assert left > 0, f"{pattern!r} did not come; got {self.data[-2000:]!r}"
            self._pump(left)

    def _pump(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return True
        try:
            chunk = os.read(self.master, 65536)
        except OSError:
            return False
        self.data += chunk
        return bool(chunk)

    def wait(self, seconds: float = 60.0) -> int:
        """Exit code of the child, its output read to the end."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._pump(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._pump(0.02) and select.select([self.master], [], [], 0)[0]:
                    pass
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("the screen did not end")

    def write(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def child_is_gone(self) -> bool:
        """Wait for the end of the screen's child; True once it has ended."""
        pid = int(self.pid_file.read_text())
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]:
                    return True
            except (FileNotFoundError, ProcessLookupError):
                return True
            time.sleep(0.01)
        return False


@contextmanager
def terminal(
    tmp_path: Path, *, options: str = "", size: tuple[int, int] = (120, 40), **environment: str
) -> Iterator[Terminal]:
    crash_file, pid_file = tmp_path / "crash", tmp_path / "child"
    program = PROGRAM.format(
        tests=str(Path(__file__).parent),
        pid_file=str(pid_file),
        crash_file=str(crash_file),
        options=options,
    )
    variables = {
        **os.environ,
        "TERM": "xterm-256color",
        "XDG_CONFIG_HOME": str(tmp_path),
        "PYTHONUTF8": "1",
        **environment,
    }
    for name in ("COLORTERM", "NO_COLOR", "TEXTUAL_COLOR_SYSTEM"):
        if name not in environment:
            variables.pop(name, None)
    pid, master = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", program], variables)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    child = Terminal(pid, master, crash_file, pid_file)
    try:
        yield child
    finally:
        os.close(child.master)
        if child.pid:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def ready(child: Terminal) -> None:
    child.read_until(rb"power limit is set to 350 W")
    while not child.pid_file.exists() or not child.pid_file.read_text():
        time.sleep(0.01)


def assert_restored(child: Terminal) -> None:
    assert ALTERNATE_ON in child.data
    assert child.data.rindex(ALTERNATE_OFF) > child.data.rindex(ALTERNATE_ON)
    assert CURSOR_ON in child.data
    assert child.child_is_gone()


@pytest.mark.parametrize("keys", [b"q", b"\x03"])
def test_keys_leave_and_restore(tmp_path: Path, keys: bytes) -> None:
    with terminal(tmp_path) as child:
        ready(child)
        child.write(keys)
        assert child.wait() == 0
        assert_restored(child)
        assert MOUSE_OFF in child.data
        assert b"False False" in child.data


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_restore_the_terminal(tmp_path: Path, number: signal.Signals) -> None:
    with terminal(tmp_path) as child:
        ready(child)
        os.kill(child.pid, number)
        assert child.wait() == 128 + number
        assert_restored(child)


def test_a_dropped_connection_ends_the_children(tmp_path: Path) -> None:
    """The other end of the terminal goes away, as when ssh drops."""
    with terminal(tmp_path) as child:
        ready(child)
        duplicate, child.master = child.master, os.open(os.devnull, os.O_RDWR)
        os.close(duplicate)
        assert child.child_is_gone()


def test_an_exception_restores_the_terminal(tmp_path: Path) -> None:
    with terminal(tmp_path) as child:
        ready(child)
        child.crash_file.touch()
        assert child.wait() == 3
        assert_restored(child)
        assert b"crash on purpose" in child.data


def test_ctrl_z_suspends_and_fg_returns(tmp_path: Path) -> None:
    with terminal(tmp_path) as child:
        ready(child)
        child.write(b"\x1a")
        child.read_until(re.escape(ALTERNATE_OFF))
        end = time.monotonic() + 60
        state = ""
        while time.monotonic() < end and state != "T":
            state = Path(f"/proc/{child.pid}/stat").read_text().split(")")[1].split()[0]
            time.sleep(0.01)
        assert state == "T"
        child.data = b""
        os.kill(child.pid, signal.SIGCONT)
        child.read_until(rb"power limit is set to 350 W")
        child.write(b"q")
        assert child.wait() == 0


def test_without_mouse_no_mouse_mode_is_asked_for(tmp_path: Path) -> None:
    with terminal(tmp_path, options="mouse=False") as child:
        ready(child)
        assert b"\x1b[?1000h" not in child.data
        child.write(b"q")
        child.wait()


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"TERM": "linux"}],
    ids=["ascii", "latin-1", "linux"],
)
def test_poor_terminals_get_ascii(tmp_path: Path, environment: dict[str, str]) -> None:
    with terminal(tmp_path, **environment) as child:
        ready(child)
        child.write(b"?")
        child.read_until(rb"keys and words")
        child.write(b"\x03")
        child.wait()
        drawn = child.data[: child.data.rindex(ALTERNATE_OFF)]
        assert drawn.isascii()
        assert b"\\u" not in drawn


@pytest.mark.parametrize(
    ("environment", "wanted", "unwanted"),
    [
        ({"TERM": "xterm-256color"}, rb"[34]8;5;", rb"[34]8;2;"),
        ({"TERM": "screen-256color"}, rb"[34]8;5;", rb"[34]8;2;"),
        ({"TERM": "tmux-256color"}, rb"[34]8;5;", rb"[34]8;2;"),
        ({"TERM": "screen"}, rb"\x1b\[", rb"[34]8;[25];"),
        ({"TERM": "vt100"}, rb"\x1b\[", rb"[34]8;[25];"),
        ({"COLORTERM": "truecolor"}, rb"[34]8;2;", rb"[34]8;5;"),
    ],
)
def test_colours_are_those_of_the_terminal(
    tmp_path: Path, environment: dict[str, str], wanted: bytes, unwanted: bytes
) -> None:
    with terminal(tmp_path, **environment) as child:
        ready(child)
        child.write(b"q")
        child.wait()
        assert re.search(wanted, child.data)
        assert not re.search(unwanted, child.data)
        assert b"SLOW" in child.data


def test_no_color_is_grey_and_the_words_remain(tmp_path: Path) -> None:
    with terminal(tmp_path, options="color=False") as child:
        ready(child)
        child.write(b"q")
        child.wait()
        codes = {int(code) for code in re.findall(rb"[34]8;5;(\d+)", child.data)}
        grey = {16, 59, 102, 145, 188, 231, *range(232, 256)}
        assert codes <= grey
        assert b" SLOW " in child.data

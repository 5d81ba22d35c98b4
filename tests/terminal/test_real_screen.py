"""The real program in a real terminal: however it ends, the terminal and the machine are clean."""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from terminal import PATIENCE_SECONDS, TOPSMON, Terminal, gone

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        shutil.which("cc") is None and shutil.which("gcc") is None,
        reason="the simulated driver needs a C compiler",
    ),
]

CHILDREN_OF_POWER_CAP = 9  # the poller and one prober a GPU


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    return tmp_path


@pytest.fixture
def screen(home: Path) -> Iterator[Terminal]:
    terminal = Terminal([*TOPSMON, "--simulate", "power-cap", "-i", "0.5"], cwd=home)
    try:
        terminal.wait_for("SLOW")
        yield terminal
    finally:
        terminal.close()


def test_the_worst_finding_and_its_remedy_are_on_the_screen(screen: Terminal) -> None:
    shown = ("-pl 700", "GPU 3", "SIMULATED")
    screen.wait_for(lambda text: all(words in text for words in shown))


@pytest.mark.parametrize("key", ["q", "\x03"], ids=["q", "ctrl-c"])
def test_quitting(screen: Terminal, key: str) -> None:
    children = screen.wait_for_children(CHILDREN_OF_POWER_CAP)
    screen.send(key)
    assert screen.wait_for_end() == 0
    assert not gone(children)
    assert screen.restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["term", "hup"])
def test_signals(screen: Terminal, number: int) -> None:
    children = screen.wait_for_children(CHILDREN_OF_POWER_CAP)
    os.kill(screen.process.pid, number)
    screen.wait_for_end()
    assert not gone(children)
    assert screen.restored()


def test_a_dropped_connection(screen: Terminal) -> None:
    children = screen.wait_for_children(CHILDREN_OF_POWER_CAP)
    screen.hang_up()
    screen.wait_for_end()
    assert not gone(children)


def test_kill_9_of_the_screen(screen: Terminal) -> None:
    children = screen.wait_for_children(CHILDREN_OF_POWER_CAP)
    screen.process.kill()
    screen.wait_for_end()
    assert not gone(children)


def test_suspending_restores_the_terminal_and_ends_the_children(screen: Terminal) -> None:
    children = screen.wait_for_children(CHILDREN_OF_POWER_CAP)
    program = psutil.Process(screen.process.pid)
    screen.send("\x1a")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while program.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.02)
    assert program.status() == psutil.STATUS_STOPPED
    assert not gone(children)
    assert screen.restored()
    os.kill(screen.process.pid, signal.SIGCONT)
    screen.wait_for_children(CHILDREN_OF_POWER_CAP)
    screen.send("q")
    screen.wait_for_end()


def wait_for_poller(screen: Terminal, but: int | None = None) -> psutil.Process:
    """Wait until the program has a poller (another one than `but`); return it.

    A child that has only just been forked still has the command line of its parent.
    """
    parent = psutil.Process(screen.process.pid)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for child in parent.children():
            with contextlib.suppress(psutil.Error):
                if "stream" in child.cmdline() and child.pid != but:
                    return child
        time.sleep(0.02)
    raise AssertionError(f"no poller after {PATIENCE_SECONDS} s\n{screen.text()}")


def test_kill_9_of_the_poller_is_said_and_survived(screen: Terminal) -> None:
    screen.wait_for_children(CHILDREN_OF_POWER_CAP)
    poller = wait_for_poller(screen)
    poller.kill()
    # The notice goes after some seconds: on a loaded machine before anybody looks at the screen.
    screen.wait_for_output("worker restarted (killed by SIGKILL")
    wait_for_poller(screen, but=poller.pid)
    screen.send("q")
    screen.wait_for_end()


def test_an_exception_inside_the_screen(home: Path) -> None:
    script = (
        "import sys\n"
        "from topsmon.tui import view\n"
        "from topsmon import session\n"
        "real = session.Session.receive\n"
        "def broken(self, event):\n"
        "    real(self, event)\n"
        "    if len(self.state.devices) > 2 and self.child_pids():\n"
        "        import asyncio\n"
        "        from textual._context import active_app\n"
        "        self.receive = lambda event: None\n"
        "        app = active_app.get()\n"
        "        app.call_later(lambda: 1 / 0)\n"
        "session.Session.receive = broken\n"
        "from topsmon.cli import main\n"
        "sys.exit(main(['--simulate', 'power-cap']))\n"
    )
    terminal = Terminal([sys.executable, "-c", script], cwd=home)
    try:
        assert terminal.wait_for_end() == 3
        assert terminal.restored()
        assert "division by zero" in terminal.text()
        leftovers = [
            process
            for process in psutil.process_iter(["cmdline", "cwd"])
            if process.info["cwd"] == str(home)
        ]
        assert not gone(leftovers)
    finally:
        terminal.close()


def test_quitting_at_once_while_the_driver_hangs(home: Path) -> None:
    terminals = [
        Terminal([*TOPSMON, "--simulate", scenario, "-i", "0.5"], cwd=home)
        for scenario in ("hang", "hang-all")
    ]
    try:
        for terminal in terminals:
            terminal.wait_for("not answering")
            children = terminal.wait_for_children(1)
            terminal.send("q")
            terminal.wait_for_end()
            assert not gone(children)
            assert terminal.restored()
    finally:
        for terminal in terminals:
            terminal.close()


@pytest.mark.parametrize(
    ("environment", "options"),
    [({"TERM": "dumb"}, []), ({"TERM": ""}, []), ({}, ["--once"])],
    ids=["dumb", "no-term", "once"],
)
def test_without_a_capable_terminal_one_snapshot_without_escapes(
    home: Path, environment: dict[str, str], options: list[str]
) -> None:
    terminal = Terminal(
        [*TOPSMON, "--simulate", "power-cap", *options], environment=environment, cwd=home
    )
    try:
        terminal.wait_for_end()
        assert b"\x1b" not in terminal.output
        assert b"SIMULATED" in terminal.output
    finally:
        terminal.close()


@pytest.mark.parametrize("size", [(20, 5), (40, 10), (59, 20), (80, 24), (200, 60)])
def test_any_size(home: Path, size: tuple[int, int]) -> None:
    columns, rows = size
    terminal = Terminal(
        [*TOPSMON, "--simulate", "h100-8", "--no-bench"], columns=columns, rows=rows, cwd=home
    )
    try:
        terminal.wait_for(lambda text: any(char.isalnum() for char in text))
        for width, height in ((30, 8), (150, 50), (columns, rows)):
            terminal.resize(width, height)
            time.sleep(0.1)
        assert terminal.process.poll() is None
        terminal.send("q")
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()

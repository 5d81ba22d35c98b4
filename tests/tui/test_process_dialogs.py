"""Details and signals, on real processes: what is shown of them, and that a signal arrives."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from process_demo import crowd, on
from rich.cells import cell_len
from screen_demo import GIB, NOW, eight, fold, gpu, host
from screen_text import OpenScreen, text_of
from textual.pilot import Pilot

from topsmon import events
from topsmon.devices.process_lists import Held, Key
from topsmon.devices.process_lookup import Family
from topsmon.devices.processes import ProcessTable
from topsmon.state import State
from topsmon.tui.app import TopsmonApp
from topsmon.tui.processes import details
from topsmon.tui.processes.list import ProcessList
from topsmon.tui.processes.signals import obstacle

GPU_0 = "GPU-00000000"
Spawn = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.real


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start /bin/sleep under any name; wait until it has it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: bytes, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(list(arguments), executable="/bin/sleep", **options)
        started.append(process)
        deadline = time.monotonic() + 60
        while not Path(f"/proc/{process.pid}/comm").read_text().startswith("sleep"):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def shown(pid: int, **changes: Any) -> State:
    """A GPU with this process, as the poller tells of it."""
    table = ProcessTable(Family(pid=-1), patience=5.0)
    (entry,) = table.entries({Key(pid): Held(GIB)})
    state = eight(ticks=2)
    state.apply(on(GPU_0, msgspec.structs.replace(entry, **changes)), NOW)
    return state


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def until(pilot: Pilot, app: TopsmonApp, word: str) -> str:
    """Wait for a word on the screen; return all that stands there."""
    deadline = time.monotonic() + 60
    while word not in (text := "\n".join(text_of(app))):
        assert time.monotonic() < deadline, text
        await pilot.pause(0.02)
    return text


# Details ------------------------------------------------------------------------------------------


async def test_details_have_command_folder_and_environment(
    open_screen: OpenScreen, spawn: Spawn, tmp_path: Path
) -> None:
    variables = {
        "HF_TOKEN": "hf_abcdefghijklmnop",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "EVIL": "a\x1b[2J\nb",
    }
    process = spawn(b"train --steps 9", b"600", env=variables, cwd=tmp_path)
    async with open_screen(shown(process.pid), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "enter")
        text = await until(pilot, app, "3 variables")
        assert f"PID {process.pid}" in text
        assert "train --steps 9 600" in text
        assert tmp_path.name in text
        assert "CUDA_VISIBLE_DEVICES=0,1" in text
        assert "HF_TOKEN=********" in text
        assert "hf_abc" not in text
        assert "\x1b" not in text
        assert "EVIL=a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b" in text
        assert f"({os.getpid()})" in text  # among its parents
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


async def test_a_long_command_scrolls_and_is_cut_in_words(
    open_screen: OpenScreen, spawn: Spawn
) -> None:
    process = spawn(b"train" + b" word" * 20_000, b"600", env={})
    async with open_screen(shown(process.pid), size=(80, 24)) as (app, pilot):
        await pilot.press("5", "enter")
        deadline = time.monotonic() + 60
        while True:
            await pilot.press("pagedown", "pagedown", "pagedown", "pagedown")
            await pilot.pause(0.02)
            if "0 variables" in "\n".join(text_of(app)):
                break
            assert time.monotonic() < deadline
        assert all(cell_len(line) == 80 for line in text_of(app))


async def test_a_process_that_has_ended_says_so(open_screen: OpenScreen, spawn: Spawn) -> None:
    process = spawn(b"train", b"600")
    state = shown(process.pid)
    process.kill()
    process.wait()
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        await pilot.press("5", "enter")
        await until(pilot, app, "the process has ended")


async def test_a_locked_process_holds_up_nobody(
    open_screen: OpenScreen,
    spawn: Spawn,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The child that reads it hangs: it is given up and ended, and keys answer meanwhile."""
    left = tmp_path / "pid"
    (tmp_path / "hanging_child.py").write_text(
        "import os, time\n"
        f"open({str(left)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        'print(\'{"threads": "77"}\', flush=True)\n'
        "time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(details, "CHILD", "hanging_child")
    monkeypatch.setattr(details, "WAIT_SECONDS", 1.0)
    async with open_screen(shown(spawn(b"train", b"600").pid), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "enter")
        await until(pilot, app, "77")
        await pilot.press("escape", "j", "enter")
        await until(pilot, app, "it does not answer: stuck in the kernel?")
    children = [int(pid) for pid in left.read_text().split()]
    assert len(children) == 2
    deadline = time.monotonic() + 60
    while any(map(exists, children)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_nobody_looks_at_a_process_of_another_system(
    open_screen: OpenScreen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: object) -> None:
        raise AssertionError("no child for a PID of another namespace")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", forbidden)
    state = fold([host(container=True), gpu(0)])
    state.apply(on(GPU_0, events.ProcessEntry(pid=4194001, name="python3", local=False)), NOW)
    async with open_screen(state, size=(120, 40)) as (app, pilot):
        await pilot.press("5", "enter")
        await until(pilot, app, "it is not looked up")
        assert "--pid=host" in "\n".join(text_of(app))


# Signals ------------------------------------------------------------------------------------------


def toasts(app: TopsmonApp) -> str:
    return " ".join(note.message for note in app._notifications)


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        ((), signal.SIGTERM),
        (("down",), signal.SIGINT),
        (("j", "j"), signal.SIGKILL),
        (("end", *["down"] * 9), signal.SIGHUP),
    ],
)
async def test_a_confirmed_signal_ends_the_process(
    open_screen: OpenScreen, spawn: Spawn, keys: tuple[str, ...], number: int
) -> None:
    process = spawn(b"train --steps 9", b"600")
    async with open_screen(shown(process.pid), size=(80, 24)) as (app, pilot):
        await pilot.press("5", "K")
        text = await until(pilot, app, f"signal to PID {process.pid}")
        assert "train --steps 9 600" in text
        await pilot.press(*keys, "enter")
        text = await until(pilot, app, "y: send it")
        assert f"Send {signal.Signals(number).name}" in text
        assert process.poll() is None
        await pilot.press("y")
        assert process.wait(60) == -number
        await pilot.pause()
        assert f"{signal.Signals(number).name} sent to PID {process.pid}" in toasts(app)
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize(
    "keys", [("escape",), ("q",), ("y", "escape"), ("enter", "n"), ("enter", "escape")]
)
async def test_without_a_yes_nothing_is_sent(
    open_screen: OpenScreen, spawn: Spawn, keys: tuple[str, ...]
) -> None:
    process = spawn(b"train", b"600")
    async with open_screen(shown(process.pid), size=(80, 24)) as (app, pilot):
        await pilot.press("5", "K", *keys)
        await pilot.pause()
        assert len(app.screen_stack) == 1
        assert process.poll() is None
        assert not toasts(app)


async def test_enter_twice_does_not_send(open_screen: OpenScreen, spawn: Spawn) -> None:
    process = spawn(b"train", b"600")
    async with open_screen(shown(process.pid), size=(80, 24)) as (app, pilot):
        await pilot.press("5", "K", "enter", "enter", "enter")
        await until(pilot, app, "y: send it")
        assert process.poll() is None


async def test_readonly_sends_nothing_and_says_so(open_screen: OpenScreen, spawn: Spawn) -> None:
    process = spawn(b"train", b"600")
    async with open_screen(shown(process.pid), size=(80, 24), readonly=True) as (app, pilot):
        await pilot.press("5", "K", "enter", "y")
        assert "signals are off (--readonly)" in toasts(app)
        assert process.poll() is None


async def test_a_pid_that_was_given_away_gets_nothing(
    open_screen: OpenScreen, spawn: Spawn
) -> None:
    """What was shown has ended; its PID belongs to a process that started later."""
    process = spawn(b"train", b"600")
    state = shown(process.pid, start_ticks=1)
    async with open_screen(state, size=(80, 24)) as (app, pilot):
        await pilot.press("5", "K", "enter", "y")
        await pilot.pause()
        assert "another process by now: nothing was sent" in toasts(app)
        assert process.poll() is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"local": False}, "no process of this system"),
        ({"start_ticks": None}, "cannot be read"),
    ],
)
async def test_what_is_not_sure_is_refused(
    open_screen: OpenScreen, spawn: Spawn, changes: dict[str, Any], why: str
) -> None:
    process = spawn(b"train", b"600")
    async with open_screen(shown(process.pid, **changes), size=(80, 24)) as (app, pilot):
        await pilot.press("5", "K", "enter", "y")
        assert why in toasts(app)
        assert process.poll() is None


async def test_processes_of_elsewhere_are_only_looked_at(
    open_screen: OpenScreen, spawn: Spawn
) -> None:
    """A recording, or another host: an equal PID here is another process."""
    process = spawn(b"train", b"600")
    async with open_screen(shown(process.pid), size=(80, 24)) as (app, pilot):
        await pilot.press("5")
        row = app.query_one("#processes", ProcessList).table.selected
        assert row is not None
        assert obstacle(app.view, row) == ""
        for view, why in (
            (replace(app.view, replay=object()), "recording"),
            (replace(app.view, hosts=object()), "host"),
        ):
            assert why in obstacle(view, row)
            assert why in details.ProcessDialog(view, row, [row]).elsewhere


async def test_our_own_processes_are_marked(open_screen: OpenScreen) -> None:
    async with open_screen(crowd(), size=(120, 40)) as (app, pilot):
        await pilot.press("5", "slash", *"60011", "enter")
        assert "topsmon itself" in "\n".join(text_of(app))
        await pilot.press("K")
        await until(pilot, app, "This is topsmon itself")


# Hostile names on a real process ------------------------------------------------------------------


@pytest.fixture
def evil() -> Iterator[int]:
    """A process whose name clears the screen, sets the title and begins a new line."""
    name = "b'evil\\x1b[2J\\x1b]0;x\\x07\\nline2'"
    code = f"import os; os.execv('/bin/sleep', [{name}, b'600'])"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            deadline = time.monotonic() + 60
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"evil"):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("keys", [(), ("enter",), ("K",), ("K", "enter")])
async def test_escape_codes_of_a_real_process_never_reach_the_terminal(
    open_screen: OpenScreen, evil: int, keys: tuple[str, ...]
) -> None:
    async with open_screen(shown(evil), size=(120, 40)) as (app, pilot):
        await pilot.press("5", *keys)
        text = await until(pilot, app, "evil\N{REPLACEMENT CHARACTER}[2J")
        assert len(text.splitlines()) == 40
        assert not any(ord(sign) < 32 for line in text.splitlines() for sign in line)
        assert "\x1b" not in app.export_screenshot()

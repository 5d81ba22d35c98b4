"""Signals reach exactly the process that was shown, or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from topsmon.devices import process_signals
from topsmon.devices.process_files import start_ticks
from topsmon.devices.process_signals import SIGNALS, send


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_term_comes_first() -> None:
    assert list(SIGNALS) == ["TERM", "INT", "KILL", "STOP", "CONT", "HUP"]


@pytest.mark.parametrize("name", ["TERM", "INT", "KILL", "HUP"])
def test_a_signal_ends_the_process(sleeper: subprocess.Popen[bytes], name: str) -> None:
    assert send(sleeper.pid, start_ticks(sleeper.pid), name) is None
    assert sleeper.wait(60) == -getattr(signal, f"SIG{name}")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_stop_and_cont(sleeper: subprocess.Popen[bytes]) -> None:
    for name, states in (("STOP", "T"), ("CONT", "SR")):
        assert send(sleeper.pid, start_ticks(sleeper.pid), name) is None
        deadline = time.monotonic() + 60
        while state_of(sleeper.pid) not in states:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_another_process_with_the_same_pid_gets_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    """The PID was given away: it started at another moment than the one that was shown."""
    ticks = start_ticks(sleeper.pid)
    assert ticks is not None
    problem = send(sleeper.pid, ticks - 100, "KILL")
    assert problem is not None
    assert "another process" in problem
    assert sleeper.poll() is None


def test_a_process_that_has_ended_gets_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = start_ticks(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    problem = send(sleeper.pid, ticks, "TERM")
    assert problem is not None
    assert "has ended" in problem


@pytest.mark.parametrize(
    ("pid", "ticks"), [(0, 5), (1, 5), (-1, 5), pytest.param(os.getpid(), None, id="own")]
)
def test_what_is_not_sure_gets_nothing(
    monkeypatch: pytest.MonkeyPatch, pid: int, ticks: int | None
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("no signal must be sent")

    monkeypatch.setattr(process_signals.os, "kill", forbidden)
    monkeypatch.setattr(process_signals.os, "pidfd_open", forbidden)
    assert send(pid, ticks, "TERM") is not None


def test_a_kernel_without_handles_will_do(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    def missing(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(process_signals.os, "pidfd_open", missing)
    ticks = start_ticks(sleeper.pid)
    assert ticks is not None
    assert "another process" in (send(sleeper.pid, ticks + 1, "TERM") or "")
    assert send(sleeper.pid, ticks, "TERM") is None
    assert sleeper.wait(60) == -signal.SIGTERM


@pytest.mark.real
def test_another_users_process_is_refused_in_words(sleeper: subprocess.Popen[bytes]) -> None:
    other = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    if subprocess.run([*other, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can become another user")
    code = (
        "import sys; from topsmon.devices.process_signals import send; "
        "print(send(int(sys.argv[1]), int(sys.argv[2]), 'TERM'))"
    )
    arguments = [str(sleeper.pid), str(start_ticks(sleeper.pid))]
    done = subprocess.run(
        [*other, sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Permission denied" in done.stderr:
        pytest.skip("this Python may not be run by another user")
    assert "no permission" in done.stdout
    assert sleeper.poll() is None

"""Processes that may not be looked at, hang, end in between, or have users without a name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from poller_process import Simulate, one_gpu

from topsmon import events
from topsmon.devices import background, process_lookup
from topsmon.devices.background import Background
from topsmon.devices.process_lists import Held, Key
from topsmon.devices.process_lookup import Family, are_pids_foreign
from topsmon.devices.processes import REFRESH_SECONDS, ProcessTable

NOBODY = Family(pid=-1)
UNKNOWN_USER = 54321
HERE = Path(__file__).parent


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def entry(table: ProcessTable, pid: int) -> events.ProcessEntry:
    (found,) = table.entries({Key(pid): Held(5)})
    return found


def needs(*command: str) -> None:
    """Skip where this machine does not let us do what the test is about."""
    done = subprocess.run([*command, "true"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"not allowed here: {' '.join(command)}")


LOOK = """
import json, sys
import msgspec
from topsmon.devices.process_lists import Held, Key
from topsmon.devices.process_lookup import Family
from topsmon.devices.processes import ProcessTable
table = ProcessTable(Family(pid=-1), patience=60.0)
held = {Key(int(pid)): Held(5) for pid in sys.argv[1:]}
print(json.dumps([msgspec.to_builtins(one) for one in table.entries(held)]))
"""


@pytest.mark.real
@pytest.mark.parametrize("hidepid", [1, 2])
def test_a_hidden_process_of_another_user_keeps_its_row(hidepid: int) -> None:
    """/proc mounted with hidepid, in a PID namespace of its own, which ends with its shell."""
    separate = ("unshare", "--mount", "--pid", "--fork")
    other = ("setpriv", f"--reuid={UNKNOWN_USER}", f"--regid={UNKNOWN_USER}", "--clear-groups")
    needs(*separate, *other)
    script = (
        f"mount -t proc -o hidepid={hidepid} proc /proc; sleep 600 & "
        f'{" ".join(other)} "$@" $! 999; exit 0'
    )
    done = subprocess.run(
        [*separate, "sh", "-c", script, "sh", sys.executable, "-c", LOOK],
        capture_output=True,
        check=False,
        timeout=120,
    )
    if b"Permission denied" in done.stderr and not done.stdout:
        pytest.skip("this Python may not be run by another user")
    assert done.stdout, done.stderr
    hidden, absent = json.loads(done.stdout)
    assert (hidden["local"], hidden["memory_bytes"], hidden["state"]) == (True, 5, None)
    assert hidden["command"] is None
    assert (absent["local"], absent["memory_bytes"]) == (False, 5)


@pytest.mark.real
def test_a_user_without_an_entry_is_a_number() -> None:
    needs("setpriv", f"--reuid={UNKNOWN_USER}")
    with subprocess.Popen(["setpriv", f"--reuid={UNKNOWN_USER}", "sleep", "600"]) as process:
        try:
            deadline = time.monotonic() + 60
            while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert entry(ProcessTable(NOBODY, patience=60.0), process.pid).user == str(UNKNOWN_USER)
        finally:
            process.kill()


def test_a_slow_name_service_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    import pwd

    release = threading.Event()

    def slow(uid: int) -> SimpleNamespace:
        release.wait(60)
        return SimpleNamespace(pw_name="ada")

    monkeypatch.setattr(pwd, "getpwuid", slow)
    table = ProcessTable(NOBODY, patience=0.5)
    deadline = time.monotonic() + 60
    while (first := entry(table, sleeper.pid)).name is None:
        assert time.monotonic() < deadline
    assert (first.name, first.user) == ("sleep", str(os.getuid()))
    release.set()
    while entry(table, sleeper.pid).user != "ada":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_locked_process_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    """Reading the command line of a process that hangs in the kernel may never return."""
    locked, release = 1, threading.Event()
    prompt = process_lookup.describe

    def describe(pid: int, family: Family, *, foreign: bool) -> process_lookup.Details | None:
        if pid == locked:
            release.wait(60)
        return prompt(pid, family, foreign=foreign)

    monkeypatch.setattr(process_lookup, "describe", describe)
    monkeypatch.setattr(background, "STUCK_SECONDS", 0.05)
    table = ProcessTable(NOBODY, patience=0.1)
    assert entry(table, locked).name is None
    deadline = time.monotonic() + 60
    while entry(table, sleeper.pid).name != "sleep":
        assert time.monotonic() < deadline
    release.set()


def test_stuck_threads_are_few() -> None:
    release = threading.Event()
    questions: Background[int, bool] = Background(lambda _: release.wait(60), "stuck")
    before = threading.active_count()
    for key in range(3 * background.MOST_THREADS):
        questions._working = [since and 0.0 for since in questions._working]  # stuck for long
        questions.get([key], 0.0)
        time.sleep(0.005)
    assert threading.active_count() - before <= background.MOST_THREADS
    release.set()
    assert questions.get([0], 60.0) == {0: True}


def test_processes_that_end_while_they_are_read_do_no_harm() -> None:
    """Lives of 50 ms, read as fast as can be."""
    table = ProcessTable(NOBODY, patience=0.02)
    living: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        living.append(subprocess.Popen(["sleep", "0.05"]))
        held = {Key(process.pid): Held(1) for process in living[-8:]}
        assert [one.pid for one in table.entries(held)] == [key.pid for key in held]
        table.busy_processes()
        for process in living[:-6]:
            process.poll()
    for process in living:
        process.wait()


def test_pids_are_our_own_in_the_first_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    def leads(to: str | None) -> None:
        def readlink(path: Path) -> Path:
            if to is None:
                raise PermissionError(13, "denied")
            return Path(to)

        monkeypatch.setattr(Path, "readlink", readlink)

    leads("pid:[4026531836]")
    assert not are_pids_foreign(container=True)
    leads("pid:[4026532281]")
    assert are_pids_foreign(container=False)
    leads(None)
    assert are_pids_foreign(container=True)
    assert not are_pids_foreign(container=False)


def test_a_foreign_pid_is_not_looked_up(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("a PID of another namespace must not be touched")

    table = ProcessTable(NOBODY, patience=60.0, foreign_pids=True)
    with monkeypatch.context() as patched:
        patched.setattr(process_lookup.psutil, "Process", forbidden)
        patched.setattr(process_lookup.os, "kill", forbidden)
        found = entry(table, sleeper.pid)
    assert found == events.ProcessEntry(pid=sleeper.pid, memory_bytes=5, local=False)


def test_a_new_parent_is_noticed() -> None:
    """The parent ends, another process takes the child over."""
    code = (
        "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); "
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    now = 0.0
    table = ProcessTable(NOBODY, patience=60.0, clock=lambda: now)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            before = entry(table, pid)
            assert [one.pid for one in before.ancestors[:2]] == [parent.pid, os.getpid()]
            parent.kill()
            parent.wait()
            now += 2 * REFRESH_SECONDS
            assert entry(table, pid).parent_pid != parent.pid
            assert parent.pid not in [one.pid for one in entry(table, pid).ancestors]
        finally:
            os.kill(pid, 9)


BUSY = """
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(1 << 20)).digest()
for _ in range(2):
    threading.Thread(target=work).start()
"""


@pytest.mark.real
def test_one_process_on_four_gpus_has_one_cpu_use(simulate: Simulate) -> None:
    """Told alike for each of them; at first nothing, not 0."""
    with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
        try:
            scenario = one_gpu(processes=[{"pid": busy.pid, "memory_mib": 64}])
            poller = simulate({**scenario, "count": 4}, process_seconds=0.3)
            first: dict[str, events.ProcessEntry] = {}
            later: dict[str, float] = {}
            while len(later) < 4:
                told = poller.wait(events.Processes, lambda event: event.device != "cpu")
                assert told.entries is not None
                (one,) = told.entries
                first.setdefault(told.device, one)
                if one.cpu_cores is not None:
                    later.setdefault(told.device, one.cpu_cores)
        finally:
            busy.kill()
    assert [one.cpu_cores for one in first.values()] == [None] * 4
    (cores,) = set(later.values())
    assert 0.0 < cores <= (os.cpu_count() or 1) + 0.1

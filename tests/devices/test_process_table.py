"""Processes as the operating system shows them: hostile names, missing rights, ended ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from poller_process import Simulate, one_gpu

from topsmon import events
from topsmon.devices import process_lookup
from topsmon.devices.process_lists import Held, Key
from topsmon.devices.process_lookup import Details, Family, Lookup, describe, is_worker_command
from topsmon.devices.process_shares import Share
from topsmon.devices.processes import ProcessTable
from topsmon.units import plain

Spawn = Callable[..., subprocess.Popen[bytes]]
NOBODY = Family(pid=-1)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a process that lives as long as the test; arguments may be any bytes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: bytes, executable: str | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(list(arguments), executable=executable)
        started.append(process)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # until exec has replaced the fork of this process
            if Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(arguments[0]):
                break
            time.sleep(0.005)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def sleeper(spawn: Spawn, *arguments: bytes) -> subprocess.Popen[bytes]:
    """A process whose arguments are these, and which sleeps."""
    return spawn(*arguments, executable="/bin/sleep")


def table(**options: object) -> ProcessTable:
    return ProcessTable(NOBODY, patience=5.0, **options)  # type: ignore[arg-type]


def one(watched: ProcessTable, pid: int, memory: int | None = None) -> events.ProcessEntry:
    """The entry of one process."""
    (entry,) = watched.entries({Key(pid): Held(memory)})
    return entry


def test_control_characters_stay_in_the_record_and_not_on_the_screen(spawn: Spawn) -> None:
    process = sleeper(spawn, b"evil\x1b[2J\x1b]0;x\x07\nline2", b"600")
    entry = one(table(), process.pid, 1)
    assert entry.command == "evil\x1b[2J\x1b]0;x\x07\nline2 600"
    shown = plain(entry.command)
    assert "\x1b" not in shown
    assert "\n" not in shown


def test_arguments_that_are_no_utf8_become_valid_json(spawn: Spawn) -> None:
    process = sleeper(spawn, b"train\xff\xfe", b"600")
    entry = one(table(), process.pid, None)
    assert entry.command == "train\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} 600"
    event = events.Processes(time=0, monotonic=0, source="x", device="d", entries=(entry,))
    assert events.LineDecoder().decode(events.encode(event)) == event


def test_an_enormous_command_line_is_cut(spawn: Spawn) -> None:
    process = spawn(
        os.fsencode(sys.executable), b"-c", b"import time; time.sleep(600)", b"x" * 120_000
    )
    entry = one(table(), process.pid, None)
    assert entry.command is not None
    assert len(entry.command) == process_lookup.COMMAND_LIMIT + 1
    assert entry.command.endswith("…")


def test_what_is_known_of_a_process(spawn: Spawn) -> None:
    process = sleeper(spawn, b"sleep", b"600")
    (entry,) = table().entries(
        {Key(process.pid, 3): Held(5, "both")}, {process.pid: Share(0.25, 0.125)}
    )
    status = Path(f"/proc/{process.pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    assert entry.host_memory_bytes == int(resident.split()[1]) * 1024
    assert entry.started == pytest.approx(time.time(), abs=60)
    assert entry.ancestors[0].pid == os.getpid()
    assert entry == events.ProcessEntry(
        pid=process.pid,
        name="sleep",
        user=psutil.Process().username(),
        memory_bytes=5,
        command="sleep 600",
        parent_pid=os.getpid(),
        kind="both",
        sm_ratio=0.25,
        memory_busy_ratio=0.125,
        gpu_instance=3,
        host_memory_bytes=entry.host_memory_bytes,
        started=entry.started,
        start_ticks=entry.start_ticks,
        ancestors=entry.ancestors,
    )
    assert entry.start_ticks is not None
    ticks = os.sysconf("SC_CLK_TCK")
    up = float(Path("/proc/uptime").read_text().split()[0])
    assert entry.start_ticks / ticks == pytest.approx(up, abs=5)


def test_a_process_that_has_ended_keeps_its_row(spawn: Spawn) -> None:
    process = sleeper(spawn, b"sleep", b"600")
    watched = table()
    assert one(watched, process.pid, 5).name == "sleep"
    process.kill()
    process.wait()
    entry = one(watched, process.pid, 5)
    assert entry == events.ProcessEntry(pid=process.pid, memory_bytes=5, local=False)


def test_a_zombie_holds_its_memory_under_its_letter(spawn: Spawn) -> None:
    process = sleeper(spawn, b"sleep", b"600")
    now = 10.0
    watched = table(clock=lambda: now)
    one(watched, process.pid, 5)
    now = 12.0
    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.005)
    entry = one(watched, process.pid, 5)
    assert (entry.pid, entry.memory_bytes, entry.state) == (process.pid, 5, "Z")


@pytest.mark.parametrize(
    "error",
    [
        psutil.AccessDenied(7),
        psutil.NoSuchProcess(7),
        psutil.ZombieProcess(7),
        PermissionError(13, "hidepid"),
    ],
)
def test_any_refusal_leaves_what_is_known(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    process = sleeper(spawn, b"sleep", b"600")
    asked = ("name", "cmdline", "uids", "ppid", "parent", "status", "cpu_times", "memory_info")
    for name in (*asked, "create_time"):
        monkeypatch.setattr(psutil.Process, name, refuse)
    monkeypatch.setattr(process_lookup, "start_ticks", lambda pid: None)
    entry = one(table(), process.pid, 5)
    assert entry == events.ProcessEntry(pid=process.pid, memory_bytes=5)


def test_a_process_that_cannot_be_seen_at_all_keeps_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hidden(pid: int) -> None:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", hidden)
    entry = one(table(), os.getpid(), 5)
    assert entry == events.ProcessEntry(pid=os.getpid(), memory_bytes=5, local=False)


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch, spawn: Spawn) -> None:
    process = sleeper(spawn, b"sleep", b"600")
    monkeypatch.setattr(psutil.Process, "uids", lambda _: SimpleNamespace(real=54321))
    assert one(table(), process.pid, None).user == "54321"


def test_a_slow_lookup_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    prompt = process_lookup.describe

    def slow(pid: int, family: Family, *, foreign: bool) -> Details | None:
        release.wait(60)
        return prompt(pid, family, foreign=foreign)

    monkeypatch.setattr(process_lookup, "describe", slow)
    lookup = Lookup(NOBODY)
    assert lookup.details([os.getpid()], 0.02) == {os.getpid(): None}
    assert not release.is_set()
    release.set()
    details = lookup.details([os.getpid()], 60.0)[os.getpid()]
    assert details is not None
    assert details.command


def test_a_pid_of_another_namespace_is_not_ours(spawn: Spawn) -> None:
    """In a container the PIDs are the host's: an equal number here is another process."""
    process = sleeper(spawn, b"sleep", b"600")
    entry = one(table(foreign_pids=True), process.pid, 5)
    assert entry == events.ProcessEntry(pid=process.pid, memory_bytes=5, local=False)


def test_a_process_with_the_driver_mapped_is_the_one(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    process = sleeper(spawn, b"sleep", b"600")
    monkeypatch.setattr(process_lookup, "_uses_nvidia", lambda pid: pid == process.pid)
    entry = one(table(foreign_pids=True), process.pid, 5)
    assert (entry.name, entry.local) == ("sleep", True)


def test_cpu_use_is_blank_at_first_and_counted_once_a_refresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process with four busy threads on four GPUs: 4 cores on each of them, read once."""
    now, cpu, reads = 10.0, 100.0, 0

    def times(_: psutil.Process) -> SimpleNamespace:
        nonlocal reads
        reads += 1
        return SimpleNamespace(user=cpu, system=0.0)

    monkeypatch.setattr(psutil.Process, "cpu_times", times)
    watched = table(clock=lambda: now)
    pid = os.getpid()
    assert one(watched, pid, None).cpu_cores is None
    now, cpu, reads = 12.0, 108.0, 0
    shown = [one(watched, pid, None).cpu_cores for _ in range(4)]
    assert shown == [4.0] * 4
    assert reads == 1


def test_busy_processes_are_found_and_idle_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, spawn: Spawn
) -> None:
    busy, idle, own = (sleeper(spawn, name, b"600") for name in (b"busy", b"idle", b"own"))
    now = 10.0
    used = {busy.pid: 0.0, idle.pid: 0.0, own.pid: 0.0}

    def times(process: psutil.Process) -> SimpleNamespace:
        return SimpleNamespace(user=used.get(process.pid, 0.0), system=0.0)

    monkeypatch.setattr(psutil.Process, "cpu_times", times)
    watched = ProcessTable(Family(pid=own.pid), patience=5.0, clock=lambda: now)
    assert watched.busy_processes() is None
    now = 11.0
    used = {busy.pid: 0.75, idle.pid: 0.15, own.pid: 1.0}
    entries = watched.busy_processes()
    assert entries is not None
    assert [(entry.pid, entry.cpu_cores, entry.command) for entry in entries] == [
        (busy.pid, 0.75, "busy 600")
    ]
    now = 12.9
    assert watched.busy_processes() is None
    now = 13.0
    assert watched.busy_processes() == ()


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        (["python", "-m", "topsmon.probes", "--device", "cpu"], True),
        (["python", "-m", "topsmon.simulated.prober", "--device", "x"], True),
        (["/env/bin/python", "/lib/topsmon/probes", "--device", "cpu"], True),
        (["/env/bin/python", "/lib/topsmon/probes/__main__.py"], True),
        (["python", "-P", "-m", "topsmon", "stream"], True),
        (["python", "train.py", "topsmon"], False),
        (["python", "-m", "topsmonger"], False),
        (["vim", "notes/topsmon"], False),
        ([], False),
    ],
)
def test_command_lines_of_our_children(command: list[str], ours: bool) -> None:
    assert is_worker_command(command) is ours


def test_a_prober_of_our_screen_is_own_and_another_screens_is_not(spawn: Spawn) -> None:
    python, code = os.fsencode(sys.executable), b"import time; time.sleep(600)"
    prober = spawn(python, b"-c", code, b"-m", b"topsmon.probes")
    other = spawn(python, b"-c", code, b"-m", b"training")
    screen = os.getpid()
    family = Family(pid=1 << 30, parent=screen)
    owned = {
        pid: details.own
        for pid in (screen, prober.pid, other.pid)
        if (details := describe(pid, family)) is not None
    }
    assert owned == {screen: True, prober.pid: True, other.pid: False}
    foreign = describe(prober.pid, Family(pid=1 << 30, parent=1 << 29))
    assert foreign is not None
    assert not foreign.own


def test_short_lived_processes_do_no_harm() -> None:
    watched = table()
    for _ in range(20):
        process = subprocess.Popen(["/bin/true"])
        entry = one(watched, process.pid, 1)
        assert entry.pid == process.pid
        process.wait()


def test_a_gpu_process_reaches_the_stream_with_its_name(simulate: Simulate, spawn: Spawn) -> None:
    process = sleeper(spawn, b"python train.py\x1b[2J", b"600")
    poller = simulate(one_gpu(processes=[{"pid": process.pid, "memory_mib": 64}]))
    entries = poller.processes().entries
    assert entries is not None
    assert (entries[0].command, entries[0].memory_bytes) == ("python train.py\x1b[2J 600", 64 << 20)
    assert not entries[0].own

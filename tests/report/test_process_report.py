"""The snapshot's table of processes: the largest users of each device, all fields in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from topsmon import events
from topsmon.report import once, processes
from topsmon.report.columns import cells
from topsmon.state import State

NOW, WALL, GIB = 1_000.0, 1_780_000_000.0, 2**30


def stamp() -> dict[str, Any]:
    return {"time": WALL, "monotonic": NOW, "source": "node"}


def machine(*entries: events.ProcessEntry, reason: str = "", gpus: int = 1) -> State:
    state = State()
    for index in range(gpus):
        device = events.Device(
            **stamp(), device=f"GPU-{index}", kind="gpu", index=index, name="NVIDIA H100"
        )
        state.apply(device, NOW)
    told = events.Processes(**stamp(), device="GPU-0", entries=entries, reason=reason)
    state.apply(told, NOW)
    return state


def user(pid: int, **fields: Any) -> events.ProcessEntry:
    values = {
        "user": "ada",
        "command": f"/usr/bin/python3 train.py {pid}",
        "memory_bytes": pid * GIB,
        "started": WALL - 3 * 3600 - 720,
    }
    return events.ProcessEntry(pid=pid, **{**values, **fields})


def lines(state: State) -> list[str]:
    return processes.lines(state, WALL, once.WIDTH)


def test_the_largest_users_of_a_device_come_first() -> None:
    head, *rows = lines(machine(*(user(pid) for pid in (2, 9, 4, 7, 1))))
    assert " ".join(head.split()) == "device PID user GPU GiB SM CPU RSS GiB age command"
    assert [row.split()[2] for row in rows[:3]] == ["9", "7", "4"]
    assert rows[3].split() == ["GPU", "0", "and", "2", "more"]


def test_every_number_stands_under_its_head() -> None:
    entry = user(
        41,
        sm_ratio=0.73,
        cpu_cores=1.25,
        host_memory_bytes=int(6.4 * GIB),
        state="D",
    )
    head, row = lines(machine(entry))
    for title, value in (
        ("PID", "41"),
        ("GPU GiB", "41.0"),
        ("SM", "73%"),
        ("CPU", "125%"),
        ("RSS GiB", "6.4"),
        ("age", "3 h 12"),
    ):
        assert row.index(value) + len(value) == head.index(title) + len(title), title
    assert row.endswith("D python3 train.py 41")


def test_what_is_not_told_is_na_and_has_a_reason() -> None:
    stranger = events.ProcessEntry(pid=4194001, name="python3", local=False)
    text = lines(machine(stranger, reason="SM and memory share: not supported"))
    assert text[1].split() == ["GPU", "0", "4194001", *["N/A"] * 6, "python3"]
    assert "N/A (GPU 0): SM and memory share: not supported" in text
    assert any("not of this system" in line and "4194001" in line for line in text)


def test_a_device_that_cannot_be_read_is_named() -> None:
    state = machine()
    state.apply(
        events.Processes(**stamp(), device="GPU-0", entries=None, reason="no permission"), NOW
    )
    assert lines(state) == ["N/A processes (GPU 0): no permission"]


def test_without_processes_there_is_no_table() -> None:
    assert lines(machine()) == []


@pytest.mark.parametrize("text", ["evil\x1b[2J\nline2", "训练脚本" * 30, "x" * 120_000, "a\udcff"])
def test_hostile_names_stay_in_their_line(text: str) -> None:
    for line in lines(machine(user(5, command=text, user=text, name=text))):
        assert cells(line) <= once.WIDTH
        assert not any(ord(sign) < 32 for sign in line)
        line.encode("utf-8")


def test_json_has_all_fields() -> None:
    entry = user(
        41,
        name="python3",
        cpu_cores=0.5,
        state="D",
        parent_pid=40,
        kind="both",
        sm_ratio=0.73,
        memory_busy_ratio=0.41,
        host_memory_bytes=7 * GIB,
        gpu_instance=3,
        start_ticks=123,
        ancestors=(events.Ancestor(pid=40, name="torchrun"),),
    )
    document = json.loads(once.to_json(machine(entry), (), NOW, wall=WALL))
    (told,) = document["devices"][0]["processes"]
    assert told == {
        "pid": 41,
        "name": "python3",
        "user": "ada",
        "memory_bytes": 41 * GIB,
        "cpu_cores": 0.5,
        "command": "/usr/bin/python3 train.py 41",
        "local": True,
        "own": False,
        "state": "D",
        "parent_pid": 40,
        "kind": "both",
        "sm_ratio": 0.73,
        "memory_busy_ratio": 0.41,
        "host_memory_bytes": 7 * GIB,
        "started": WALL - 3 * 3600 - 720,
        "gpu_instance": 3,
        "start_ticks": 123,
        "ancestors": [{"pid": 40, "name": "torchrun"}],
    }


@pytest.fixture
def wide() -> Iterator[subprocess.Popen[bytes]]:
    """A process with names that are no UTF-8, wide, and very long."""
    name = "训练\N{DEGREE SIGN}".encode() + b"\xff\xfe"
    arguments = [name, b"600", b"x" * 100_000]
    code = f"import os; os.execv('/bin/sh', [{name!r}, '-c', 'sleep 600', *{arguments!r}])"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(name):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
        os.killpg(process.pid, 9)


@pytest.mark.real
@pytest.mark.parametrize("json_too", [False, True])
def test_a_terminal_without_unicode_gets_a_snapshot(
    wide: subprocess.Popen[bytes], tmp_path: Path, json_too: bool
) -> None:
    scenario = {
        "title": "one",
        "description": "one GPU",
        "expected": "SHARED",
        "extends": "h100-8",
        "count": 1,
        "device": {"processes": [{"pid": wide.pid, "memory_mib": 2048, "sm_percent": 61}]},
    }
    path = tmp_path / "given.json"
    path.write_text(json.dumps(scenario))
    command = [sys.executable, "-m", "topsmon", "--simulate", str(path), "--once"]
    done = subprocess.run(
        command + ["--json"] * json_too,
        env={**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    if b"compiler" in done.stderr:
        pytest.skip("no C compiler for the simulated driver")
    assert b"Traceback" not in done.stderr
    if json_too:
        device = json.loads(done.stdout.decode("utf-8"))["devices"][0]
        assert device["processes"][0]["pid"] == wide.pid
        assert device["processes"][0]["command"].startswith("训练°\N{REPLACEMENT CHARACTER}")
    else:
        row = next(line for line in done.stdout.decode("ascii").splitlines() if "61%" in line)
        assert str(wide.pid) in row
        assert len(row) <= once.WIDTH

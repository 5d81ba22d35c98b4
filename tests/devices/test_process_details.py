"""The child that reads one process: whole command, environment without secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.devices.process_files import start_ticks
from topsmon.devices.process_secrets import MASK, masked

Spawn = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: bytes, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(list(arguments), executable="/bin/sleep", **options))
        deadline = time.monotonic() + 60
        while not Path(f"/proc/{started[-1].pid}/comm").read_text().startswith("sleep"):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def details(pid: int, ticks: int | None = None, *before: str) -> dict[str, Any]:
    command = [*before, sys.executable, "-m", "topsmon.devices.process_details", str(pid)]
    done = subprocess.run(
        [*command, str(start_ticks(pid) if ticks is None else ticks)],
        capture_output=True,
        check=False,
        timeout=120,
    )
    if b"Permission denied" in done.stderr:
        pytest.skip("this Python may not be run by another user")
    found: dict[str, Any] = {}
    for line in done.stdout.decode("utf-8").splitlines():
        found |= json.loads(line)
    return found


def test_the_whole_command_and_where_it_runs(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(b"train\xff", b"600", cwd=tmp_path)
    found = details(process.pid)
    assert found["command"] == ["train\N{REPLACEMENT CHARACTER}", "600"]
    assert found["folder"] == str(tmp_path)
    assert found["executable"] == os.path.realpath("/bin/sleep")
    assert found["threads"] == "1"


def test_secrets_do_not_leave_the_child(spawn: Spawn) -> None:
    environment = {
        "HF_TOKEN": "hf_abcdefghijklmnop",
        "AWS_SECRET_ACCESS_KEY": "x",
        "DATABASE": "postgres://ada:hunter2@db/prod",
        "CUDA_VISIBLE_DEVICES": "GPU-8a56a4bc-e184-a047-2620-be19fdf913d5",
        "EMPTY_TOKEN": "",
        "LINES": "a\nb\x1b[2J",
    }
    found = details(spawn(b"sleep", b"600", env=environment).pid)
    assert dict(found["environment"]) == {
        **environment,
        "HF_TOKEN": MASK,
        "AWS_SECRET_ACCESS_KEY": MASK,
        "DATABASE": f"postgres://ada:{MASK}@db/prod",
    }


def test_an_enormous_command_line_is_told_whole() -> None:
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, "x" * 120_000]) as process:
        try:
            found = details(process.pid)
        finally:
            process.kill()
    assert found["command"][-1] == "x" * 120_000


def test_another_process_of_the_same_pid_is_not_told_of(spawn: Spawn) -> None:
    assert details(spawn(b"sleep", b"600").pid, 12) == {"ended": True}


@pytest.mark.real
def test_another_users_environment_is_refused_in_words(spawn: Spawn) -> None:
    other = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")
    if subprocess.run([*other, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can become another user")
    found = details(spawn(b"sleep", b"600").pid, None, *other)
    assert found["environment_problem"] == "Permission denied"
    assert found["command"] == ["sleep", "600"]


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "github_token",
        "MYSQL_PASSWORD",
        "PGPASS",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AUTHORIZATION",
        "SESSION_ID",
        "COOKIES",
        "Client_Secret",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert masked(name, "anything") == MASK
    assert masked(name, "") == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", MASK),
        ("0123456789abcdef0123456789abcdef01234567", MASK),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", MASK),
        ("--wandb 9f86d081884c7d659a2feaa0c55ad015", f"--wandb {MASK}"),
        ("https://ada:pa55@hub.example/v2", f"https://ada:{MASK}@hub.example/v2"),
        ("Bearer abc", f"Bearer {MASK}"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", MASK),
    ],
)
def test_values_that_look_like_secrets(value: str, shown: str) -> None:
    assert masked("OTHER", value) == shown


@pytest.mark.parametrize(
    "value",
    [
        "/usr/lib/x86_64-linux-gnu:/nix/store/0c0d8k3v5q9x7w2n1m4j6h8g0f2d4s6a-glibc/lib",
        "GPU-8a56a4bc-e184-a047-2620-be19fdf913d5,1,2",
        "expandable_segments:True,max_split_size_mb:512",
        "node[001-004]",
        "ip-10-0-0-12.us-west-2.compute.internal",
        "http://localhost:8080/path",
        "cuda>=12.4 brand=tesla,driver>=470",
        "1234567890123456789012",
        "C.UTF-8",
    ],
)
def test_values_that_are_no_secrets(value: str) -> None:
    assert masked("OTHER", value) == value


@given(st.text(max_size=40), st.text(max_size=200))
def test_masking_never_fails_and_is_idempotent(name: str, value: str) -> None:
    once = masked(name, value)
    assert masked(name, once) == once

"""`topsmon attach`: what it refuses and why, and how the recorder gets in where it can."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from topsmon.training import attach
from topsmon.training.recorder.process import status_of

UID = 4711
PYTHON_3_14 = shutil.which("python3.14") or next(
    (str(path) for path in (Path.home() / ".pyenv/versions").glob("3.14*/bin/python3.14")), None
)


@pytest.fixture
def proc(tmp_path: Path) -> Callable[..., Path]:
    """Make a /proc with one process, number 42, owned by us, and what asks, "self"."""

    def make(
        exe: str = "/usr/bin/python3.14",
        *,
        command: str = "python train.py",
        maps: str = "",
        environment: dict[str, str] | None = None,
        mount: str = "mnt:[1]",
        scope: int | None = None,
        capabilities: int = 0,
        state: str = "S",
    ) -> Path:
        root = tmp_path / "proc"
        for name, namespace in (("42", mount), ("self", "mnt:[1]")):
            (root / name / "ns").mkdir(parents=True)
            (root / name / "ns" / "mnt").symlink_to(namespace)
        here = root / "42"
        here.joinpath("exe").symlink_to(exe)
        here.joinpath("cmdline").write_bytes(b"\0".join(command.encode().split()) + b"\0")
        here.joinpath("maps").write_text(maps)
        pairs = (environment or {"HOME": "/root"}).items()
        here.joinpath("environ").write_bytes(
            b"\0".join(f"{name}={value}".encode() for name, value in pairs) + b"\0"
        )
        here.joinpath("stat").write_text(f"42 (a) b) {state} 1 " + "0 " * 17 + "777 0 0\n")
        root.joinpath("self", "status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
        if scope is not None:
            yama = root / "sys" / "kernel" / "yama"
            yama.mkdir(parents=True)
            yama.joinpath("ptrace_scope").write_text(f"{scope}\n")
        return root

    return make


def look(proc: Path, pid: int = 42) -> attach.Target:
    return attach.look_at(pid, proc=proc, uid=os.getuid())


def test_a_python_that_can_be_entered(proc) -> None:
    target = look(proc(environment={"TOPSMON_DIR": "/shared"}))
    assert (target.pid, target.version, target.command) == (42, (3, 14), "python train.py")
    assert target.environment == {"TOPSMON_DIR": "/shared"}
    assert target.process_started == 777


@pytest.mark.parametrize("exe", ["/opt/python3.15", "/opt/python3.14t", "/opt/python3.20"])
def test_versions_to_come(proc, exe: str) -> None:
    assert look(proc(exe)).version >= (3, 14)


def test_the_version_of_a_plain_name_is_that_of_its_library(proc) -> None:
    maps = "7f00-7f01 r-xp 0 0 0 /usr/lib/libpython3.14.so.1.0\n"
    assert look(proc("/opt/conda/bin/python", maps=maps)).version == (3, 14)


def test_a_program_that_was_replaced_is_still_run(proc) -> None:
    target = look(proc("/opt/gone/python3.14 (deleted)"))
    assert target.version == (3, 14)
    assert target.program.endswith("/42/exe")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"exe": "/usr/bin/python3.11"}, ["Python 3.11", "3.14", "topsmon run", "topsmon.watch()"]),
        ({"exe": "/usr/bin/python2.7"}, ["Python 2.7", "py-spy dump --nonblocking --pid 42"]),
        ({"exe": "/usr/bin/cat"}, ["cat is not Python"]),
        ({"exe": "/usr/bin/python3.14-config"}, ["is not Python"]),
        ({"exe": "/opt/blender", "maps": "/x/libpython3.14.so.1.0"}, ["blender", "3.14 inside"]),
        ({"environment": {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}}, ["disabled"]),
        ({"environment": {"TOPSMON_OFF": "1"}}, ["TOPSMON_OFF=1"]),
        ({"command": "python -X disable_remote_debug train.py"}, ["disabled"]),
        ({"mount": "mnt:[2]"}, ["another container", "docker exec"]),
        ({"scope": 1}, ["ptrace_scope is 1", "sysctl kernel.yama.ptrace_scope=0"]),
        ({"scope": 3, "capabilities": 1 << 19}, ["ptrace_scope is 3"]),
        ({"state": "Z"}, ["no such process"]),
    ],
)
def test_what_is_refused(proc, made: dict, words: list[str]) -> None:
    with pytest.raises(attach.AttachError) as refused:
        look(proc(**made))
    assert str(refused.value).startswith("PID 42: ")
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_the_right_to_trace_overrides_a_restricted_scope(proc) -> None:
    assert look(proc(scope=1, capabilities=1 << 19)).pid == 42


def test_a_process_of_somebody_else(proc) -> None:
    with pytest.raises(attach.AttachError, match=r"belongs to .*sudo -u .* topsmon attach 42"):
        attach.look_at(42, proc=proc(), uid=UID)


def test_no_such_process() -> None:
    with pytest.raises(attach.AttachError, match=r"^PID 4194305: no such process$"):
        attach.look_at(4194305)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def target(sleeper, recordings: Path, tmp_path: Path) -> Callable[[str], attach.Target]:
    """A target that is entered by a shell script in the place of its Python."""

    def make(script: str) -> attach.Target:
        program = tmp_path / "python3.14"
        program.write_text(f"#!/bin/sh\nfor last; do :; done\nPYTHON={sys.executable}\n{script}\n")
        program.chmod(0o700)
        started = status_of(sleeper.pid)
        assert started is not None
        place = {"TOPSMON_DIR": str(recordings)}
        return attach.Target(sleeper.pid, "x", "me", str(program), (3, 14), place, started[1])

    return make


@pytest.mark.real
def test_the_entry_answers_and_leaves_nothing(target, recordings: Path) -> None:
    one = target('exec $PYTHON "$last"')
    answer = attach.enter(one)
    assert attach.answer_of(one, answer, 60) == attach.SUCCESS
    assert list(recordings.iterdir()) == []


@pytest.mark.real
def test_the_script_is_for_its_user_alone(target, recordings: Path) -> None:
    one = target("exit 0")
    answer = attach.enter(one)
    modes = {path.suffix: path.stat().st_mode & 0o777 for path in recordings.iterdir()}
    assert modes == {".py": 0o600, ".answer": 0o600}
    assert attach.answer_of(one, answer, 0) is None
    (script,) = recordings.iterdir()
    # The blocked call returns late: the script runs, and nobody waits for its answer.
    subprocess.run([sys.executable, script], check=True)
    assert list(recordings.iterdir()) == []


@pytest.mark.real
def test_what_the_interpreter_says_is_told(target, recordings: Path) -> None:
    one = target('echo "PermissionError: [Errno 1] Operation not permitted" >&2; exit 1')
    with pytest.raises(attach.AttachError, match=r"not permitted; in a container .*SYS_PTRACE"):
        attach.enter(one)
    assert list(recordings.iterdir()) == []


@pytest.mark.real
def test_a_target_that_ends_is_not_waited_for(target, sleeper) -> None:
    one = target("exit 0")
    answer = attach.enter(one)
    sleeper.kill()
    with pytest.raises(attach.AttachError, match="has ended"):
        attach.answer_of(one, answer, 60)


def test_a_folder_that_is_not_trusted(target, recordings: Path) -> None:
    recordings.chmod(0o755)
    with pytest.raises(attach.AttachError, match="0700"):
        attach.enter(target("exit 0"))


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topsmon", "attach", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.real
def test_the_command_refuses_in_one_line(sleeper) -> None:
    for words in (["4194305"], [str(sleeper.pid)]):
        result = command(*words)
        assert result.returncode == 3
        assert len(result.stderr.splitlines()) == 1
        assert f"PID {words[0]}" in result.stderr
    assert command("0").returncode == 64


@pytest.mark.real
@pytest.mark.skipif(PYTHON_3_14 is None, reason="no Python 3.14 here")
def test_a_running_python_3_14(recordings: Path) -> None:
    assert PYTHON_3_14 is not None
    code = (
        "import sys, time\nprint('go', flush=True)\n"
        "end = time.monotonic() + 100\n"
        "while '_topsmon_boot' not in sys.modules and time.monotonic() < end:\n"
        "    time.sleep(0.01)\n"
        "print('_topsmon_boot' in sys.modules, sys.path[0], flush=True)\n"
    )
    process = subprocess.Popen([PYTHON_3_14, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        refused = command(str(process.pid))
        assert "--yes" in refused.stderr
        assert "sys.remote_exec" in refused.stdout
        result = command(str(process.pid), "--yes")
        assert "the recorder is in" in result.stdout, result.stderr
        assert process.stdout.readline() == "True \n"
    finally:
        process.kill()
        process.wait()
    assert list(recordings.iterdir()) == []

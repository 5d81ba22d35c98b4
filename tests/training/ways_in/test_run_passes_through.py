"""`topsmon run` as a shell sees it: exit code, signals, terminal, descriptors, job control."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from terminal import PATIENCE_SECONDS, Terminal, gone

from topsmon.training.foreground import WITNESS_SECONDS

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("recordings")]

RUN = [sys.executable, "-m", "topsmon", "run", "--no-summary"]
COUNTING = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
    signal.signal(number, lambda n, f: got.append(n))
print("ready", os.getpid(), flush=True)
end = time.monotonic() + 100
while not got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.4)
print(*[signal.Signals(n).name for n in got], flush=True)
"""


def run(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words], capture_output=True, text=True, check=False, timeout=120, **options
    )


@pytest.mark.parametrize("code", [0, 1, 3, 64, 126, 127, 255])
def test_exit_codes(code: int) -> None:
    result = run("--", "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (result.returncode, result.stdout, result.stderr) == (code, "out\n", "err\n")


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "INT", "USR1", "ABRT", "PIPE"])
def test_the_death_by_a_signal_is_ours_too(name: str) -> None:
    result = run("sh", "-c", f"kill -{name} $$")
    assert result.returncode == -getattr(signal, f"SIG{name}")
    assert result.stderr == ""


def test_what_cannot_be_started(tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("pass\n")
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o700)
    for words, code, part in (
        (["no-such-command-x"], 127, "no-such-command-x: command not found"),
        ([str(tmp_path / "nothing")], 127, "no such file"),
        ([str(plain)], 126, "not executable"),
        ([str(tmp_path)], 126, "is a folder"),
        ([str(broken)], 126, "#!"),
    ):
        result = run(*words)
        assert result.returncode == code
        assert part in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_script_without_a_first_line_runs_by_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "got $1"\nexit 4\n')
    script.chmod(0o700)
    result = run(str(script), "it")
    assert (result.stdout, result.returncode) == ("got it\n", 4)


@pytest.mark.parametrize("dashes", [[], ["--"]], ids=["plain", "dashes"])
def test_the_commands_words_are_its_own(dashes: list[str]) -> None:
    words = ["--lr", "1", "--", "--flops", "-x", "", "--no-summary", "a b"]
    code = "import sys; print(sys.argv[1:])"
    assert run(*dashes, sys.executable, "-c", code, *words).stdout == f"{words}\n"


def test_streams_and_other_descriptors_reach_the_command() -> None:
    read, write = os.pipe()
    os.write(write, b"through a descriptor")
    os.close(write)
    code = f"import os, sys; print(sys.stdin.read(), os.read({read}, 99).decode())"
    result = run(sys.executable, "-c", code, input="from stdin,", pass_fds=[read])
    os.close(read)
    assert result.stdout == "from stdin, through a descriptor\n"


def test_the_command_starts_with_the_signals_that_a_shell_gives() -> None:
    code = (
        "import signal\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print([int(line.split()[1], 16) & 0x7FFFFFFF for line in open('/proc/self/status')"
        " if line.startswith('SigIgn')])"
    )
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run(sys.executable, "-c", code).stdout == plain.stdout


@pytest.fixture
def counting() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the counting command under `topsmon run` as the leader of a group of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(count: int = 1) -> subprocess.Popen[str] | list[subprocess.Popen[str]]:
        for _ in range(count):
            process = subprocess.Popen(
                [*RUN, sys.executable, "-c", COUNTING],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            started.append(process)
        for process in started[-count:]:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready")
        return started[-1] if count == 1 else started[-count:]

    yield start
    for process in started:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


def test_a_signal_for_us_alone_is_passed_on_once(counting) -> None:
    names = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT")
    processes = counting(len(names))
    for name, process in zip(names, processes, strict=True):
        process.send_signal(signal.Signals[name])
    for name, process in zip(names, processes, strict=True):
        assert process.stdout.read() == f"{name}\n"
        assert process.wait(60) == 0


def test_a_signal_for_the_whole_group_comes_once(counting) -> None:
    names = ("SIGTERM", "SIGUSR1", "SIGINT")
    processes = counting(len(names))
    for name, process in zip(names, processes, strict=True):
        os.killpg(process.pid, signal.Signals[name])
    for name, process in zip(names, processes, strict=True):
        assert process.stdout.read() == f"{name}\n"
        assert process.wait(60) == 0


def test_a_signal_for_us_and_then_for_the_group_comes_once(counting) -> None:
    """As timeout(1) sends it."""
    for _ in range(10):
        process = counting()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        os.killpg(process.pid, signal.SIGTERM)
        took = time.monotonic() - began
        heard = process.stdout.read()
        if took < WITNESS_SECONDS / 2:
            break  # else this process was held up in between: then they may count as two
    assert heard == "SIGTERM\n"


def test_a_witness_that_gets_no_processor_still_counts(counting) -> None:
    process = counting()
    (witness,) = [c for c in psutil.Process(process.pid).children() if "run" in c.cmdline()]
    witness.suspend()
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout.read() == "SIGTERM\n"


def test_without_its_witness_signals_still_pass(counting) -> None:
    process = counting()
    witness = [c for c in psutil.Process(process.pid).children() if "run" in c.cmdline()]
    assert len(witness) == 1
    witness[0].kill()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == "SIGTERM\n"


def test_killed_itself_it_leaves_no_witness(counting) -> None:
    process = counting()
    (witness,) = [c for c in psutil.Process(process.pid).children() if "run" in c.cmdline()]
    (command,) = [c for c in psutil.Process(process.pid).children() if c != witness]
    process.kill()
    process.wait()
    assert not gone([witness])
    assert command.is_running()  # as a command lives on whose shell was killed
    command.kill()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    environment = {"PS1": "$ ", "HOME": str(tmp_path), "HISTFILE": ""}
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], environment=environment)
    try:
        terminal.wait_for("$")
        yield terminal
    finally:
        terminal.close()


def typed(*words: str) -> str:
    return " ".join((*RUN, *words)) + "\r"


def test_ctrl_c(shell: Terminal) -> None:
    shell.send(typed("sh", "-c", "'echo go; exec sleep 60'"))
    shell.wait_for("\ngo")
    shell.send("\x03")
    shell.send("echo status=$?\r")
    shell.wait_for("status=130")


def test_ctrl_z_and_back(shell: Terminal, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    waiting = f"while [ ! -e {flag} ]; do sleep 0.1; done"
    shell.send(typed("sh", "-c", f"'echo go; {waiting}; echo do''ne'"))
    shell.wait_for("\ngo")
    shell.send("\x1a")
    shell.wait_for("Stopped")
    flag.touch()
    shell.send("fg\r")
    shell.wait_for("done")
    shell.send("echo status=$?\r")
    shell.wait_for("status=0")


def test_a_command_that_stops_itself_gives_the_terminal_back(shell: Terminal) -> None:
    shell.send(typed("sh", "-c", "'echo go; kill -TSTP $$; echo do''ne'"))
    shell.wait_for("Stopped")
    shell.send("fg\r")
    shell.wait_for("done")


def test_the_terminal_and_its_size_are_the_commands(shell: Terminal, tmp_path: Path) -> None:
    script = tmp_path / "size.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "size = lambda *_: print(tuple(os.get_terminal_size()), os.tcgetpgrp(0) == os.getpgrp())\n"
        "signal.signal(signal.SIGWINCH, size)\n"
        "size()\n"
        "print('said', input(), all(os.isatty(n) for n in range(3)))\n"
    )
    shell.send(typed(sys.executable, str(script)))
    shell.wait_for("(120, 40) True")
    shell.set_size(100, 30)
    shell.wait_for("(100, 30) True")
    shell.send("hello\r")
    shell.wait_for("said hello True")


def test_hanging_up_the_terminal_ends_both(tmp_path: Path) -> None:
    terminal = Terminal([*RUN, "sleep", "60"])
    try:
        children = terminal.wait_for_children(2)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "sleep" not in [child.name() for child in children]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        terminal.hang_up()
        assert terminal.process.wait(PATIENCE_SECONDS) == -signal.SIGHUP
        assert not gone(children)
    finally:
        if terminal.process.poll() is None:
            terminal.close()

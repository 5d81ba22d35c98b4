"""Run one command as if the shell had started it itself: terminal, signals, job control, status.

The command shares our process group, so that the terminal's Ctrl-C, Ctrl-Z and window size reach it
as always. A signal that was sent to us alone is passed on; one that was sent to the whole group, or
to every process of a job, is not, since the command has had it. To tell the two apart a witness, a
forked child that only waits, notes what reaches it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PASSED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
    }
)
STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
WITNESS_SECONDS = 0.1
"""The witness has noted a signal of the whole group within this; then it was for us alone."""
LOADED_SECONDS = 5.0
"""The same where the witness is about to note something, and has had no processor yet."""
NOTE_SECONDS = 0.5
"""A note that old belongs to an earlier signal. Until then the same signal for us alone is part of
it: timeout(1) signals first the process that it has started and then that one's group."""
LOOK_SECONDS = 0.02
STOP_SECONDS = 0.05
NOT_FOUND, NOT_EXECUTABLE = 127, 126
PR_SET_PDEATHSIG = 1


class StartError(Exception):
    """A command that cannot be started: one line, and the exit code that a shell would give."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Ended:
    """How a process ended: by exit code, or by a signal."""

    exit_code: int | None = None
    signal: int | None = None

    @property
    def code(self) -> int:
        """The exit code as a shell tells it: 128 + N for signal N."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0

    @property
    def words(self) -> str:
        """In words: "exit code 3", "signal SIGKILL"."""
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(self.signal).name}"
        except ValueError:
            return f"signal {self.signal}"


@dataclass(frozen=True)
class Program:
    """A command's words and the file that they name."""

    words: tuple[str, ...]
    path: str


def find(words: Sequence[str]) -> Program:
    """Look a command up as a shell does. StartError (127, 126) if it is not there or no program."""
    name = words[0]
    path = shutil.which(name)
    if path is not None:
        return Program(tuple(words), path)
    if "/" not in name:
        places = os.get_exec_path()
        name = next((f"{place}/{name}" for place in places if Path(place, name).is_file()), name)
        if "/" not in name:
            raise StartError(f"{name}: command not found", NOT_FOUND)
    if not Path(name).exists():
        raise StartError(f"{name}: no such file", NOT_FOUND)
    reason = "is a folder" if Path(name).is_dir() else "not executable (chmod +x makes it so)"
    raise StartError(f"{name}: {reason}", NOT_EXECUTABLE)


def run(
    program: Program,
    environment: Mapping[str, str],
    *,
    look: Callable[[int], None] | None = None,
    look_seconds: float = 30.0,
) -> tuple[int, Ended]:
    """Run a command to its end; return its pid and how it ended. StartError if it does not start.

    `look(pid)` is called once, after `look_seconds`, if the command still runs then.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would cost the status
    waited = PASSED | {signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        witness = _Witness.start()
        try:
            pid = _spawn(program, environment, mask)
            return pid, _wait(pid, witness, waited, look, look_seconds)
        finally:
            witness.stop()
    finally:
        while signal.sigtimedwait(waited, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_like(ended: Ended) -> int:
    """End this process by the signal that ended the command; else return the exit code."""
    if ended.signal is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has dumped its own core
        with contextlib.suppress(OSError, ValueError):  # SIGKILL takes no handler
            signal.signal(ended.signal, signal.SIG_DFL)
        os.kill(os.getpid(), ended.signal)
    return ended.code


def _spawn(
    program: Program, environment: Mapping[str, str], mask: set[signal.Signals | int]
) -> int:
    """Start it with the descriptors, the mask and the dispositions that we were started with."""

    def start(path: str, words: tuple[str, ...]) -> int:
        python_ignores = (signal.SIGPIPE, signal.SIGXFSZ)
        return os.posix_spawn(path, words, environment, setsigmask=mask, setsigdef=python_ignores)

    try:
        try:
            return start(program.path, program.words)
        except OSError as error:
            if error.errno != errno.ENOEXEC or not _is_text(program.path):
                raise
            # A script without "#!": the shell's rule, which exec does not know.
            return start("/bin/sh", ("sh", program.path, *program.words[1:]))
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ENOENT:  # the file is there: it was looked up
            reason = 'the interpreter that its first line ("#!") names is missing'
        raise StartError(f"{program.path}: {reason}", NOT_EXECUTABLE) from error


def _is_text(path: str) -> bool:
    with Path(path).open("rb") as file:
        return b"\0" not in file.read(256)


def _wait(
    pid: int,
    witness: _Witness,
    waited: frozenset[signal.Signals],
    look: Callable[[int], None] | None,
    look_seconds: float,
) -> Ended:
    look_at = time.monotonic() + look_seconds if look is not None else None
    while True:
        changed, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if changed and os.WIFSTOPPED(status):
            _stop_too(pid, os.WSTOPSIG(status))
        elif changed and os.WIFSIGNALED(status):
            return Ended(signal=os.WTERMSIG(status))
        elif changed:
            return Ended(exit_code=os.WEXITSTATUS(status))
        timeout = max(0.0, look_at - time.monotonic()) if look_at is not None else 3600.0
        received = signal.sigtimedwait(waited, timeout)
        if received is None:
            if look is not None and look_at is not None and time.monotonic() >= look_at:
                look_at = None
                look(pid)
        elif received.si_signo != signal.SIGCHLD and not witness.saw(received.si_signo):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, received.si_signo)


def _stop_too(pid: int, number: int) -> None:
    """Stop with a command that has stopped itself, so that the shell takes its terminal back."""
    if number not in STOPS:
        return
    time.sleep(STOP_SECONDS)  # fg continues the whole group: the command may be just behind us
    if not os.waitid(os.P_PID, pid, os.WCONTINUED | os.WNOHANG | os.WNOWAIT):
        os.kill(os.getpid(), signal.SIGSTOP)


@dataclass
class _Witness:
    """The process that notes which signals reach our group, and what it has noted."""

    pid: int
    notes: int
    noted: list[tuple[int, float]] = field(default_factory=list)
    lives: bool = True

    @classmethod
    def start(cls) -> _Witness:
        """Fork it; the signals are blocked already, so none is missed."""
        notes, write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(notes)
            _witness(write, parent)
        os.close(write)
        os.set_blocking(notes, False)
        return cls(pid, notes)

    def saw(self, number: int) -> bool:
        """Tell whether the witness has this signal too."""
        began = time.monotonic()
        while True:
            idle, pending = self._look()  # first: what it notes before it is idle is read below
            self._read()
            if pending >> (number - 1) & 1 or any(noted == number for noted, _ in self.noted):
                return True
            waited = time.monotonic() - began
            if not self.lives or waited > (WITNESS_SECONDS if idle else LOADED_SECONDS):
                return False
            select.select([self.notes], [], [], LOOK_SECONDS)

    def _look(self) -> tuple[bool, int]:
        """Tell whether it only waits, and the mask of the signals that it has yet to take.

        On a loaded machine it gets a processor long after a signal. (True, 0) without /proc.
        """
        try:
            text = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        except OSError:
            return True, 0
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        return fields["State"].startswith("S"), int(fields["ShdPnd"], 16)

    def _read(self) -> None:
        now = time.monotonic()
        self.noted = [note for note in self.noted if now - note[1] < NOTE_SECONDS]
        try:
            read = os.read(self.notes, 256)
        except BlockingIOError:
            return
        self.lives = bool(read)  # killed: from now on every signal is passed on
        self.noted += [(number, now) for number in read]

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.notes)


def _witness(write: int, parent: int) -> None:
    """Note every signal of the group until the parent ends. Never returns."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        while os.getppid() == parent:
            received = signal.sigwaitinfo(PASSED)
            os.write(write, bytes([received.si_signo]))
    finally:
        os._exit(0)

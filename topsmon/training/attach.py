"""Let the recorder into a process that runs already: `sys.remote_exec`, Python 3.14 and newer.

The call must come from a Python of the same version, so the target's own program makes it. See
PEP 768 and "Remote debugging attachment protocol" in Python's documentation.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from topsmon.training.launch import BOOT, OFF
from topsmon.training.recorder import folder
from topsmon.training.recorder.process import status_of

PROC = Path("/proc")
FIRST_VERSION = (3, 14)
ASK_SECONDS = 10.0
PAUSE_SECONDS = 0.05
CAP_SYS_PTRACE = 1 << 19
_NAME = re.compile(r"python(\d+)?(\.(\d+))?t?\Z")
_LIBRARY = re.compile(r"libpython(\d+)\.(\d+)t?\.so")
_ASK_VERSION = "import sys; print(*sys.version_info[:2])"
_CALL = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
INSTEAD = (
    "start it with `topsmon run -- COMMAND`, or put `import topsmon; topsmon.watch()` into the"
    " script; `py-spy dump --nonblocking --pid {pid}` shows where a run hangs"
)
_SCRIPT = """\
def _topsmon_attach():
    import os, sys
    try:
        sys.path.insert(0, {boot!r})
        try:
            import _topsmon_boot
        finally:
            sys.path.remove({boot!r})
        answer = _topsmon_boot.enter("attach") or {success!r}
    except BaseException as error:
        answer = type(error).__name__ + ": " + str(error)
    os.unlink({script!r})
    try:
        with open({answer!r}, "r+") as file:
            file.write(answer)
    except FileNotFoundError:
        pass  # nobody waits any more


_topsmon_attach()
del _topsmon_attach
"""
SUCCESS = "in"


class AttachError(Exception):
    """A process that cannot be entered: one line, why, and what to do."""


@dataclass(frozen=True)
class Target:
    """A Python process. `program` is what runs it, `environment` what it was started with."""

    pid: int
    command: str
    user: str
    program: str
    version: tuple[int, int]
    environment: Mapping[str, str]
    process_started: int


def look_at(pid: int, *, proc: Path = PROC, uid: int | None = None) -> Target:
    """Find out what a process is and whether it can be entered; AttachError if not.

    `uid` is the user who asks, None: this process's.
    """
    status = status_of(pid, str(proc))
    if status is None or status[0] in "ZX":
        raise AttachError(f"PID {pid}: no such process")
    owner = (proc / str(pid)).stat().st_uid
    if owner != (os.geteuid() if uid is None else uid):
        name = _user(owner)
        raise AttachError(
            f"PID {pid}: belongs to {name}, and runs are recorded for their user alone;"
            f" sudo -u {name} topsmon attach {pid}"
        )
    here = proc / str(pid)
    try:
        program = os.readlink(here / "exe")  # noqa: PTH115  the text, with " (deleted)" at its end
        command = (here / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
        maps = (here / "maps").read_text(errors="replace")
        environment = _environment((here / "environ").read_bytes())
    except OSError as error:
        raise AttachError(f"PID {pid}: cannot be looked at: {error.strerror}") from error
    path = program if Path(program).exists() else str(here / "exe")
    version = _version(pid, program.removesuffix(" (deleted)"), path, maps)
    target = Target(
        pid,
        command.decode(errors="replace"),
        _user(owner),
        path,
        version,
        environment,
        status[1],
    )
    _demand_possible(target, proc)
    return target


def _version(pid: int, program: str, path: str, maps: str) -> tuple[int, int]:
    """Major and minor version of the Python that a process is; AttachError if it is none."""
    named = _NAME.match(Path(program).name)
    library = _LIBRARY.search(maps)
    if named is not None and named[3] is not None:
        return int(named[1]), int(named[3])
    if library is not None:
        if named is None:
            raise AttachError(
                f"PID {pid}: {Path(program).name} has Python {library[1]}.{library[2]} inside, but"
                f" is no python program that could enter it; {INSTEAD.format(pid=pid)}"
            )
        return int(library[1]), int(library[2])
    if named is None:
        raise AttachError(f"PID {pid}: {Path(program).name} is not Python")
    major, minor = _ask(path, pid).split()
    return int(major), int(minor)


def _ask(path: str, pid: int) -> str:
    try:
        answer = subprocess.run(
            [path, "-I", "-S", "-c", _ASK_VERSION],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=ASK_SECONDS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise AttachError(f"PID {pid}: {path} does not tell its version: {error}") from error
    if re.fullmatch(r"\d+ \d+\n", answer) is None:
        raise AttachError(f"PID {pid}: {path} does not tell its version")
    return answer


def _demand_possible(target: Target, proc: Path) -> None:
    """AttachError with the first reason why the target cannot be entered."""
    pid = target.pid
    version = f"{target.version[0]}.{target.version[1]}"
    if target.version < FIRST_VERSION:
        raise AttachError(
            f"PID {pid}: Python {version}; only Python 3.14 and newer let anything into a running"
            f" process. Instead: {INSTEAD.format(pid=pid)}"
        )
    if target.environment.get("PYTHON_DISABLE_REMOTE_DEBUG") or re.search(
        r"-X ?disable[-_]remote[-_]debug", target.command
    ):
        raise AttachError(
            f"PID {pid}: was started with remote debugging disabled"
            f" (PYTHON_DISABLE_REMOTE_DEBUG, -X disable_remote_debug); {INSTEAD.format(pid=pid)}"
        )
    if target.environment.get(OFF, "") not in {"", "0"}:
        raise AttachError(f"PID {pid}: was started with {OFF}={target.environment[OFF]}")
    for kind, word in (("mnt", "file system"), ("pid", "process ids"), ("user", "user ids")):
        theirs, ours = _namespace(proc, str(pid), kind), _namespace(proc, "self", kind)
        if theirs != ours and theirs and ours:
            raise AttachError(
                f"PID {pid}: in another container (its own {word}); run topsmon attach in there,"
                " as docker exec or kubectl exec do"
            )
    scope = _number(proc / "sys" / "kernel" / "yama" / "ptrace_scope")
    if scope and (scope >= 3 or not _may_trace_all(proc)):
        raise AttachError(
            f"PID {pid}: the kernel lets no process enter another one (kernel.yama.ptrace_scope"
            f" is {scope}); sudo sysctl kernel.yama.ptrace_scope=0 until the next boot,"
            f" or: {INSTEAD.format(pid=pid)}"
        )


def enter(target: Target) -> Path:
    """Ask the target to run the recorder's entry; return where its answer will lie. AttachError."""
    place = _folder(target)
    stem = f"{place}/attach-{target.pid}-{secrets.token_hex(4)}"
    script, answer = f"{stem}.py", f"{stem}.answer"
    text = _SCRIPT.format(boot=BOOT, script=script, answer=answer, success=SUCCESS)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        for path, content in ((script, text), (answer, "")):
            with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise AttachError(f"{stem}: cannot be written: {error.strerror}") from error
    try:
        _call(target, script)
    except AttachError:
        Path(script).unlink(missing_ok=True)
        Path(answer).unlink(missing_ok=True)
        raise
    return Path(answer)


def _call(target: Target, script: str) -> None:
    try:
        result = subprocess.run(
            [target.program, "-I", "-S", "-c", _CALL, str(target.pid), script],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise AttachError(f"PID {target.pid}: {target.program} cannot be run: {error}") from error
    if result.returncode == 0:
        return
    words = result.stderr.strip().splitlines()[-1:] or [f"exit code {result.returncode}"]
    hint = ""
    if "PermissionError" in words[0] or "not permitted" in words[0]:
        hint = "; in a container it needs --cap-add=SYS_PTRACE"
    raise AttachError(f"PID {target.pid}: cannot be entered: {words[0]}{hint}")


def answer_of(target: Target, answer: Path, seconds: float) -> str | None:
    """Wait for the entry's answer: `SUCCESS`, or what went wrong; None: not yet.

    AttachError if the process ends meanwhile. The entry may still be made after this has given up.
    """
    deadline = time.monotonic() + seconds
    try:
        while True:
            words = answer.read_text(encoding="utf-8", errors="replace")
            if words:
                return words
            demand_alive(target)
            if time.monotonic() >= deadline:
                return None
            time.sleep(PAUSE_SECONDS)
    finally:
        answer.unlink(missing_ok=True)


def demand_alive(target: Target) -> None:
    """AttachError if the process has ended."""
    status = status_of(target.pid)
    if status is None or status[0] in "ZX" or status[1] != target.process_started:
        raise AttachError(f"PID {target.pid}: has ended")


def _folder(target: Target) -> str:
    """The first usable folder of the target's own recordings."""
    reasons = []
    for place in folder.candidates(target.environment, os.geteuid()):
        try:
            folder.make(place)
            os.close(folder.open_checked(place))
        except folder.FolderError as error:
            reasons.append(str(error))
            continue
        return place
    raise AttachError("no folder for the recording: " + "; ".join(reasons))


def _environment(data: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _namespace(proc: Path, pid: str, kind: str) -> str:
    try:
        return os.readlink(proc / pid / "ns" / kind)  # noqa: PTH115  a name, not a path
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _may_trace_all(proc: Path) -> bool:
    """True if this process has CAP_SYS_PTRACE."""
    try:
        status = (proc / "self" / "status").read_text()
    except OSError:
        return False
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) & CAP_SYS_PTRACE)

"""Watching training runs: where their ring files go, and whether the recorder gets in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from topsmon.devices import host
from topsmon.doctor.model import Patient, Result
from topsmon.training import launch
from topsmon.training.recorder import folder as folders

RING_BYTES = 2 << 20
BOOT_SECONDS = 20.0
_ASK = "import sys; print('_topsmon_boot' in sys.modules)"


def folder(patient: Patient) -> Iterator[Result]:
    """The folder of ring files, and its room."""
    refused: list[str] = []
    for path in folders.candidates(patient.environment, folders.user_id()):
        try:
            folders.make(path)
            handle = folders.open_checked(path)
        except folders.FolderError as error:
            refused.append(str(error))
            continue
        try:
            space = os.fstatvfs(handle)
        finally:
            os.close(handle)
        free = space.f_bavail * space.f_frsize
        yield Result(
            id="run-folder",
            state="ok" if free >= RING_BYTES else "fail",
            finding=f"{path}, {free >> 20} MiB free" + "".join(f"; not {why}" for why in refused),
            remedy=""
            if free >= RING_BYTES
            else f"A run needs 2 MiB there; or set {folders.FOLDER_VARIABLE}.",
        )
        return
    yield Result(
        id="run-folder",
        state="fail",
        finding="training runs cannot be recorded: " + "; ".join(refused),
        remedy=f"Set {folders.FOLDER_VARIABLE} to a folder of yours with mode 0700.",
    )


def way_in(patient: Patient) -> Iterator[Result]:
    """Whether `topsmon run` gets into a Python of this environment."""
    python = patient.python or sys.executable
    try:
        done = subprocess.run(
            [python, "-c", _ASK],
            env=launch.environment(patient.environment, "doctor", launch.Options()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BOOT_SECONDS,
            check=False,
        )
        inside = done.stdout.strip().endswith(b"True")
    except (OSError, subprocess.TimeoutExpired):
        inside = False
    yield Result(
        id="recorder",
        state="ok" if inside else "warn",
        finding=f"gets into {python}" if inside else f"does not get into {python}",
        remedy="" if inside else "Use `import topsmon; topsmon.watch()` in the script.",
    )


def attach(patient: Patient) -> Iterator[Result]:
    """Whether a running process can be entered."""
    if not hasattr(sys, "remote_exec"):
        yield Result(
            id="attach",
            state="n/a",
            finding="topsmon attach needs Python 3.14 in the run; topsmon run needs nothing",
        )
        return
    scope = host.read_number(patient.root / "proc/sys/kernel/yama/ptrace_scope")
    closed = scope is not None and scope > 0 and os.geteuid() != 0
    yield Result(
        id="attach",
        state="warn" if closed else "ok",
        finding=f"ptrace_scope is {scope}: other processes cannot be entered"
        if closed
        else "running processes of yours can be entered",
        remedy="sudo sysctl kernel.yama.ptrace_scope=0, or start the run with topsmon run."
        if closed
        else "",
    )

"""Processes of a launch that have torch but not the recorder, while they run."""

from __future__ import annotations

from pathlib import Path

import psutil

from topsmon.training.launch import BOOT, OFF, python_flag

_TORCH = "libtorch"


def reason(pid: int) -> str | None:
    """Say which process under `pid` uses torch and cannot have the recorder, and why."""
    try:
        command = psutil.Process(pid)
        processes = [command, *command.children(recursive=True)]
    except psutil.Error:
        return None
    reasons = (_of(process) for process in processes)
    return next((found for found in reasons if found is not None), None)


def _of(process: psutil.Process) -> str | None:
    """The reason of one process; None if it has ended, too."""
    try:
        why = _why(process) if _has_torch(process.pid) else None
    except (psutil.Error, OSError):
        return None
    return f"process {process.pid} uses torch, but {why}" if why is not None else None


def _why(process: psutil.Process) -> str | None:
    flag = python_flag(process.cmdline())
    if flag is not None:
        return f"Python's {flag} keeps the recorder out"
    environment = process.environ()
    if environment.get(OFF, "") not in {"", "0"}:
        return f"{OFF}={environment[OFF]} keeps the recorder out"
    if BOOT not in environment.get("PYTHONPATH", "").split(":"):
        return "what started it has not passed PYTHONPATH on"
    return None


def _has_torch(pid: int) -> bool:
    return _TORCH in Path(f"/proc/{pid}/maps").read_text(errors="replace")

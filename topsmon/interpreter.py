"""Find a Python that has torch for the probers: ours, or that of the user's training environment.

Order: the one asked for, our own, then the first of $VIRTUAL_ENV, $CONDA_PREFIX and `python3` on
PATH that has torch. Nothing is imported here: each candidate is asked in a child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ASK_SECONDS = 10.0
_ANSWER = b"torch is here"
_QUESTION = (
    f"import importlib.util; print(importlib.util.find_spec('torch') and '{_ANSWER.decode()}')"
)

INSTALL_HINT = (
    "install torch beside topsmon (CPU build: pip install torch "
    "--index-url https://download.pytorch.org/whl/cpu) or name an interpreter with --python PATH"
)


@dataclass(frozen=True)
class Interpreter:
    """`path` of a Python with torch, or None and the `problem` in words."""

    path: str | None
    problem: str = ""


def own_has_torch() -> bool:
    """True when this interpreter can find torch (it is not imported)."""
    with contextlib.suppress(ValueError, ImportError):
        return importlib.util.find_spec("torch") is not None
    return False


def candidates(environment: Mapping[str, str]) -> list[str]:
    """Interpreters to ask, in order, without repeats; those that do not exist are left out."""
    paths = [
        str(Path(environment[variable]) / "bin" / "python")
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if environment.get(variable)
    ]
    on_path = shutil.which("python3", path=environment.get("PATH", os.defpath))
    if on_path:
        paths.append(on_path)
    own = os.path.realpath(sys.executable)
    unique = dict.fromkeys(path for path in paths if Path(path).exists())
    return [path for path in unique if os.path.realpath(path) != own or path != sys.executable]


async def find(asked: str | None, environment: Mapping[str, str]) -> Interpreter:
    """Choose the interpreter for the probers."""
    if asked is not None:
        resolved = shutil.which(asked)
        if resolved is None:
            return Interpreter(None, f"--python {asked}: no such program")
        if await _has_torch(resolved):
            return Interpreter(resolved)
        return Interpreter(None, f"--python {asked}: no Python, or one without torch")
    if own_has_torch():
        return Interpreter(sys.executable)
    for path in candidates(environment):
        if await _has_torch(path):
            return Interpreter(path)
    return Interpreter(None, f"no Python with torch found: {INSTALL_HINT}")


async def _has_torch(path: str) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(
            path,
            "-c",
            _QUESTION,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        answer, _ = await asyncio.wait_for(process.communicate(), ASK_SECONDS)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return False
    return answer.strip() == _ANSWER

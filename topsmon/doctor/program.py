"""topsmon itself: its Python, its libraries, its settings, where it keeps things."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

import topsmon
from topsmon.doctor.model import Patient, Result

LIBRARIES = ("click", "msgspec", "textual", "psutil", "nvidia-ml-py")
_REAL_BINDING = b"_nvmlGetFunctionPointer"
"""A function that nvidia-ml-py has and the packages that have taken its module's name lack."""


def python(patient: Patient) -> Iterator[Result]:
    """The interpreter, and the versions of what topsmon is built on."""
    del patient
    versions = {name: _version(name) for name in LIBRARIES}
    missing = [name for name, version in versions.items() if version is None]
    known = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield Result(
        id="python",
        state="warn" if missing else "ok",
        finding=f"topsmon {topsmon.__version__} on Python {platform.python_version()} "
        f"({sys.executable}); {known}"
        + (f"; not installed: {', '.join(missing)}" if missing else ""),
        remedy=f"pip install {' '.join(missing)}" if missing else "",
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def binding(patient: Patient) -> Iterator[Result]:
    """Whether the module `pynvml` is NVIDIA's: other packages have used the same name."""
    del patient
    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        yield Result(
            id="binding",
            state="fail",
            finding="no module pynvml: GPUs cannot be read",
            remedy="pip install nvidia-ml-py",
        )
        return
    try:
        real = _REAL_BINDING in Path(spec.origin).read_bytes()
    except OSError as error:
        yield Result(
            id="binding",
            state="fail",
            finding=f"{spec.origin}: {error.strerror}",
            remedy=_REINSTALL,
        )
        return
    yield Result(
        id="binding",
        state="ok" if real else "fail",
        finding=f"pynvml is nvidia-ml-py's ({spec.origin})"
        if real
        else f"pynvml is another package's, not nvidia-ml-py's ({spec.origin})",
        remedy="" if real else _REINSTALL,
    )


_REINSTALL = "pip uninstall -y pynvml nvidia-ml-py && pip install nvidia-ml-py"


def settings(patient: Patient) -> Iterator[Result]:
    """The file of defaults. A bad one ends any command before this check, with its own message."""
    del patient
    path = platformdirs.user_config_path("topsmon") / "config.toml"
    yield Result(
        id="settings",
        state="ok" if path.is_file() else "n/a",
        finding=f"{path} is read" if path.is_file() else f"no {path}: defaults",
    )


def state_folder(patient: Patient) -> Iterator[Result]:
    """Whether rates and snapshots can be kept."""
    del patient
    path = platformdirs.user_state_path("topsmon")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        yield Result(
            id="state-folder",
            state="warn",
            finding=f"{path} cannot be written: {error.strerror}: measured rates are not kept",
            remedy="Set XDG_STATE_HOME to a folder of yours with some free space.",
        )
        return
    yield Result(id="state-folder", state="ok", finding=f"{path} can be written")

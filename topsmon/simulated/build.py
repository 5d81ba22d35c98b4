"""Builds the simulated driver library with the system's C compiler and prepares a scenario."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from topsmon.simulated import scenario as scenarios
from topsmon.simulated import table
from topsmon.simulated.values import SimulationError

LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=c11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}")
LINK = ("-lm", "-lpthread")
BUILD_SECONDS = 60.0


def prepare(name: str, directory: Path, *, one_look: bool = False) -> dict[str, str]:
    """Return the environment in which NVML is the simulated driver with scenario `name`.

    `name` is a shipped scenario or a path ending in .json. Library and table are kept in
    `directory` and used again while their content stays the same. Scenario time starts now at 0;
    with `one_look` at the time that the scenario names for a single look.
    TOPSMON_SIMULATED_ROOT is the folder of the files that the scenario's host shows, if any.
    Raises SimulationError: unknown name, wrong file, no C compiler, compiler error.
    """
    scenario = scenarios.load(name)
    content = "".join(f"{line}\n" for line in table.lines(scenario)).encode("ascii")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        library = _broken_library(directory)
        if scenario.library == "driver":
            library = build(directory, scenario.driver.symbols)
        path = directory / f"{scenario.name}-{hashlib.sha256(content).hexdigest()[:12]}.table"
        if not path.exists():
            table.replace(path, content)
        root = write_files(scenario.files, directory)
    except OSError as error:
        raise SimulationError(f"cannot write to {directory}: {error.strerror}") from None
    inherited = os.environ.get("LD_LIBRARY_PATH")
    started = scenario.look_seconds if one_look else 0.0
    return {
        **scenario.environment,
        **({"TOPSMON_SIMULATED_ROOT": str(root)} if scenario.files else {}),
        "LD_LIBRARY_PATH": f"{library}{os.pathsep}{inherited}" if inherited else str(library),
        "TOPSMON_SIMULATED": scenario.name,
        "TOPSMON_SIMULATED_SCENARIO": str(scenarios.find(name).resolve()),
        "TOPSMON_SIMULATED_TABLE": str(path),
        "TOPSMON_SIMULATED_CLOCK": str(directory / "clock"),
        "TOPSMON_SIMULATED_START": repr(time.monotonic() - started),
    }


def write_files(files: Mapping[str, str], directory: Path) -> Path:
    """Write what the host of a scenario shows of itself below a folder of its own; return that."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode())
    root = directory / f"root-{digest.hexdigest()[:12]}"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            table.replace(path, text.encode())
    return root


def build(directory: Path, symbols: int) -> Path:
    """Return the folder with the library that has the symbols of driver release `symbols`.

    It is built once per content of its sources; several processes may do so at the same time.
    """
    sources = sorted(table.SOURCES.glob("*.c"))
    digest = hashlib.sha256(repr((FLAGS, LINK, symbols)).encode())
    for path in (*sources, *sorted(table.SOURCES.glob("*.h"))):
        digest.update(path.read_bytes())
    folder = directory / f"driver-{symbols}-{digest.hexdigest()[:12]}"
    if (folder / LIBRARY).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as work:
        target = Path(work) / LIBRARY
        _compile([*FLAGS, f"-DDRIVER={symbols}", *map(str, sources), "-o", str(target), *LINK])
        target.replace(folder / LIBRARY)
    return folder


def compiler() -> list[str]:
    """Return the command of the C compiler: $CC, cc, gcc or clang."""
    chosen = shlex.split(os.environ.get("CC", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise SimulationError(
                f"$CC names {chosen[0]!r}, which is not found; unset or correct it"
            )
        return chosen
    for command in ("cc", "gcc", "clang"):
        if shutil.which(command) is not None:
            return [command]
    raise SimulationError(
        "the simulated driver needs a C compiler and there is none: install gcc or clang"
        " (Debian, Ubuntu: apt install gcc), or set CC"
    )


def _compile(arguments: list[str]) -> None:
    command = [*compiler(), *arguments]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except subprocess.CalledProcessError as error:
        reason = next(iter(error.stderr.strip().splitlines()), f"exit code {error.returncode}")
        raise SimulationError(f"{command[0]} cannot build the simulated driver: {reason}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SimulationError(f"{command[0]} cannot build the simulated driver: {error}") from None


def _broken_library(directory: Path) -> Path:
    """A file in place of the library that is none, as where no driver is installed."""
    folder = directory / "no-library"
    folder.mkdir(exist_ok=True)
    if not (folder / LIBRARY).exists():
        table.replace(folder / LIBRARY, b"No NVIDIA driver is installed here (simulated).\n")
    return folder

"""Fixtures: the poller on the simulated driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from poller_process import PATIENCE, Environment, Poller, Read, Reading, Simulate

from topsmon.simulated import SimulationError, prepare, scenario, table
from topsmon.simulated.build import compiler

SERVE = Path(__file__).parent / "serve.py"
READ_GPU = Path(__file__).parent / "read_gpu.py"


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        compiler()
    except SimulationError as error:
        pytest.skip(f"no simulated driver: {error}")
    return tmp_path_factory.mktemp("simulated-driver")


@pytest.fixture
def environment(builds: Path, tmp_path: Path) -> Environment:
    """Return a function that prepares a scenario: its folder and the environment of a child."""
    made: list[Path] = []

    def make(wanted: str | dict[str, Any], seconds: float = 0.0) -> tuple[Path, dict[str, str]]:
        folder = tmp_path / f"simulation-{len(made)}"
        folder.mkdir()
        made.append(folder)
        if isinstance(wanted, dict):
            path = folder / "given.json"
            path.write_text(json.dumps(wanted))
            wanted = str(path)
        variables = {**os.environ, **prepare(wanted, builds)}
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            variables.pop(name, None)
        table.write(scenario.load(wanted), folder / "table")
        table.set_clock(folder / "clock", seconds)
        for name in ("table", "clock", "log"):
            variables[f"TOPSMON_SIMULATED_{name.upper()}"] = str(folder / name)
        return folder, variables

    return make


@pytest.fixture
def simulate(environment: Environment) -> Iterator[Simulate]:
    """Return a function that starts a poller on a scenario; `options` go to serve.py."""
    started: list[Poller] = []

    def start(
        wanted: str | dict[str, Any],
        *,
        seconds: float = 0.0,
        variables: dict[str, str] | None = None,
        **options: Any,
    ) -> Poller:
        folder, env = environment(wanted, seconds)
        process = subprocess.Popen(
            [sys.executable, str(SERVE), json.dumps(options)],
            env={**env, **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(Poller(process, folder))
        return started[-1]

    yield start
    for poller in started:
        poller.process.kill()
        poller.process.wait(PATIENCE)
        for pipe in (poller.process.stdin, poller.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session")
def reading_process() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(READ_GPU)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def read(environment: Environment, reading_process: subprocess.Popen[str]) -> Read:
    """Return a function that reads one GPU at scenario times, by `read_gpu.py`."""

    def run(wanted: str | dict[str, Any], seconds: list[float], **options: Any) -> Reading:
        folder, variables = environment(wanted)
        request = {
            "variables": {
                name: value
                for name, value in variables.items()
                if name.startswith("TOPSMON_") or name == "LD_LIBRARY_PATH"
            },
            "folder": str(folder),
            "options": {**options, "seconds": seconds},
        }
        assert reading_process.stdin is not None
        assert reading_process.stdout is not None
        reading_process.stdin.write(f"{json.dumps(request)}\n")
        reading_process.stdin.flush()
        code = int(reading_process.stdout.readline())
        errors = (folder / "errors").read_text()
        assert code == 0, errors
        return Reading.of((folder / "events").read_bytes(), errors, folder)

    return run

"""One build of the simulated driver for all tests; a table, a clock and a log for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from topsmon.simulated import SimulationError, prepare, scenario, table
from topsmon.simulated.build import compiler

READER = Path(__file__).parent / "read_nvml.py"


@dataclass
class Simulation:
    """A scenario with its environment; scenario time stands still at what `clock` says."""

    folder: Path
    environment: dict[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def clock(self, seconds: float) -> None:
        table.set_clock(self.folder / "clock", seconds)

    def change(self, content: dict[str, Any]) -> None:
        table.write(scenario.parse(content, "changed"), self.folder / "table")

    def log(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "log").read_text().splitlines()]

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run Python code that finds the initialised pynvml as `n`."""
        return subprocess.run(
            [sys.executable, "-c", f"import sys, json, pynvml as n\n{code}"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def result(self, code: str) -> Any:
        """What the code has put into `r`."""
        done = self.run(f"{code}\nprint(json.dumps(r))")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def read(self) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, str(READER)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        compiler()
    except SimulationError as error:
        pytest.skip(f"no simulated driver: {error}")
    return tmp_path_factory.mktemp("simulated-driver")


@pytest.fixture
def simulate(builds: Path, tmp_path: Path) -> Iterator[Callable[..., Simulation]]:
    """Return a function that starts a shipped scenario by name, or one given as its content."""
    simulations: list[Simulation] = []

    def start(wanted: str | dict[str, Any], *, seconds: float | None = 0.0) -> Simulation:
        folder = tmp_path / str(len(simulations))
        folder.mkdir()
        if isinstance(wanted, dict):
            path = folder / "given.json"
            path.write_text(json.dumps(wanted))
            wanted = str(path)
        environment = {**os.environ, **prepare(wanted, builds)}
        table.write(scenario.load(wanted), folder / "table")
        environment["TOPSMON_SIMULATED_TABLE"] = str(folder / "table")
        environment["TOPSMON_SIMULATED_CLOCK"] = str(folder / "clock")
        environment["TOPSMON_SIMULATED_LOG"] = str(folder / "log")
        simulations.append(Simulation(folder, environment))
        if seconds is not None:
            simulations[-1].clock(seconds)
        return simulations[-1]

    yield start
    for simulation in simulations:
        for process in simulation.started:
            with process:
                process.kill()

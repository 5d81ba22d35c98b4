"""Scenarios that change while they are read, what their hosts show, and the log of calls."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topsmon.simulated import SimulationError, call_log, prepare
from topsmon.simulated.live import Live

ASK = """
import json, sys, pynvml as n
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1)
for line in sys.stdin:
    try: answer = getattr(n, line.strip())(h)
    except n.NVMLError as e: answer = -e.value
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def reader(builds: Path, tmp_path: Path):
    """A scenario and a function that asks a process which has been reading it all along."""
    children: list[subprocess.Popen[str]] = []

    def start(name: str) -> tuple[Live, Callable[[str], Any]]:
        live = Live(name, builds, tmp_path / "live")
        child = subprocess.Popen(
            [sys.executable, "-c", ASK], env={**live.environment}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        children.append(child)

        def ask(call: str) -> Any:
            child.stdin.write(f"{call}\n")
            child.stdin.flush()
            return json.loads(child.stdout.readline())

        return live, ask

    yield start
    for child in children:
        with child:
            child.kill()


def test_values_faults_and_time_change_under_a_reader(reader) -> None:
    live, ask = reader("h100-8")
    power = "nvmlDeviceGetPowerUsage"
    uuid = ask("nvmlDeviceGetUUID")
    live.set(1, power_watts=333)
    assert ask(power) == 333_000
    live.set(power_watts={"count": [100, 5]})
    assert ask(power) == 333_000, "a single device's value goes before that of all"
    live.fault(power, device=1, code="GpuIsLost", start=2)
    assert ask(power) == 333_000
    live.advance(2)
    assert ask(power) == -15
    live.heal("nvmlDeviceGetName")
    assert ask(power) == -15
    live.heal(power)
    live.set(1, power_watts=None)
    assert ask(power) == -3
    live.set(1, power_watts={"count": [10, 1]})
    live.clock(30)
    assert ask(power) == 40_000
    assert ask("nvmlDeviceGetUUID") == uuid


def test_a_senseless_change_is_refused_and_changes_nothing(reader) -> None:
    live, ask = reader("h100-8")
    live.set(1, power_watts=250)
    for change in (
        lambda: live.set(1, wattage=3),
        lambda: live.fault("nvmlDeviceGetTea", code=3),
        lambda: live.fault("nvmlDeviceGetName"),
        lambda: live.write_file("etc/passwd", ""),
    ):
        with pytest.raises(SimulationError):
            change()
    live.set(1, name="Other")
    assert ask("nvmlDeviceGetPowerUsage") == 250_000
    assert ask("nvmlDeviceGetName") == "Other"


def test_time_that_runs_cannot_be_advanced(builds: Path, tmp_path: Path) -> None:
    live = Live("idle", builds, tmp_path / "live", seconds=None)
    assert not (tmp_path / "live" / "clock").exists()
    with pytest.raises(SimulationError, match="stop it with clock"):
        live.advance(1)
    live.clock(3)
    live.advance(1.5)
    assert live.seconds == 4.5


def test_calls_are_counted_by_device_and_time(reader) -> None:
    live, ask = reader("h100-8")
    ask("nvmlDeviceGetPowerUsage")
    live.clock(5)
    ask("nvmlDeviceGetPowerUsage")
    ask("nvmlDeviceGetName")
    live.clock(6)
    ask("nvmlDeviceGetName")
    calls = live.calls()
    assert calls[0] == call_log.Call(0.0, "nvmlInitWithFlags", call_log.SYSTEM)
    assert call_log.counts(calls, 1) == {
        "nvmlDeviceGetHandleByIndex_v2": 1, "nvmlDeviceGetPowerUsage": 2, "nvmlDeviceGetName": 2,
    }  # fmt: skip
    assert call_log.counts(calls, 1, start=5, end=6) == {
        "nvmlDeviceGetPowerUsage": 1, "nvmlDeviceGetName": 1,
    }  # fmt: skip
    assert call_log.counts(calls, 0) == {}


def test_a_log_that_is_not_there_or_half_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert call_log.read(path) == []
    path.write_text("1.500000 nvmlInit_v2 -1\n2.0000")
    assert call_log.read(path) == [call_log.Call(1.5, "nvmlInit_v2", -1)]


def test_what_the_host_shows_can_change(builds: Path, tmp_path: Path) -> None:
    """A sleeping GPU: its state lies below a root of its own and wakes when the test says so."""
    live = Live("asleep", builds, tmp_path / "live")
    root = Path(live.environment["TOPSMON_SIMULATED_ROOT"])
    state = "sys/bus/pci/devices/0000:01:00.0/power/runtime_status"
    assert (root / state).read_text() == "suspended\n"
    live.write_file(state, "active\n")
    assert (root / state).read_text() == "active\n"
    again = Path(prepare("asleep", builds)["TOPSMON_SIMULATED_ROOT"])
    assert (again / state).read_text() == "suspended\n", "the shared files stay as they were"


def test_variables_of_a_scenario_reach_its_processes(builds: Path) -> None:
    environment = prepare("visible-devices", builds)
    assert environment["CUDA_VISIBLE_DEVICES"].count("GPU-") == 2
    assert "TOPSMON_SIMULATED_ROOT" not in environment
    assert prepare("host-pids", builds)["container"] == "docker"

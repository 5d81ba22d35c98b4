"""A trace that is made into a scenario: topsmon reads the same from it as from what was recorded.

No GPU is needed: what is recorded here is the simulated driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trace_scenario import convert

from topsmon.simulated import SimulationError, prepare, scenario, table

FOLDER = Path(__file__).parent
SECONDS = 8.0
RECORD = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from nvml_trace import record
from topsmon.simulated import table

now = 0.0
def sleep(seconds):
    global now
    now += seconds
    table.set_clock(Path(os.environ["TOPSMON_SIMULATED_CLOCK"]), now)

sleep(0)
trace = record(float(sys.argv[2]), 1.0, clock=lambda: now, sleep=sleep)
print(json.dumps(trace))
"""


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    try:
        prepare("idle", folder)
    except SimulationError as error:
        pytest.skip(str(error))
    return folder


def record(name: str, builds: Path, folder: Path) -> dict[str, Any]:
    """Record a scenario in scenario time; nothing waits."""
    folder.mkdir()
    table.write(scenario.load(name), folder / "table")
    environment = {
        **os.environ,
        **prepare(name, builds),
        "TOPSMON_SIMULATED_TABLE": str(folder / "table"),
        "TOPSMON_SIMULATED_CLOCK": str(folder / "clock"),
    }
    done = subprocess.run(
        [sys.executable, "-c", RECORD, str(FOLDER), str(SECONDS)],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def same(recorded: Any, played: Any) -> bool:
    """Equal, but for a counter that grows evenly in the replay, and means of GPM."""
    if isinstance(recorded, dict) and isinstance(played, dict):
        return recorded.keys() == played.keys() and all(
            same(recorded[key], played[key]) for key in recorded
        )
    if isinstance(recorded, float) and isinstance(played, float):
        return played == pytest.approx(recorded, rel=0.02, abs=0.005)
    return recorded == played


EXTENDED = {"title": "two", "description": "two", "expected": "ok", "extends": "h100-8", "count": 2}


@pytest.mark.parametrize(
    "name",
    [
        "two", "a100", "driver-470", "every-signal", "gb10", "gpm-denied", "jetson", "laptop",
        "nvlink-down", "out-of-range", "permission-lost", "rtx4090", "shared", "vgpu", "wsl2",
    ],
)  # fmt: skip
def test_the_replay_reads_as_what_was_recorded(name: str, builds: Path, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(json.dumps(EXTENDED))
    source = str(tmp_path / "two.json") if name == "two" else name
    recorded = record(source, builds, tmp_path / "recorded")
    content, left_out = convert(recorded)
    assert not [words for words in left_out if "Utilization" not in words]
    path = tmp_path / "replay.json"
    path.write_text(json.dumps(content))
    played = record(str(path), builds, tmp_path / "played")
    for before, after in zip(recorded["identities"], played["identities"], strict=True):
        assert {
            key for key in before if key != "uuid" and not same(before[key], after[key])
        } == set()
    for (at, index, before), (_, _, after) in zip(
        recorded["samples"], played["samples"], strict=True
    ):
        wrong = {
            key: (before[key], after.get(key))
            for key in before
            if not same(before[key], after.get(key))
        }
        assert wrong == {}, (at, index)

"""The check for real GPUs, on the simulated driver: what it reads, compares and complains about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from field_check import ABSENT, COMPARED, Compared, agree
from nvml_trace import masked
from trace_scenario import convert

from topsmon.simulated import SimulationError, prepare, scenario

FOLDER = Path(__file__).parent
SCENARIO: dict[str, Any] = {
    "title": "two",
    "description": "two GPUs whose values stand still",
    "expected": "ok",
    "count": 2,
    "device": {
        "name": "NVIDIA H100 80GB HBM3",
        "compute_capability": "9.0",
        "memory_total_mib": 81559,
        "memory_used_mib": 1024,
        "memory_reserved_mib": 551,
        "power_watts": 250,
        "power_limit_watts": 700,
        "temperature_celsius": {"each": [41, 10]},
        "sm_clock_mhz": 1500,
        "sm_clock_max_mhz": 1980,
        "busy_percent": 35,
        "memory_busy_percent": 5,
        "pcie_generation": 5,
        "pcie_width": 16,
        "ecc_uncorrected_volatile": 0,
    },
}
RIGHT = (
    "NVIDIA H100 80GB HBM3, 81559, 1024, 250.00, 700.00, {celsius}, 1500, 1980, 35, 5, 16, 0, [N/A]"
)
"""As nvidia-smi prints the columns of the query; the last is a fan that there is not."""


def environment(builds: Path, content: dict[str, Any], folder: Path) -> dict[str, str]:
    path = folder / "given.json"
    path.write_text(json.dumps(content))
    try:
        prepared = prepare(str(path), builds)
    except SimulationError as error:
        pytest.skip(str(error))
    homes = {name: str(folder) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    return {**os.environ, **prepared, **homes, "PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("driver")


def run(environment: dict[str, str], target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / "field_check.py"), str(target), "1"],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.real
def test_all_of_it_with_one_value_that_nvidia_smi_says_otherwise(
    builds: Path, tmp_path: Path
) -> None:
    program = tmp_path / "nvidia-smi"
    lines = [RIGHT.format(celsius=41), RIGHT.format(celsius=61)]
    program.write_text("#!/bin/sh\ncat <<END\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    done = run(environment(builds, SCENARIO, tmp_path), tmp_path / "out.json")
    assert done.returncode == 1, done.stderr
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["complaints"] == ["GPU 1 temperature.gpu: 51.0, nvidia-smi 61"]
    compared = {(index, column): fits for index, column, _, _, fits in out["compared"]}
    assert len(compared) == 2 * len(COMPARED)
    assert [pair for pair, fits in compared.items() if not fits] == [(1, "temperature.gpu")]
    assert out["snapshot_exit_code"] == 0
    timed = {name.split()[0] for name in out["latencies"]}
    assert {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"} <= timed
    for one in out["latencies"].values():
        assert 0 < one["median_seconds"] <= one["p95_seconds"]
    uuids = {call[5] for call in out["trace"]["calls"] if call[1] == "nvmlDeviceGetUUID"}
    real = {device.texts["uuid"] for device in scenario.load(str(tmp_path / "given.json")).devices}
    assert uuids == {masked(uuid) for uuid in real}
    assert not any(uuid in json.dumps(out) for uuid in real)
    content, _ = convert(out["trace"])
    assert content["devices"]["1"]["temperature_celsius"] == 51
    assert content["devices"]["0"]["power_watts"] == 250
    assert "fan_percent" not in content["devices"]["0"]


@pytest.mark.real
def test_without_a_gpu_it_says_so(builds: Path, tmp_path: Path) -> None:
    nothing = {**SCENARIO, "count": 0}
    done = run(environment(builds, nothing, tmp_path), tmp_path / "out.json")
    assert done.returncode == 3
    assert "no NVML driver with a GPU" in done.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("ours", "theirs", "fits"),
    [
        (41.0, "41", True),
        (41.0, "44", True),
        (41.0, "46", False),
        (None, "[N/A]", True),
        (None, "41", False),
        (41.0, "[N/A]", False),
        (0, "[Not Supported]", False),
        ("NVIDIA H100", "NVIDIA H100", True),
        ("NVIDIA H100", "NVIDIA H200", False),
        (41.0, "warm", False),
    ],
)
def test_when_both_say_the_same(ours: Any, theirs: str, fits: bool) -> None:
    assert agree(ours, theirs, Compared("temperature.gpu", lambda *_: None, 4.0)) is fits
    assert "0" not in ABSENT

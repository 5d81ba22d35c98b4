"""`topsmon check --nproc` on this machine's processor: real ranks, by gloo."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from topsmon import interpreter

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not interpreter.own_has_torch(), reason="no torch here"),
]
TOPSMON = (sys.executable, "-m", "topsmon", "check", "--device", "cpu")
SLOW = {"TOPSMON_RANK_FAULT": "slow=1:0.05"}
LONG = ("--timeout", "300")
"""On a machine that has much else to do the ranks take long to start."""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where the launcher and the ranks put what is temporary: empty again at the end."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def run(
    command: tuple[str, ...], scratch: Path, fault: dict[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if "RANK" not in name},
        "TMPDIR": str(scratch),
        **fault,
    }
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
        check=False,
    )


def bad(told: dict[str, Any], check: str) -> list[dict[str, Any]]:
    return [one for one in told["checks"] if one["check"] == check and one["state"] != "PASS"]


def alive(folder: Path) -> list[str]:
    """Processes that have this folder in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if str(folder) in words:
                found.append(words)
    return found


def all_end(folder: Path) -> bool:
    """Wait for the last of them; True once there is none."""
    deadline = time.monotonic() + 60
    while alive(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(folder)


def test_two_ranks_by_torchrun_with_a_slow_one(scratch: Path) -> None:
    done = run(TOPSMON, scratch, SLOW, "--nproc", "2", "--largest", str(1 << 20), "--json", *LONG)
    told = json.loads(done.stdout)
    ranks = told["ranks"]
    (slow,) = bad(told, "straggler-cpu")
    assert (slow["label"], slow["state"]) == ("rank 1", "WARN")
    assert re.search(r"indicative", slow["cause"])
    assert done.returncode == told["exit_code"] == 1
    assert (ranks["backend"], ranks["world_size"], ranks["launcher"]) == ("gloo", 2, "torchrun")
    factors = {"all-reduce": 1.0, "all-gather": 0.5, "reduce-scatter": 0.5, "broadcast": 1.0}
    for one in ranks["measurements"]:
        # By hand from what the ranks report: S / slowest median, times the factor for two ranks.
        times = [
            mine["seconds"]
            for rank in ranks["ranks"]
            for mine in rank["collectives"]
            if (mine["operation"], mine["bytes"]) == (one["operation"], one["bytes"])
        ]
        assert len(times) == 2
        algbw = one["bytes"] / max(times)
        assert one["algbw_bytes_per_second"] == pytest.approx(algbw)
        expected = algbw * factors.get(one["operation"], 1.0)
        assert one["busbw_bytes_per_second"] == pytest.approx(expected)
        assert one["correct"]
    assert {one["bytes"] for one in ranks["measurements"]} == {32 << 10, 1 << 20}
    assert list(scratch.iterdir()) == []
    assert all_end(scratch)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("die=1@all-gather", "ended without a word in all-gather"),
        ("hang=0@gemm", "hangs in gemm"),
    ],
)
def test_a_lost_rank_is_named_and_nothing_stays_behind(
    fault: str, words: str, scratch: Path
) -> None:
    options = ("--nproc", "2", "--largest", "32768", "--json", "--only", "ranks")
    for limit in ("15", "60", "240"):  # within one of them the ranks have come to that stage
        done = run(TOPSMON, scratch, {"TOPSMON_RANK_FAULT": fault}, *options, "--timeout", limit)
        told = json.loads(done.stdout or '{"checks": []}')
        if any(words in one["cause"] for one in bad(told, "ranks")):
            break
    (lost,) = bad(told, "ranks")
    assert lost["label"] == f"rank {fault.partition('=')[2][0]}"
    assert words in lost["cause"]
    assert done.returncode == told["exit_code"] == 3
    assert list(scratch.iterdir()) == []
    assert all_end(scratch)


def torchrun() -> tuple[str, ...]:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python")
    return (*torchrun, "--nproc-per-node", "2", "--")


def mpirun() -> tuple[str, ...]:
    path = shutil.which("mpirun")
    if path is None:
        pytest.skip("no mpirun here (Debian: openmpi-bin)")
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return (path, *root, "--oversubscribe", "-np", "2")


@pytest.mark.parametrize("launcher", [torchrun, mpirun])
def test_inside_a_launcher_rank_0_tells_and_all_end_alike(launcher: Any, scratch: Path) -> None:
    command = (*launcher(), *TOPSMON)
    done = run(command, scratch, SLOW, "--nproc", "auto", "--largest", "32768", "--json", *LONG)
    told = json.loads(done.stdout)  # one document alone: the other rank prints nothing
    (slow,) = bad(told, "straggler-cpu")
    assert slow["label"] == "rank 1"
    assert told["ranks"]["launcher"] == launcher.__name__
    assert done.returncode == told["exit_code"] == 1  # torchrun makes 1 of every failure
    assert all_end(scratch)

"""Wrong usage of `topsmon check --nproc` is refused before anything starts."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from topsmon.cli.root import root
from topsmon.distributed.faults import Fault, fault_of
from topsmon.launcher.torchrun import Nodes, environment, torchrun_command


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--nproc two", "neither auto nor a number"),
        ("--nproc 0", "neither auto nor a number"),
        ("--nproc 2 --quick", "without --quick"),
        ("--nproc 2 --simulate healthy", "without --quick"),
        ("--nnodes 2", "--node-rank R and --rendezvous HOST:PORT"),
        ("--nnodes 2 --node-rank 2 --rendezvous a:80", "numbered 0 to 1"),
        ("--nnodes 2 --node-rank 0 --rendezvous a", "rendezvous 'a'"),
        ("--node-rank 0", "go with --nnodes"),
        ("--parameters 1e9", "go with --nproc"),
    ],
)
def test_refused_by_the_command_line(
    words: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPSMON_INSIDE_SIMULATION", "healthy")
    result = CliRunner().invoke(root, ["check", *words.split()], obj=())
    assert result.exit_code == 2  # click's own; topsmon makes 64 of it
    assert told in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--nproc 1", "at least two ranks"),
        ("--nproc 2 --only bf16", "no check is called 'bf16'"),
    ],
)
def test_refused_before_anything_starts(words: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topsmon", "check", "-d", "cpu", *words.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if "RANK" not in name},
    )
    assert done.returncode == 64
    assert told in done.stderr


def test_a_fault_is_for_one_rank() -> None:
    text = {"TOPSMON_RANK_FAULT": "hang=1@all-reduce"}
    assert fault_of(1, text) == Fault("hang", 0.0, "all-reduce")
    assert fault_of(0, text) == Fault()
    with pytest.raises(ValueError, match="TOPSMON_RANK_FAULT='slow'"):
        fault_of(0, {"TOPSMON_RANK_FAULT": "slow"})


def test_torchrun_never_eats_our_options(tmp_path: os.PathLike[str]) -> None:
    # pytorch#120601: without "--" torchrun takes "--n" of a script for a prefix of its own.
    from pathlib import Path

    folder = Path(tmp_path)
    nodes = Nodes(2, 1, "node0:29500")
    command = torchrun_command("python", 4, nodes, folder, ["--limit", "3"])
    program = command.index("--") + 1
    assert command[program].endswith("topsmon/distributed")
    assert command[program + 1 :] == ["--limit", "3"]
    assert command[command.index("--node-rank") + 1] == "1"
    assert command[command.index("--rdzv-backend") + 1] == "static"
    kept = environment(
        {"OMP_NUM_THREADS": "3"}, folder=folder, devices=("GPU-1",), threads=8, more={}
    )
    assert kept["OMP_NUM_THREADS"] == "3"
    assert kept["CUDA_VISIBLE_DEVICES"] == "GPU-1"

"""Wrong usage of `topsmon check --nproc` is refused before anything starts."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from topsmon.cli.root import root
from topsmon.distributed.faults import Fault, fault_of
from topsmon.launcher import folders
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
        ("--nproc 4096", "--nproc 4096: "),
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


def test_a_fault_that_is_not_understood_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPSMON_RANK_FAULT", "bogus")
    result = CliRunner().invoke(root, ["check", "-d", "cpu", "--nproc", "2"], obj=())
    assert result.exit_code == 64
    assert "TOPSMON_RANK_FAULT='bogus': not of the form" in capfd.readouterr().err


def test_a_check_by_itself_under_a_launcher_gets_a_hint(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    CliRunner().invoke(root, ["check", "--only", "bogus"], obj=())
    assert "torchrun has started 2 ranks" in capfd.readouterr().err
    monkeypatch.setenv("RANK", "1")
    CliRunner().invoke(root, ["check", "--only", "bogus"], obj=())
    assert "torchrun" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("largest", "gpu", "sizes"),
    [
        (None, False, (32 << 10, 1 << 20, 16 << 20, 64 << 20)),
        (4 << 20, False, (32 << 10, 1 << 20, 4 << 20)),
        (1 << 20, True, (32 << 10, 1 << 20)),
        (4096, True, (4096,)),
    ],
)
def test_the_largest_payload_is_measured_too(
    largest: int | None, gpu: bool, sizes: tuple[int, ...]
) -> None:
    collectives = pytest.importorskip("topsmon.distributed.collectives", exc_type=ImportError)
    assert collectives.sizes_up_to(largest, gpu=gpu) == sizes


def test_the_folder_of_a_killed_topsmon_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "YOUNG_SECONDS", -1.0)
    left, strange = tmp_path / "topsmon-ranks-left", tmp_path / "topsmon-ranks-strange"
    for folder in (left, strange):
        folder.mkdir()
    (left / "owner").touch()
    (left / "rank-0.json").write_text("{}")
    with folders.temporary() as alive:
        folders.sweep()
        assert alive.is_dir()
        assert not left.exists()
        assert strange.is_dir()  # nobody says that it is ours
    assert not alive.exists()


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

"""Options about other machines that contradict each other are refused, none is passed over."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from topsmon.cli.root import root


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--simulate nodes=3 --host a --once", "plays its own hosts"),
        ("--ssh foo --once", "--ssh goes with --host"),
        ("--remote-command foo --once", "--remote-command goes with --host"),
        ("--simulate nodes=5,nodes=6 --once", "nodes is given twice"),
    ],
)
def test_wrong_usage(words: str, told: str) -> None:
    result = CliRunner().invoke(root, words.split(), obj=())
    assert result.exit_code == 2  # click's own; topsmon makes 64 of it
    assert told in result.output


def test_the_ssh_of_the_environment_needs_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPSMON_SSH", "ssh -F x")
    result = CliRunner().invoke(root, ["--simulate", "nodes=1,gpus=1", "--once"], obj=())
    assert result.exit_code == 0, result.output
    assert result.output.startswith("1 host (1 live), 1 live device\n")


def test_one_look_waits_for_the_faults_of_the_plan() -> None:
    words = ["--once", "--simulate", "nodes=3,gpus=2,fault=gone:node1,fault=lost:node2:0"]
    result = CliRunner().invoke(root, words, obj=())
    assert result.exit_code == 2
    assert result.output.startswith("3 hosts (1 gone, 2 live), 4 live devices of 6\n")
    assert "host gone, last heard of" in result.output
    assert "not on the bus any more" in result.output


def test_the_list_names_the_forms_of_faults() -> None:
    result = CliRunner().invoke(root, ["--simulate", "list"], obj=())
    for word in ("straggler", "hot", "lost", "ecc", "fault=gone:NODE", "fault=KIND:NODE:GPU"):
        assert word in result.output

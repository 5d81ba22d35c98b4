"""A fleet as text and JSON, and on the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from fleet_events import NOW, fleet_of, gpu, sample

from topsmon.cli.root import root
from topsmon.fleet import summary
from topsmon.fleet.simulated import played
from topsmon.fleet.words import rates_words, watts_words
from topsmon.simulated.fleet import parse

PLAN = "nodes=20,fault=straggler:node17:3"


def test_text_has_counts_sums_quantiles_and_the_worst() -> None:
    text = summary.text(played(parse(PLAN)), 0.0)
    assert text.startswith("20 hosts (20 live), 160 live devices\n")
    assert "PFLOPS" in text
    assert "SLOW   node17 GPU 3" in text
    busy = next(line for line in text.splitlines() if line.startswith("busy"))
    assert busy.split()[-1] == "160"


def test_what_is_not_known_is_na_and_null() -> None:
    fleet = fleet_of(gpu("a", 0))
    assert "BF16 N/A" in summary.text(fleet, NOW)
    assert "power N/A" in summary.text(fleet, NOW)
    document = json.loads(summary.to_json(fleet, NOW))
    assert document["power_watts"] is None
    assert document["metrics"]["busy"]["p50"] is None
    assert document["metrics"]["busy"]["missing"] == 1


def test_ascii_text_is_ascii() -> None:
    fleet = fleet_of(gpu("nöde", 0), sample("nöde", 0, ecc_uncorrected_volatile=1))
    assert summary.text(fleet, NOW, ascii_only=True).isascii()


def test_json_has_the_numbers_of_the_state() -> None:
    fleet = played(parse(PLAN))
    document = json.loads(summary.to_json(fleet, 0.0))
    assert document["schema"] == "topsmon.fleet-snapshot/1"
    assert len(document["hosts"]) == 20
    assert document["metrics"]["power"]["max"] == fleet.aggregate("power", 0.0).high
    assert document["metrics"]["ratio"]["worst"][0]["host"] == "node17"
    assert document["troubles"][0]["word"] == "SLOW"


@pytest.mark.parametrize(
    ("achieved", "ceiling", "text"),
    [
        (7.35e18, 9.89e18, "7.35 of 9.89 EFLOPS"),
        (217e15, 293e15, "217 of 293 PFLOPS"),
        (0.41e12, 0.99e15, "0.410 of 990 TFLOPS"),
        (61.2e9, 83.1e9, "61.2 of 83.1 GFLOPS"),
    ],
)
def test_sums_of_rates_have_one_unit(achieved: float, ceiling: float, text: str) -> None:
    assert rates_words(achieved, ceiling, "TFLOPS") == text


@pytest.mark.parametrize(
    ("watts", "text"), [(655.4, "655 W"), (24_300.0, "24.3 kW"), (6.5e6, "6.50 MW")]
)
def test_sums_of_power(watts: float, text: str) -> None:
    assert watts_words(watts) == text


def test_a_snapshot_of_a_simulated_fleet_fails_with_its_worst_trouble() -> None:
    result = CliRunner().invoke(root, ["--once", "--simulate", PLAN])
    assert result.exit_code == 2
    assert "node17 GPU 3" in result.output
    assert CliRunner().invoke(root, ["--once", "--simulate", "nodes=3"]).exit_code == 0


def test_a_wrong_plan_is_wrong_usage() -> None:
    result = CliRunner().invoke(root, ["stream", "--simulate", "nodes=2,fault=hot:node7:0"])
    assert result.exit_code != 0
    assert "no such GPU" in result.output


def test_commands_that_cannot_show_many_hosts_say_so() -> None:
    result = CliRunner().invoke(root, ["check", "--quick", "--simulate", "nodes=2"])
    assert result.exit_code != 0
    assert "plays many hosts" in result.output

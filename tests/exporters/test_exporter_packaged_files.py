"""The dashboard and the alert rules: every metric in them is exported, promtool accepts them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest
from exported_machines import names, scrape
from test_exporter_check_file import DOCUMENT
from test_exporter_check_file import exported as with_checks
from test_exporter_names import READINGS, whole

FILES = Path(str(resources.files("topsmon.exporters") / "files"))
RULES = FILES / "alert-rules.yml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
NAME = re.compile(r"\btopsmon_[a-z0-9_]+")
ONLY_IN_A_WINDOW = {"topsmon_run_step_high_seconds", "topsmon_run_data_wait_ratio"}
"""Exported, but not by the machine of these tests."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    assert READINGS
    assert DOCUMENT
    checked = names(scrape(with_checks(tmp_path_factory.mktemp("check"))))
    return names(scrape(whole())) | checked | ONLY_IN_A_WINDOW


def panels() -> list[dict[str, object]]:
    dashboard = json.loads((FILES / "grafana-dashboard.json").read_text())
    found: list[dict[str, object]] = dashboard["panels"]
    return found


def test_the_dashboard_shows_only_what_is_exported(exported: set[str]) -> None:
    text = (FILES / "grafana-dashboard.json").read_text()
    assert set(NAME.findall(text)) - exported == set()


def test_the_dashboard_covers_every_subject(exported: set[str]) -> None:
    shown = set(NAME.findall((FILES / "grafana-dashboard.json").read_text()))
    assert {
        "topsmon_bench_achieved_operations_per_second",
        "topsmon_bench_ceiling_operations_per_second",
        "topsmon_gpu_throttle_seconds_total",
        "topsmon_gpu_power_watts",
        "topsmon_finding_active",
        "topsmon_check_status",
        "topsmon_amp_loss_scale",
        "topsmon_run_mfu_ratio",
    } <= shown


def test_panels_have_their_own_number_and_place() -> None:
    numbers = [panel["id"] for panel in panels()]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place: dict[str, int] = panel["gridPos"]  # type: ignore[assignment]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_alerts_watch_only_what_is_exported(exported: set[str]) -> None:
    assert set(NAME.findall(RULES.read_text())) - exported == set()


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    result = subprocess.run(
        [str(PROMTOOL), "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@needs_promtool
def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """As recording rules, with Grafana's variables filled in."""
    rules = []
    for panel in panels():
        for number, target in enumerate(panel.get("targets", [])):  # type: ignore[arg-type, var-annotated]
            query = re.sub(r"\$__rate_interval", "5m", target["expr"])
            query = re.sub(r"\$(instance|gpu|precision)", ".*", query)
            name = f"panel:{panel['id']}:{number}"
            rules.append({"record": name, "expr": query})
    assert len(rules) > 30
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    result = subprocess.run(
        [str(PROMTOOL), "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr + result.stdout


OF_GPU = 'instance="n1",job="t",uuid="GPU-{0}",gpu="{0}"'
ACHIEVED = "topsmon_bench_achieved_operations_per_second"
SERIES = [
    *(
        (f'{ACHIEVED}{{{OF_GPU.format(n)},precision="bf16"}}', f"{rate}+0x90")
        for n, rate in enumerate((600, 590, 500))
    ),
    *(
        (f'topsmon_bench_last_run_timestamp_seconds{{{OF_GPU.format(n)},precision="bf16"}}', "0x90")
        for n in range(3)
    ),
    *((f'topsmon_gpu_info{{{OF_GPU.format(n)},name="H100"}}', "1x90") for n in range(3)),
    (f'topsmon_gpu_throttle_seconds_total{{{OF_GPU.format(0)},reason="hw_thermal"}}', "0+30x90"),
    (f'topsmon_gpu_throttle_seconds_total{{{OF_GPU.format(1)},reason="power"}}', "0+60x90"),
    (f'topsmon_gpu_xid_last_timestamp_seconds{{{OF_GPU.format(2)},xid="79"}}', "3000x90"),
    (f'topsmon_gpu_xid_last_timestamp_seconds{{{OF_GPU.format(2)},xid="31"}}', "3000x90"),
    ('topsmon_run_last_step_timestamp_seconds{instance="n1",job="t",run="0"}', "0x90"),
    ('topsmon_run_step_seconds{instance="n1",job="t",run="0"}', "1x90"),
    ('topsmon_run_last_step_timestamp_seconds{instance="n1",job="t",run="1"}', "0x90"),
]


@needs_promtool
@pytest.mark.parametrize(
    ("alert", "labels"),
    [
        ("TopsmonRateBelowPeers", 'uuid="GPU-2"'),
        ("TopsmonThrottled", 'uuid="GPU-0",reason="hw_thermal"'),
        ("TopsmonXid", 'uuid="GPU-2",xid="79"'),
        ("TopsmonRunSilent", 'run="0"'),
        ("TopsmonLossNotFinite", None),
    ],
)
def test_alerts_fire_for_the_right_device_alone(
    tmp_path: Path, alert: str, labels: str | None
) -> None:
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    expected = [] if labels is None else [{"labels": f"{{{labels}}}", "value": 1}]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in SERIES],
                "promql_expr_test": [
                    {
                        "expr": f"count by (uuid, reason, xid, run) ({firing})",
                        "eval_time": "55m",
                        "exp_samples": expected,
                    }
                ],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(document))
    result = subprocess.run(
        [str(PROMTOOL), "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr

"""check, bench, roofline and flops as people type them, on this CPU and on the simulated driver."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "topsmon", *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        cwd=cwd,
        timeout=120,
        check=False,
    )


def test_check_of_this_cpu_is_right_whatever_else_runs() -> None:
    result = run("check", "--only", "fp32,correctness", "--json", "--device", "cpu")
    document = json.loads(result.stdout)
    checks = {one["check"]: one for one in document["checks"]}
    states = {name: one["state"] for name, one in checks.items()}
    # Where others leave the polite prober no time there is nothing to judge, and that is said.
    if not checks["correctness"]["cause"].startswith("time ran out"):
        assert states["correctness"] == "PASS"
    assert states["fp32"] in {"NO-VERDICT", "INVALID"}
    assert result.returncode in {0, 3}
    assert result.returncode == document["exit_code"]


@pytest.mark.parametrize(
    ("scenario", "code"), [("h100-8", 0), ("power-cap", 1), ("ecc", 2), ("no-library", 3)]
)
def test_quick_check_of_the_simulated_driver(scenario: str, code: int) -> None:
    result = run("check", "--quick", "--simulate", scenario)
    assert result.returncode == code, result.stdout.decode()
    assert b"SIMULATED" in result.stdout


def test_each_format_by_a_parser_of_its_own() -> None:
    quick = ["check", "--quick", "--simulate", "power-cap"]
    document = json.loads(run(*quick, "--json").stdout)
    assert document["status"] == "WARN"
    suite = ET.fromstring(run(*quick, "--junit").stdout)
    assert int(suite[0].get("failures", "0")) >= 1
    (line,) = run(*quick, "--nagios").stdout.decode().splitlines()
    words, _, data = line.partition(" | ")
    assert words.startswith("TOPSMON WARNING - ")
    for item in data.split():
        name, _, values = item.partition("=")
        assert name
        assert values.count(";") <= 4


def test_a_cached_verdict_answers_while_it_is_fresh(tmp_path: Path) -> None:
    quick = ["check", "--quick", "--simulate", "power-cap", "--cached", str(tmp_path / "kept.json")]
    first = json.loads(run(*quick, "--json").stdout)
    again = json.loads(run(*quick, "--json").stdout)
    anew = json.loads(run(*quick, "--json", "--max-age", "0").stdout)
    assert first["started_unix_seconds"] == again["started_unix_seconds"]
    assert anew["started_unix_seconds"] > first["started_unix_seconds"]


def faster(value: object, factor: float) -> object:
    """The same document with every measured rate `factor` times as high."""
    if isinstance(value, list):
        return [faster(item, factor) for item in value]
    if not isinstance(value, dict):
        return value
    rates = ("rate_ops_per_second", "rate_low_ops_per_second", "rate_high_ops_per_second")
    return {
        key: item * factor if key in rates and item is not None else faster(item, factor)
        for key, item in value.items()
    }


def test_bench_saved_and_compared_on_the_simulated_driver(tmp_path: Path) -> None:
    bench = ["bench", "bf16", "fp32", "--simulate", "h100-8", "-o", "3"]
    saved = run(*bench, "--json")
    assert saved.returncode == 0, saved.stderr.decode()
    same, better = tmp_path / "same.json", tmp_path / "better.json"
    same.write_bytes(saved.stdout)
    better.write_text(json.dumps(faster(json.loads(saved.stdout), 1.5)))
    lost = run(*bench, "--against", str(better))
    assert lost.returncode == 1, lost.stdout.decode()
    assert b"REGRESSION" in lost.stdout.upper()
    kept = run(*bench, "--against", str(same))
    assert kept.returncode == 0, kept.stdout.decode()
    assert b"no difference" in kept.stdout


def test_bench_refuses_a_file_that_is_no_result(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    result = run("bench", "--against", str(wrong))
    assert result.returncode == 64
    assert str(wrong) in result.stderr.decode()


def test_roofline_as_svg_and_json(tmp_path: Path) -> None:
    picture = tmp_path / "roof.svg"
    result = run("roofline", "bf16", "--simulate", "h100-8", "-o", "0", "--svg", str(picture))
    assert result.returncode == 0, result.stderr.decode()
    text = "".join(ET.parse(picture).getroot().itertext())
    assert "SIMULATED" in text
    assert "989 TFLOPS" in text
    drawn = run("roofline", "bf16", "--simulate", "h100-8", "-o", "0", "--json")
    (document,) = json.loads(drawn.stdout)
    assert document["schema_version"] == 1


def test_the_layers_of_a_model_stand_on_the_roofline(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(512, 512, bias=False)\n"
    )
    given = ["--model", "model.py:make", "--input", "256x512", "--simulate", "h100-8", "-o", "0"]
    result = run("roofline", "fp32", *given, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr.decode()
    (document,) = json.loads(result.stdout)
    layers = [point for point in document["points"] if point["kind"] == "layer"]
    # 2*256*512*512 FLOPs over (256*512 + 512*512 + 256*512) values of four bytes: 64 FLOP/byte.
    assert [point["ops_per_byte"] for point in layers] == [64.0]


def test_flops_of_a_model_in_the_current_directory(tmp_path: Path) -> None:
    # 64 to 128 channels, 3x3, padding 1, on 32x64x224x224: a multiply-add is two operations.
    (tmp_path / "model.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Conv2d(64, 128, 3, padding=1)\n"
    )
    result = run("flops", "model.py:make", "--input", "32x64x224x224", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr.decode()
    assert 2 * 32 * 224 * 224 * 128 * 64 * 9 == 236_760_072_192
    assert "236760072192" in result.stdout.decode()
    given = run(
        "flops", "model.py:make", "--input", "1x64x8x8", "--bandwidth", "50", "--json", cwd=tmp_path
    )
    document = json.loads(given.stdout)
    assert document["device"]["memory_bandwidth_bytes_per_second"] == 50e9

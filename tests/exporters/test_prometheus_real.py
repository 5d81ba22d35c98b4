"""The command itself, scraped by a real Prometheus server; skipped where there is none."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from fake_prometheus import answering
from ports import free_port

from topsmon.cli import root
from topsmon.simulated import prepare

pytestmark = pytest.mark.real
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="Prometheus is not installed"
)
RULES = Path(__file__).parents[2] / "topsmon" / "exporters" / "files" / "alert-rules.yml"
DCGM = """\
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="2",UUID="GPU-dcgm",modelName="NVIDIA A100",Hostname="k8s-7"} 61
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-dcgm",modelName="NVIDIA A100",Hostname="k8s-7"} 40
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="2",UUID="GPU-dcgm",modelName="NVIDIA A100",Hostname="k8s-7"} 10240
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="2",UUID="GPU-dcgm",modelName="NVIDIA A100",Hostname="k8s-7"} 30720
# TYPE nvidia_smi_gpu_info gauge
nvidia_smi_gpu_info{uuid="df6e7a7c-7314-46f8-abc4-b88b36dcf3aa",index="0",name="RTX 4090"} 1
# TYPE nvidia_smi_clocks_current_sm_clock_hz gauge
nvidia_smi_clocks_current_sm_clock_hz{uuid="df6e7a7c-7314-46f8-abc4-b88b36dcf3aa"} 2.52e+09
"""


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("simulated")
    state = tmp_path_factory.mktemp("state")
    environment = {**os.environ, **prepare("h100-8", folder), "XDG_STATE_HOME": str(state)}
    environment["XDG_CACHE_HOME"] = str(folder)
    return environment


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A child that is asked to end, and killed if it does not."""
    child = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, **options
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=60)
        if child.poll() is None:
            child.kill()
            child.communicate()


def topsmon(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "topsmon", *arguments]


def until(found: Callable[[], Any], seconds: float = 100.0) -> Any:
    """What `found` gives once it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            value = found()
            if value:
                return value
        time.sleep(0.2)
    pytest.fail("it did not come")


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
        return text


def ask(prometheus: str, query: str) -> list[dict[str, Any]]:
    words = urllib.parse.urlencode({"query": query})
    result: list[dict[str, Any]] = json.loads(read(f"{prometheus}/api/v1/query?{words}"))["data"][
        "result"
    ]
    return result


@contextlib.contextmanager
def prometheus(tmp_path: Path, targets: list[str]) -> Iterator[str]:
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "gpus", "static_configs": [{"targets": targets}]}],
    }
    path = tmp_path / "prometheus.yml"
    path.write_text(json.dumps(config))
    place = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={path}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with running([str(PROMETHEUS), *options, f"--web.listen-address={place}"]):
        yield f"http://{place}"


def whole_fleet(server: str) -> dict[str, Any] | None:
    """The fleet's quantities once all devices are among them: 8, and the one of dcgm-exporter."""
    fleet = subprocess.run(
        topsmon("fleet", "--prometheus", server, "--json"),
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(fleet.stdout)
    by_key: dict[str, Any] = {row["quantity"]: row for row in document["quantities"]}
    found = [by_key.get(key, {}).get("devices") for key in ("ratio_bf16", "busy", "memory_fill")]
    clock_of_nvidia_gpu_exporter = by_key.get("clock", {}).get("max")
    whole = [*found, clock_of_nvidia_gpu_exporter] == [8, 9, 9, 2.52e9]
    return by_key if whole and document["problems"] == {} else None


@needs_prometheus
def test_a_server_scrapes_and_a_query_gives_achieved_over_ceiling(
    simulation: dict[str, str], tmp_path: Path
) -> None:
    place = f"127.0.0.1:{free_port()}"
    exporter = topsmon("--simulate", "h100-8", "export", "--prometheus", place, "--bench")
    others = answering(lambda asked: asked.answer(DCGM.encode()))
    with (
        running(exporter, env=simulation) as child,
        others as foreign,
        prometheus(tmp_path, [place, foreign]) as server,
    ):
        achieved = "topsmon_bench_achieved_operations_per_second"
        ratio = f"{achieved} / topsmon_bench_ceiling_operations_per_second"
        found = until(lambda: [one for one in ask(server, ratio) if one["metric"]["gpu"] == "0"])
        for one in found:
            assert 0.3 < float(one["value"][1]) < 1.0
        until(lambda: len(ask(server, f"count by (uuid) ({achieved})")) == 8)
        until(lambda: len(ask(server, "up == 1")) == 2)  # the other exporter too

        text = until(lambda: read(f"http://{place}/metrics"))
        lint = subprocess.run(
            [str(PROMTOOL), "check", "metrics"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")

        # A scrape that took over its second on a loaded machine is missing for one reading.
        by_key = until(lambda: whole_fleet(server))
        busy = {one["host"]: one["value"] for one in by_key["busy"]["worst"]}
        assert busy["k8s-7"] == 0.4
        assert 0.25 in {one["value"] for one in by_key["memory_fill"]["worst"]} | {
            by_key["memory_fill"]["min"]
        }

        child.send_signal(signal.SIGTERM)
        _, words = child.communicate(timeout=60)
        assert child.returncode == 0
        assert words == f"topsmon: metrics at http://{place}/metrics\n"


def test_the_port_may_be_in_use(simulation: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        result = subprocess.run(
            topsmon("--simulate", "h100-8", "export", "--prometheus", place),
            env=simulation,
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 3
    assert result.stderr == (
        f"topsmon: --prometheus {place}: Address already in use; choose another ADDR:PORT\n"
    )


def test_a_text_file_is_written_once(simulation: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "topsmon.prom"
    patiently = (
        "import sys\n"
        "from topsmon.cli import export_live, main\n"
        "export_live.FIRST_SAMPLES_SECONDS = 120.0\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["--simulate", "h100-8", "export", "--textfile", str(path), "--once"]
    subprocess.run([sys.executable, "-c", patiently, *words], env=simulation, check=True)
    text = path.read_text()
    assert text.count("topsmon_gpu_power_watts{") == 8
    assert text.count('topsmon_gpu_throttle_time_ratio{gpu="7"') > 0  # two samples were awaited
    assert [one.name for one in tmp_path.iterdir()] == ["topsmon.prom"]


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "x.prom"
    outcome = CliRunner().invoke(root, ["export", "--textfile", str(path), "--once"], obj=())
    assert outcome.exit_code == click.UsageError.exit_code
    assert f"--textfile {path}: no folder {path.parent}; make it first" in outcome.output
    assert list(tmp_path.iterdir()) == []


def test_beyond_loopback_and_with_a_password_is_said(
    simulation: dict[str, str], tmp_path: Path
) -> None:
    auth = tmp_path / "auth"
    auth.write_text("prometheus:secret\n")
    auth.chmod(0o600)
    port = free_port()
    path = tmp_path / "x.prom"
    command = topsmon(
        *("--simulate", "h100-8", "export", "--prometheus", f"0.0.0.0:{port}"),
        *("--auth-file", str(auth), "--textfile", str(path)),
    )
    with running(command, env=simulation) as child:
        until(path.exists)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read(f"http://127.0.0.1:{port}/metrics")
        child.send_signal(signal.SIGINT)
        _, words = child.communicate(timeout=60)
    assert child.returncode == 130
    assert words == (
        f"topsmon: metrics at http://0.0.0.0:{port}/metrics\n"
        "topsmon: the password crosses the network in clear: add --tls-cert and --tls-key\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prometheus", "nowhere:http"], "is no port"),
        (["--once"], "name what to write"),
        (["--prometheus", "--once"], "--once goes with --textfile"),
        (["--prometheus", "--textfile", "x", "--once"], "leave out --prometheus"),
        (["--prometheus", "--tls-cert", "x"], "go together"),
        (["--prometheus", "--tls-client-ca", "x"], "needs --tls-cert"),
        (["--textfile", "x", "--auth-file", "x"], "give --prometheus"),
        (["x.zst", "--prometheus", "--textfile", "x"], "one of these at a time"),
        (["--print-dashboard", "--print-alerts"], "one of these at a time"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from topsmon.cli import main

    assert main(["export", *arguments]) == 64
    assert words in capsys.readouterr().err


def test_packaged_files_are_printed() -> None:
    for option, name in (
        ("--print-dashboard", "grafana-dashboard.json"),
        ("--print-alerts", "alert-rules.yml"),
    ):
        result = subprocess.run(topsmon("export", option), capture_output=True, check=True)
        assert result.stdout == (RULES.parent / name).read_bytes()


def test_a_scrape_needs_no_driver_call(simulation: dict[str, str]) -> None:
    """A driver that hangs ends the readings, not the scrapes: they say that it does not answer."""
    place = f"127.0.0.1:{free_port()}"
    command = topsmon("--simulate", "hang-all", "export", "--prometheus", place)
    environment = {key: value for key, value in simulation.items() if "SIMULAT" not in key}
    stalled = re.compile(r'^topsmon_device_condition{condition="stalled",.*} 1.0$', re.MULTILINE)
    cpu = 'topsmon_device_sample_age_seconds{uuid="cpu"}'

    def scraped_in_the_stall() -> str | None:
        text = read(f"http://{place}/metrics")
        return text if len(stalled.findall(text)) == 4 and cpu in text else None

    with running(command, env=environment):
        text = until(scraped_in_the_stall)
    assert "topsmon_gpu_power_watts{" not in text

"""A fleet as a server knows it: who is who, distributions, the worst, the screen's fleet."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from fake_prometheus import Asked, answering, vector
from hypothesis import given
from hypothesis import strategies as st

from topsmon.cli.fleet import command
from topsmon.cli.root import root
from topsmon.exporters import fleet_queries, fleet_summary
from topsmon.exporters.fleet_reading import Gpu, Reading, read
from topsmon.exporters.query import Answer, QueryError, Sample

NOW = 1_700_000_000.0
Rows = list[tuple[dict[str, str], float]]


def server(answers: dict[str, Rows]) -> Callable[[str], Answer]:
    """Answers a query by the first key that it contains."""

    def ask(query: str) -> Answer:
        for part, rows in answers.items():
            if part in query:
                return Answer(tuple(Sample(labels, value, NOW) for labels, value in rows))
        return Answer(())

    return ask


def own(host: int, gpu: int) -> dict[str, str]:
    return {"instance": f"node{host}:18677", "uuid": f"GPU-{host}-{gpu}", "gpu": str(gpu)}


FLEET = {
    "topsmon_host_info": [
        ({"instance": f"node{host}:18677", "hostname": f"n{host}"}, 1.0) for host in range(4)
    ],
    "topsmon_gpu_info": [
        ({**own(host, gpu), "name": "NVIDIA H100"}, 1.0) for host in range(4) for gpu in range(2)
    ],
    "topsmon_gpu_busy_ratio": [
        (own(host, gpu), 0.1 * (2 * host + gpu)) for host in range(4) for gpu in range(2)
    ],
    "topsmon_bench_achieved": [
        ({**own(host, gpu), "precision": "bf16"}, 600e12 - 100e12 * (host == 3 and gpu == 1))
        for host in range(4)
        for gpu in range(2)
    ],
    "topsmon_bench_ceiling": [
        ({**own(host, gpu), "precision": "bf16"}, 1000e12) for host in range(4) for gpu in range(2)
    ],
    "topsmon_finding_active": [
        ({**own(2, 1), "code": "device-hot", "severity": "warn"}, 1.0),
        ({"instance": "node1:18677", "code": "no-driver", "severity": "fail"}, 1.0),
        ({**own(2, 1), "code": "x", "severity": "info"}, 1.0),
    ],
}


def test_devices_are_known_by_their_uuid_and_hosts_by_their_own_name() -> None:
    reading = read(server(FLEET), "", NOW)
    assert reading.hosts() == ["n0", "n1", "n2", "n3"]
    assert reading.gpus["GPU-3-1"] == Gpu(
        "GPU-3-1",
        "n3",
        "GPU-3-1",
        1,
        "NVIDIA H100",
        {"busy": pytest.approx(0.7)},
        {"bf16": 500e12},
        {"bf16": 1000e12},
    )


def test_the_straggler_is_the_worst() -> None:
    reading = read(server(FLEET), "", NOW)
    row = next(row for row in fleet_summary.rows(reading) if row.key == "ratio_bf16")
    assert [(value, gpu.host, gpu.label) for value, gpu in row.worst_devices(1)] == [
        (0.5, "n3", "GPU 1")
    ]
    assert "50.0% n3 GPU 1" in fleet_summary.text(reading, "http://x")


def test_findings_name_the_host_and_the_device() -> None:
    reading = read(server(FLEET), "", NOW)
    found = [
        (one.severity, one.host, one.code, one.gpu and one.gpu.uuid) for one in reading.findings
    ]
    assert found == [("fail", "n1", "no-driver", None), ("warn", "n2", "device-hot", "GPU-2-1")]


def test_metrics_of_dcgm_and_of_nvidia_gpu_exporter_are_understood() -> None:
    """As the server hands them over: normalised by the query itself."""
    dcgm = {
        "instance": "10.0.0.7:9400",
        "Hostname": "k8s-7",
        "uuid": "GPU-a",
        "gpu": "5",
        "modelName": "NVIDIA A100",
    }
    smi = {"instance": "ws1:9835", "uuid": "GPU-b", "index": "0", "name": "NVIDIA RTX 4090"}
    reading = read(
        server({"topsmon_gpu_info": [(dcgm, 61.0), (smi, 1.0)], "topsmon_gpu_busy": [(dcgm, 0.4)]}),
        "",
        NOW,
    )
    assert [(gpu.host, gpu.label, gpu.name) for gpu in reading.gpus.values()] == [
        ("k8s-7", "GPU 5", "NVIDIA A100"),
        ("ws1", "GPU 0", "NVIDIA RTX 4090"),
    ]
    assert reading.gpus["GPU-a"].numbers == {"busy": 0.4}


def test_two_exporters_with_one_host_name_stay_two_hosts() -> None:
    answers = {
        "topsmon_host_info": [
            ({"instance": f"127.0.0.1:{port}", "hostname": "login"}, 1.0) for port in (1, 2)
        ],
        "topsmon_gpu_info": [
            ({"instance": f"127.0.0.1:{port}", "uuid": f"GPU-{port}"}, 1.0) for port in (1, 2)
        ],
    }
    reading = read(server(answers), "", NOW)
    assert reading.hosts() == ["login (127.0.0.1:1)", "login (127.0.0.1:2)"]


def test_the_cpus_of_two_hosts_are_two_devices() -> None:
    rates = [
        ({"instance": f"n{host}:1", "uuid": "cpu", "precision": "fp32"}, 1e12) for host in range(2)
    ]
    reading = read(server({"topsmon_bench_achieved": rates}), "", NOW)
    assert [(gpu.host, gpu.label) for gpu in reading.gpus.values()] == [
        ("n0", "CPU"),
        ("n1", "CPU"),
    ]


def test_memory_is_full_by_its_own_total() -> None:
    answers = {
        "topsmon_gpu_memory_used": [(own(0, 0), 60.0 * 2**30)],
        "topsmon_gpu_memory_total": [(own(0, 0), 80.0 * 2**30)],
    }
    assert read(server(answers), "", NOW).gpus["GPU-0-0"].numbers["memory_fill"] == 0.75


def test_one_query_that_fails_costs_its_numbers_alone() -> None:
    good = server(FLEET)

    def ask(query: str) -> Answer:
        if "busy" in query:
            raise QueryError("execution: too many samples")
        return good(query)

    reading = read(ask, "", NOW)
    assert reading.problems == {"busy": "execution: too many samples"}
    assert len(reading.gpus) == 8
    assert "not known: busy: execution: too many samples" in fleet_summary.text(reading, "x")


def test_matchers_reach_every_selector() -> None:
    asked: list[str] = []

    def ask(query: str) -> Answer:
        asked.append(query)
        return Answer(())

    read(ask, 'cluster="a"', NOW)
    for query in asked:
        selectors = query.count("topsmon_") + query.count("DCGM_FI") + query.count("nvidia_smi_")
        assert query.count('cluster="a"') == selectors
        assert "<m>" not in query


finite = st.floats(-1e15, 1e15)


@given(st.lists(finite, min_size=2, max_size=60))
def test_quantiles_are_those_of_the_standard_library(values: list[float]) -> None:
    pairs = tuple((value, Gpu("k", "h", "u")) for value in sorted(values))
    row = fleet_summary.Row("busy", "busy", "ratio", "low", pairs)
    twentieths = statistics.quantiles(values, n=20, method="inclusive")
    found = [row.quantile(place / 20) for place in range(1, 20)]
    assert found == pytest.approx(twentieths, rel=1e-6, abs=1e-3 + 1e-9 * max(map(abs, values)))
    assert (row.quantile(0.0), row.quantile(1.0)) == (min(values), max(values))


@given(st.lists(finite, max_size=30), st.integers(0, 10))
def test_the_worst_are_at_the_right_end(values: list[float], count: int) -> None:
    gpus = {
        str(n): Gpu(str(n), "h", str(n), n, "", {"temperature": v, "clock": v})
        for n, v in enumerate(values)
    }
    rows = {row.key: row for row in fleet_summary.rows(Reading(NOW, gpus))}
    for key, ordered in (("temperature", sorted(values, reverse=True)), ("clock", sorted(values))):
        found = [value for value, _ in rows[key].worst_devices(count)] if values else []
        assert found == ordered[:count]


def test_the_document_has_base_units_and_null_for_what_is_not_known() -> None:
    reading = read(server(FLEET), "", NOW)
    document = json.loads(fleet_summary.to_json(reading, "http://x", worst=2))
    assert (document["schema"], document["devices"], document["hosts"]) == ("topsmon.fleet/1", 8, 4)
    by_key = {row["quantity"]: row for row in document["quantities"]}
    assert set(by_key) == {"ratio_bf16", "busy"}
    assert by_key["busy"]["p50"] == pytest.approx(0.35)
    assert [row["uuid"] for row in by_key["busy"]["worst"]] == ["GPU-0-0", "GPU-0-1"]
    assert document["findings"][0]["device"] is None
    assert math.isclose(by_key["ratio_bf16"]["min"], 0.5)


def test_text_of_a_server_without_gpu_metrics_says_what_to_scrape() -> None:
    text = fleet_summary.text(Reading(NOW), "http://x")
    assert "topsmon export --prometheus, dcgm-exporter" in text


def test_lines_stay_within_the_width() -> None:
    reading = read(server(FLEET), "", NOW)
    assert (
        max(len(line) for line in fleet_summary.text(reading, "http://x", width=80).split("\n"))
        <= 80
    )


def http(asked: Asked) -> None:
    for part, rows in FLEET.items():
        if part in asked.query:
            asked.answer(vector(*rows))
            return
    asked.answer(vector())


def test_the_command_prints_text_and_json() -> None:
    with answering(http) as place:
        url = f"http://{place}"
        text = CliRunner().invoke(root, ["fleet", "--prometheus", url], obj=())
        document = CliRunner().invoke(root, ["fleet", "--prometheus", url, "--json"], obj=())
    assert text.exit_code == 0, text.output
    assert "8 GPUs on 4 hosts" in text.output
    assert json.loads(document.output)["devices"] == 8


def test_a_processor_is_counted_apart_from_the_gpus() -> None:
    reading = Reading(NOW, {"a": Gpu("a", "h", "GPU-1", 0), "h/cpu": Gpu("h/cpu", "h", "cpu")})
    assert "1 GPU and 1 CPU on 1 host\n" in fleet_summary.text(reading, "http://x")
    document = json.loads(fleet_summary.to_json(reading, "http://x"))
    assert (document["devices"], document["gpus"], document["cpus"]) == (2, 1, 1)


def test_a_list_in_which_nobody_stands_out_is_left_out() -> None:
    gpus = {
        str(n): Gpu(str(n), "h", str(n), n, "", {"throttled": 0.0, "busy": 0.5 * (n > 0)})
        for n in range(3)
    }
    text = fleet_summary.text(Reading(NOW, gpus), "http://x", worst=1)
    assert "lowest busy (any kernel): 0.0% h GPU 0" in text
    assert "highest clocks held down" not in text
    gpus["2"].numbers["throttled"] = 0.25
    text = fleet_summary.text(Reading(NOW, gpus), "http://x")
    assert "highest clocks held down: 25.0% h GPU 2\n" in text


def test_no_metrics_of_gpus_are_unknown() -> None:
    with answering(lambda asked: asked.answer(vector())) as place:
        result = CliRunner().invoke(root, ["fleet", "--prometheus", f"http://{place}"], obj=())
    assert result.exit_code == 3
    assert "no GPU metrics here" in result.output


def test_matchers_that_the_server_cannot_read_are_named() -> None:
    def refuse(asked: Asked) -> None:
        body = b'{"status": "error", "errorType": "bad_data", "error": "1:9: parse error: x"}'
        asked.answer(body, 400)

    with answering(refuse) as place:
        words = ["fleet", "--prometheus", f"http://{place}", "--match", "job=gpu"]
        result = CliRunner().invoke(root, words, obj=())
    assert result.exit_code == 3
    assert '--match job=gpu: write LABEL="VALUE",...: bad_data: 1:9: parse error' in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--prometheus foo", "--prometheus foo: give it as http://HOST:PORT"),
        ("--prometheus http://x --only 0", "No such option"),
        ("--prometheus http://x --python p", "No such option"),
    ],
)
def test_wrong_usage_is_named(words: str, told: str) -> None:
    result = CliRunner().invoke(root, ["fleet", *words.split()], obj=())
    assert result.exit_code == 2  # click's own; topsmon makes 64 of it
    assert told in result.output


def test_options_about_devices_here_are_refused() -> None:
    result = CliRunner().invoke(root, ["-o", "0", "fleet", "--prometheus", "http://x"], obj=())
    assert result.exit_code == 2
    assert "--match chooses series" in result.output


def test_a_server_that_is_not_there_is_one_line_and_unknown() -> None:
    from topsmon.cli import main

    assert command.name
    assert main(["fleet", "--prometheus", "http://127.0.0.1:1"]) == 3
    assert main(["fleet"]) == 64


def test_every_quantity_has_a_unit_that_is_shown() -> None:
    units = {quantity.unit for quantity in fleet_queries.QUANTITIES}
    assert units == {"ratio", "bytes", "watts", "celsius", "hertz"}

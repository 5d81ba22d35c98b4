"""What a server knows, fed to the fleet of the screen."""

from __future__ import annotations

import time

from test_fleet_from_prometheus import FLEET, NOW, own, server

from topsmon.exporters.fleet_reading import read
from topsmon.exporters.fleet_session import PrometheusSession
from topsmon.exporters.query import Server
from topsmon.fleet.trouble import Sieve

NUMBERS = {
    **FLEET,
    "topsmon_gpu_memory_used": [(own(0, 0), 60.0 * 2**30)],
    "topsmon_gpu_memory_total": [(own(0, 0), 80.0 * 2**30)],
    "topsmon_gpu_sm_clock": [(own(0, 0), 1.755e9)],
    "topsmon_run_mfu": [(own(0, 0), 0.41)],
}


def session() -> PrometheusSession:
    return PrometheusSession(Server("http://127.0.0.1:9"), "", 5.0)


def test_readings_become_the_devices_of_the_fleet() -> None:
    made = session()
    made.take(read(server(NUMBERS), "", NOW))
    assert list(made.fleet.hosts) == ["n0", "n1", "n2", "n3"]
    first = made.fleet.hosts["n0"].devices["GPU-0-0"]
    assert first.sample is not None
    assert (first.sample.sm_clock_mhz, first.sample.memory_used_bytes) == (1755.0, 60 * 2**30)
    assert first.sample.power_watts is None
    assert first.mfu == 0.41
    assert made.fleet.hosts["n3"].devices["GPU-3-1"].ratio("bf16") == 0.5
    worst = made.fleet.aggregate("ratio", precision="bf16")
    assert worst.count == 8


def test_a_host_that_the_server_forgets_is_gone() -> None:
    made = session()
    made.take(read(server(FLEET), "", NOW))
    less = {
        part: [row for row in rows if "node3" not in row[0]["instance"]]
        for part, rows in FLEET.items()
    }
    made.take(read(server(less), "", NOW + 5))
    assert made.fleet.hosts["n3"].link == "gone"
    assert made.fleet.hosts["n2"].link == "live"


def test_findings_come_and_end() -> None:
    made = session()
    made.take(read(server(FLEET), "", NOW))
    assert set(made.fleet.hosts["n2"].devices["GPU-2-1"].findings) == {"device-hot"}
    assert set(made.fleet.hosts["n1"].findings) == {"no-driver"}
    made.take(read(server({**FLEET, "topsmon_finding_active": []}), "", NOW + 5))
    assert made.fleet.hosts["n2"].devices["GPU-2-1"].findings == {}
    assert made.fleet.hosts["n1"].findings == {}


def test_a_server_that_goes_away_is_one_trouble_and_no_host_is_lost() -> None:
    made = session()
    made._lost("http://127.0.0.1:9: Connection refused")
    assert made.fleet.hosts == {}
    (trouble,) = Sieve().update(made.fleet, time.monotonic())
    assert (trouble.host, trouble.word, trouble.device) == ("http://127.0.0.1:9", "STALE", None)
    assert trouble.text == "Connection refused; nothing is known yet"
    made.take(read(server(FLEET), "", NOW))
    assert made.fleet.outage is None
    seen = time.monotonic()
    for view in made.fleet.hosts.values():
        view.seen = seen
    made._lost("timed out")
    late = seen + 100.0
    (trouble,) = [one for one in Sieve().update(made.fleet, late) if one.device is None]
    assert trouble.text.startswith("timed out; all numbers are ")
    assert {made.fleet.condition(host, late) for host in made.fleet.hosts} == {"stale"}
    made.select("n0")
    (finding,) = made.findings()
    assert (finding.code, finding.title) == (
        "fleet-server",
        "http://127.0.0.1:9 does not answer",
    )


def test_the_exported_board_is_that_of_the_drill_down() -> None:
    labels = {**own(0, 0), "name": "NVIDIA H100", "board": "h100-sxm"}
    made = session()
    made.take(read(server({**FLEET, "topsmon_gpu_info": [(labels, 1.0)]}), "", NOW))
    made.select("n0")
    device = made.state.devices["GPU-0-0"]
    assert device.ceilings is not None
    assert device.ceilings.board == "h100-sxm"
    computed = [one.device for one in made.findings() if one.code == "ceiling-computed"]
    assert computed == ["GPU-0-1"]  # of which no board was told


def test_a_host_can_be_looked_into() -> None:
    made = session()
    made.take(read(server(NUMBERS), "", NOW))
    made.select("n0")
    device = made.state.devices["GPU-0-0"]
    assert device.ratio("bf16") == 0.6
    assert device.identity.name == "NVIDIA H100"

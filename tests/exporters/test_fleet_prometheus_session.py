"""What a server knows, fed to the fleet of the screen."""

from __future__ import annotations

from test_fleet_from_prometheus import FLEET, NOW, own, server

from topsmon.exporters.fleet_reading import read
from topsmon.exporters.fleet_session import PrometheusSession
from topsmon.exporters.query import Server

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


def test_a_server_that_goes_away_takes_its_hosts_along() -> None:
    made = session()
    made._lost("connection refused")
    assert [(view.link, view.detail) for view in made.fleet.hosts.values()] == [
        ("gone", "connection refused")
    ]
    made.take(read(server(FLEET), "", NOW))
    assert "http://127.0.0.1:9" not in made.fleet.hosts
    made._lost("timed out")
    assert {view.link for view in made.fleet.hosts.values()} == {"gone"}


def test_a_host_can_be_looked_into() -> None:
    made = session()
    made.take(read(server(NUMBERS), "", NOW))
    made.select("n0")
    device = made.state.devices["GPU-0-0"]
    assert device.ratio("bf16") == 0.6
    assert device.identity.name == "NVIDIA H100"

"""Sessions over many hosts: selecting one, pausing, and the simulated one as a real child."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from fleet_events import gpu, sample, status

from topsmon import events
from topsmon.fleet.session import FleetSession
from topsmon.fleet.simulated import SimulatedFleetSession


def make() -> FleetSession:
    session = FleetSession()
    for host in "ab":
        session.receive(host, gpu(host, 0))
        session.receive(host, sample(host, 0, power_watts=100.0))
    return session


def test_no_host_is_selected_at_first() -> None:
    session = make()
    assert (session.host, session.state.devices, session.findings()) == (None, {}, ())


def test_the_state_is_that_of_the_selected_host() -> None:
    session = make()
    session.select("a")
    assert list(session.state.devices) == ["GPU-a-0"]
    session.receive("a", status("a", 0, "lost"))
    assert [one.word for one in session.findings()][:1] == ["LOST"]
    session.select("b")
    assert list(session.state.devices) == ["GPU-b-0"]
    session.select(None)
    assert session.findings() == ()


def test_the_host_before_is_fed_no_more() -> None:
    session = make()
    session.select("a")
    state = session.state
    session.select("b")
    version = state.version
    session.receive("a", sample("a", 0))
    assert state.version == version


def test_while_paused_everything_stands_still_and_nothing_gets_stale() -> None:
    session = make()
    session.pause(True)
    session.receive("a", sample("a", 0, power_watts=999.0))
    assert session.fleet.aggregate("power").high == 100.0
    assert session.fleet.interval is None
    session.pause(False)
    session.receive("a", sample("a", 0, power_watts=999.0))
    assert session.fleet.aggregate("power").high == 999.0


def test_listeners_hear_the_selected_host_alone() -> None:
    session, heard = make(), []
    session.listeners.append(heard.append)
    session.select("a")
    session.receive("a", sample("a", 0))
    session.receive("b", sample("b", 0))
    assert [event.source for event in heard] == ["a"]


@pytest.mark.real
async def test_a_simulated_fleet_comes_through_a_real_child() -> None:
    session = SimulatedFleetSession("nodes=12,gpus=2,fault=lost:node3:1", 0.5)
    await session.start()
    try:
        for _ in range(600):
            await asyncio.sleep(0.1)
            device = session.fleet.hosts.get("node3")
            gpus = device.shown if device is not None else ()
            lost = any(one.condition == "lost" for one in gpus)
            if lost and session.fleet.aggregate("busy").count == 23:
                break
        assert len(session.fleet.hosts) == 12
        assert session.fleet.aggregate("busy").count == 23
        session.select("node3")
        assert [device.condition for device in session.state.gpus()] == ["ok", "lost"]
    finally:
        await session.stop()


@pytest.mark.real
def test_the_stream_ends_quietly_when_its_reader_leaves() -> None:
    command = [sys.executable, "-m", "topsmon", "stream", "--simulate", "nodes=4", "-i", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        first = child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 0
    hello = events.LineDecoder().decode(first)
    assert isinstance(hello, events.Hello)
    assert (hello.source, hello.simulated) == ("node0", "nodes=4")

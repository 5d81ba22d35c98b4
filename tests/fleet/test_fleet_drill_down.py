"""The full state of one host of a fleet equals that of a screen on that host."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
from fleet_events import NOW, ceilings, fleet_of, gpu, hello, rate, sample, stamp, status
from hypothesis import given, settings
from hypothesis import strategies as st

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.fleet.simulated import played
from topsmon.fleet.state import FleetState
from topsmon.recording.known import known_events
from topsmon.simulated.fleet import SimulatedHost, Stamp, parse
from topsmon.state import State

HISTORIES = {
    *("recent", "busy", "memory_busy", "power_watts", "clock_mhz", "times", "growth"),
    *("recent_slices", "most_links_up"),
}


def everything() -> list[events.AnyEvent]:
    """Events of all kinds about one host with two GPUs, as they may follow each other."""
    key = "GPU-a-0"
    at = stamp("a")
    window = events.RunWindow(steps=50, mean_step_seconds=0.5)
    return [
        hello("a"),
        events.Host(**at, hostname="a", system="Linux"),
        gpu("a", 0),
        gpu("a", 1),
        ceilings("a", 0),
        ceilings("a", 1),
        status("a", 0, "ok"),
        sample("a", 0, busy_ratio=0.4),
        sample("a", 1, busy_ratio=0.5),
        events.HostSample(**at, cpu_busy_ratio=0.1),
        events.Problem(**at, subject="sysfs", code="denied", message="no"),
        events.Processes(**at, device=key, entries=(events.ProcessEntry(pid=5),)),
        events.Slices(**at, device=key, slices=(events.Slice(uuid="MIG-1", profile="1g"),)),
        events.Xid(**at, device=key, code=31),
        events.Xid(**at, device=key, code=79),
        events.ProberReady(**at, device=key, torch_version="2.13", python="python3"),
        events.ProbeStarted(**at, device=key, precision="bf16"),
        rate("a", 0, 700e12),
        rate("a", 0, 720e12, shape=(4096, 4096, 4096)),
        rate("a", 0, 650e12, valid=False, invalid_reason="shared"),
        rate("a", 0, 100e12, precision="fp32", correct=False),
        rate("a", 0, 60e12, precision="fp32"),
        events.ProbeUnsupported(**at, device=key, precision="fp4", reason="not here"),
        events.ProbeResult(**at, device=key, probe="launch", values={"launch_seconds": 4e-6}),
        events.ProberIdle(**at, device="GPU-a-1", reason="paused"),
        events.Worker(**at, worker=f"prober {key}", condition="running"),
        events.Run(**at, run="r", pid=5, hostname="a", started=1.0, device_uuid=key),
        events.RunSample(
            **at, run="r", step=9, stepped_at=2.0, window=window, totals=events.RunTotals(steps=9)
        ),
        events.RunEvent(**at, run="r", number=1, kind="skip", step=3),
        events.RunStatus(**at, run="r", condition="finished", since=3.0),
        sample("a", 0, busy_ratio=0.6, power_watts=500.0),
        status("a", 1, "lost", "GPU is lost"),
        events.Problem(**at, subject="sysfs", code=None, message=""),
    ]


def latest_of(device: DeviceState) -> dict[str, object]:
    found = {
        one.name: getattr(device, one.name)
        for one in fields(device)
        if one.name not in HISTORIES and one.name != "rates"
    }
    found["rates"] = {
        key: (one.best, one.latest, one.by_shape, one.wrong, one.unsupported, one.remembered)
        for key, one in device.rates.items()
    }
    return found


def assert_same(one: State, other: State) -> None:
    assert one.devices.keys() == other.devices.keys()
    for key, device in other.devices.items():
        assert latest_of(one.devices[key]) == latest_of(device)
    for name in ("hello", "host", "host_sample", "problems", "workers"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.runs.keys() == other.runs.keys()
    for key, run in other.runs.items():
        mine = one.runs[key]
        assert (mine.identity, mine.sample, mine.status) == (run.identity, run.sample, run.status)
        assert list(mine.happened) == list(run.happened)


def state_of(found: list[events.AnyEvent]) -> State:
    state = State()
    for event in found:
        state.apply(event, NOW)
    return state


def test_it_equals_a_state_that_was_fed_directly() -> None:
    found = everything()
    assert_same(fleet_of(*found).state_of("a"), state_of(found))


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=0), st.integers(min_value=0, max_value=60))
def test_it_does_so_whatever_the_order_of_events(seed: int, more: int) -> None:
    found = everything()
    chance = random.Random(seed)
    body = [chance.choice(found[4:]) for _ in range(more)] + found[4:]
    chance.shuffle(body)
    ordered = [*found[:4], *body]
    assert_same(fleet_of(*ordered).state_of("a"), state_of(ordered))


def test_it_is_fed_while_it_is_open_and_no_longer() -> None:
    fleet = fleet_of(*everything())
    state = fleet.state_of("a")
    assert fleet.state_of("a") is state
    for number in range(3):
        fleet.receive("a", sample("a", 0, busy_ratio=0.1 * number), NOW + number)
    assert list(state.devices["GPU-a-0"].busy)[-3:] == pytest.approx([0.0, 0.1, 0.2])
    fleet.release("a")
    fleet.receive("a", sample("a", 0, busy_ratio=0.9), NOW + 9)
    assert state.devices["GPU-a-0"].busy[-1] == pytest.approx(0.2)
    assert fleet.state_of("a").devices["GPU-a-0"].busy[-1] == 0.9


def test_ages_are_those_of_the_samples() -> None:
    fleet = fleet_of(gpu("a", 0), sample("a", 0))
    fleet.receive("b", gpu("b", 0), NOW + 60)
    assert fleet.state_of("a").devices["GPU-a-0"].age(NOW + 61) == pytest.approx(61)


def test_other_hosts_do_not_leak_into_it() -> None:
    fleet = fleet_of(gpu("a", 0), gpu("b", 0), sample("b", 0))
    state = fleet.state_of("a")
    fleet.receive("b", sample("b", 0), NOW)
    assert list(state.devices) == ["GPU-a-0"]


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(KeyError):
        FleetState().state_of("nobody")


def test_a_simulated_host_looks_the_same_both_ways() -> None:
    plan = parse("nodes=3,gpus=2,fault=hot:node1:0,fault=lost:node1:1")
    seconds = (0.0, 1.0, 4.0, 31.0)
    host, direct = SimulatedHost(plan, 1), State()
    start = Stamp(0.0, -31.0)
    found = list(host.begin(start))
    for second in seconds:
        found += host.tick(second, Stamp(second, start.monotonic + second))
    for event in found:
        direct.apply(event, event.monotonic)
    drilled = played(plan, seconds).state_of("node1")
    assert_types = [type(event) for event in known_events(direct)]
    assert [type(event) for event in known_events(drilled)] == assert_types
    for key, device in direct.devices.items():
        mine = drilled.devices[key]
        assert mine.sample is not None or device.sample is None
        assert mine.condition == device.condition
        assert mine.ratio("bf16") == device.ratio("bf16")

"""Plans of simulated fleets: what is read, what is refused, and that they repeat themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon import events
from topsmon.ceilings import for_device
from topsmon.simulated.fleet import Fault, FleetPlan, SimulatedHost, Stamp, parse
from topsmon.simulated.values import SimulationError


def test_a_plan_is_read() -> None:
    plan = parse("nodes=1250,gpus=4,fault=straggler:node17:3,fault=gone:node2,seed=7")
    assert (plan.nodes, plan.gpus, plan.seed) == (1250, 4, 7)
    assert plan.faults == (Fault("straggler", 17, 3), Fault("gone", 2, None))
    assert plan.name(17) == "node17"


def test_eight_gpus_are_usual() -> None:
    assert parse("nodes=2").gpus == 8


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nodes=", "whole number"),
        ("nodes=-1", "whole number"),
        ("nodes=0", "1 to"),
        ("nodes=99999999999999999999", "1 to"),
        ("nodes=2,gpus=99", "1 to"),
        ("nodes=2,colour=red", "KEY"),
        ("nodes=2,fault=sad:node1:1", "KIND"),
        ("nodes=2,fault=hot:node1", "KIND"),
        ("nodes=2,fault=hot:node1:8", "no such GPU"),
        ("nodes=2,fault=hot:node2:0", "no such GPU"),
        ("nodes=2,fault=gone:node1:1", "KIND"),
        ("nodes=2,fault=hot:node:1", "KIND"),
        ("nodes=٢", "whole number"),
    ],
)
def test_what_is_wrong_is_named(text: str, word: str) -> None:
    with pytest.raises(SimulationError, match=word) as caught:
        parse(text)
    assert text in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_plan_or_a_named_error(text: str) -> None:
    try:
        plan = parse("nodes=2," + text)
    except SimulationError:
        return
    assert plan.nodes >= 1


def events_of(plan: FleetPlan, node: int, seconds: tuple[float, ...]) -> list[events.AnyEvent]:
    host = SimulatedHost(plan, node)
    found = list(host.begin(Stamp(0.0, 0.0)))
    for second in seconds:
        found += host.tick(second, Stamp(second, second))
    return found


def test_the_same_plan_tells_the_same_and_another_seed_does_not() -> None:
    seconds = (0.0, 1.0, 2.0)
    one = events_of(parse("nodes=9,seed=1"), 5, seconds)
    assert one == events_of(parse("nodes=9,seed=1"), 5, seconds)
    assert one != events_of(parse("nodes=9,seed=2"), 5, seconds)


def test_every_line_carries_its_host_and_survives_the_wire() -> None:
    decoder = events.LineDecoder()
    for event in events_of(parse("nodes=9,fault=lost:node5:1"), 5, (0.0, 4.0)):
        assert event.source.partition("/")[0] == "node5"
        assert decoder.decode(events.encode(event)) == event
    assert decoder.malformed == decoder.skipped == 0


def test_uuids_differ_across_the_fleet() -> None:
    plan = parse("nodes=40,gpus=8")
    keys = [
        event.device
        for node in range(plan.nodes)
        for event in SimulatedHost(plan, node).begin(Stamp(0.0, 0.0))
        if isinstance(event, events.Device)
    ]
    assert len(set(keys)) == len(keys) == 320


def test_ceilings_are_those_of_the_board() -> None:
    found = events_of(parse("nodes=1,gpus=1"), 0, ())
    device = next(event for event in found if isinstance(event, events.Device))
    (told,) = (event for event in found if isinstance(event, events.Ceilings))
    assert told == for_device(device)
    assert next(one for one in told.rates if one.precision == "bf16").ops_per_second == (
        pytest.approx(989.4e12, rel=1e-3)
    )


def test_values_are_those_of_a_real_board() -> None:
    for node in range(4):
        for event in events_of(parse("nodes=4"), node, (0.0, 5.0, 17.0)):
            if isinstance(event, events.DeviceSample):
                assert 0.0 <= event.busy_ratio <= 1.0
                assert 60.0 <= event.power_watts <= 700.0
                assert 20.0 <= event.temperature_celsius < 87.0
                assert event.sm_clock_mhz <= 1980.0
                assert event.memory_used_bytes < event.memory_total_bytes


def test_a_host_that_is_gone_falls_silent() -> None:
    plan = parse("nodes=2,fault=gone:node1")
    assert events_of(plan, 1, (9.0,))[-1].time == 9.0
    assert list(SimulatedHost(plan, 1).tick(11.0, Stamp(11.0, 11.0))) == []
    assert list(SimulatedHost(plan, 0).tick(11.0, Stamp(11.0, 11.0))) != []


def test_the_job_waits_for_its_slowest() -> None:
    def step(plan: str, node: int) -> float | None:
        samples = [one for one in events_of(parse(plan), node, (9.0,)) if hasattr(one, "window")]
        return samples[-1].window.mean_step_seconds if samples else None

    healthy = step("nodes=20", 3)
    assert step("nodes=20,fault=straggler:node1:0", 3) > 1.2 * healthy
    assert step("nodes=20,fault=straggler:node1:0", 17) == healthy
    assert step("nodes=20,fault=lost:node1:0", 3) is None

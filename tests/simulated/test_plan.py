"""The simulated prober in plan mode: each key once, in order, then the end."""

import json
import threading

import pytest

from topsmon import events
from topsmon.simulated import SCENARIOS, load


def measure(simulation, name: str, index: int, plan: str) -> list[events.AnyEvent]:
    uuid = load(name).devices[index].texts["uuid"]
    process = simulation.start(
        "-m", "topsmon.simulated.prober", "--device", uuid, "--plan", plan, "--seconds", "9"
    )
    guard = threading.Timer(20, process.kill)
    guard.start()
    decoder = events.LineDecoder()
    found = [decoder.decode(line) for line in process.stdout]
    guard.cancel()
    assert process.wait(timeout=60) == 0
    assert None not in found
    return found


def test_everything_once_and_in_order(simulate) -> None:
    found = measure(simulate("h100-8"), "h100-8", 1, "memory,bf16,fp4,sparsity")
    kinds = [type(event) for event in found]
    assert kinds == [
        events.Hello,
        events.ProberReady,
        events.ProbeStarted,
        events.ProbeResult,
        events.ProbeStarted,
        events.RateMeasured,
        events.ProbeStarted,
        events.RateMeasured,
        events.ProbeUnsupported,
        events.ProbeStarted,
        events.ProbeUnsupported,
    ]
    assert found[3].values["copy_bytes_per_second"] == pytest.approx(0.92 * 3352.3e9, rel=1e-3)
    assert found[8].precision == "fp4"
    assert found[10].reason == "the scenario has no result for it"


def test_copies_scale_with_the_link_which_is_read_meanwhile(simulate) -> None:
    simulation = simulate("pcie-narrow")
    wide, narrow = (measure(simulation, "pcie-narrow", index, "transfer")[-1] for index in (0, 1))
    assert (wide.values["pcie_generation"], wide.values["pcie_width"]) == (5, 16)
    assert narrow.values["pcie_width"] == 4
    assert narrow.values["h2d_pinned_bytes_per_second"] == pytest.approx(
        wide.values["h2d_pinned_bytes_per_second"] / 4
    )


def test_zero_readings_give_zero_rates(simulate) -> None:
    found = measure(simulate("all-zero"), "all-zero", 0, "bf16,memory,transfer")
    rates = [event for event in found if isinstance(event, events.RateMeasured)]
    assert {event.rate_ops_per_second for event in rates} == {0.0}
    probes = [event for event in found if isinstance(event, events.ProbeResult)]
    assert probes[0].values["copy_bytes_per_second"] == 0
    assert probes[1].values["h2d_pinned_bytes_per_second"] == 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_laboratory_value_says_where_it_comes_from(name: str) -> None:
    for probe in load(name).lab.values():
        assert probe.source
        assert json.dumps(probe.values)

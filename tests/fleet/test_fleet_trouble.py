"""What stands out in a fleet, in which order, and what must not."""

from __future__ import annotations

import pytest
from fleet_events import CEILING, NOW, ceilings, fleet_of, gpu, hello, rate, sample, stamp, status

from topsmon import events
from topsmon.diagnosis import clock_events
from topsmon.fleet.simulated import played
from topsmon.fleet.state import FleetState
from topsmon.fleet.trouble import SLOW_LOOKS, Sieve, Trouble
from topsmon.simulated.fleet import parse


def look(fleet: FleetState, now: float = NOW, looks: int = 1) -> tuple[Trouble, ...]:
    sieve = Sieve()
    for number in range(looks):
        for host in fleet.hosts.values():
            if number and host.link == "live":
                host.seen = now + 2 * number
        sieve.update(fleet, now + 2 * number)
    return sieve.troubles


def told(troubles: tuple[Trouble, ...]) -> list[tuple[str, str, str]]:
    return [(one.word, one.host, one.label) for one in troubles]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("straggler:node17:3", ("SLOW", "node17", "GPU 3")),
        ("hot:node2:0", ("HOT", "node2", "GPU 0")),
        ("lost:node9:7", ("LOST", "node9", "GPU 7")),
        ("ecc:node1:1", ("FAIL", "node1", "GPU 1")),
        ("gone:node4", ("LOST", "node4", "")),
    ],
)
def test_a_simulated_fault_is_the_worst_of_its_fleet(
    fault: str, expected: tuple[str, str, str]
) -> None:
    seconds = (0.0, 3.0, 4.0, 8.0) if "gone" not in fault else tuple(map(float, range(0, 50, 2)))
    troubles = look(played(parse(f"nodes=24,fault={fault}"), seconds), 0.0)
    assert told(troubles)[0] == expected
    assert {one.host for one in troubles} == {expected[1]}


def test_nothing_stands_out_in_a_healthy_fleet() -> None:
    assert look(played(parse("nodes=24")), 0.0, looks=SLOW_LOOKS + 2) == ()


def test_worst_first() -> None:
    fleet = fleet_of(
        *(gpu(host, 0) for host in "abcd"),
        status("c", 0, "lost"),
        sample("b", 0, ecc_uncorrected_volatile=2),
    )
    fleet.link("d", "stale", "", NOW)
    assert told(look(fleet)) == [
        ("LOST", "c", "GPU 0"),
        ("FAIL", "b", "GPU 0"),
        ("STALE", "d", ""),
    ]


@pytest.mark.parametrize(("share", "slow"), [(0.91, False), (0.89, True)])
def test_a_rate_is_held_against_the_best_of_equal_boards(share: float, slow: bool) -> None:
    fleet = fleet_of(
        *(gpu("a", index) for index in range(4)),
        *(ceilings("a", index) for index in range(4)),
        *(rate("a", index, 0.74 * CEILING) for index in range(3)),
        rate("a", 3, share * 0.74 * CEILING),
    )
    assert told(look(fleet)) == ([("SLOW", "a", "GPU 3")] if slow else [])


def test_of_two_boards_the_slow_one_is_named() -> None:
    fleet = fleet_of(gpu("a", 0), gpu("b", 0), rate("a", 0, 700e12), rate("b", 0, 500e12))
    assert told(look(fleet)) == [("SLOW", "b", "GPU 0")]


def test_other_boards_are_no_measure() -> None:
    fleet = fleet_of(
        *(gpu("a", 0), gpu("b", 0, name="NVIDIA L4")), rate("a", 0, 700e12), rate("b", 0, 100e12)
    )
    assert look(fleet) == ()


def test_one_blip_of_the_clock_events_is_no_fault_and_two_in_a_row_are() -> None:
    fleet = fleet_of(gpu("a", 0), sample("a", 0, clock_event_mask=0))
    hot = sample("a", 0, clock_event_mask=clock_events.HW_THERMAL, temperature_celsius=91.0)
    fleet.receive("a", hot, NOW)
    assert look(fleet) == ()
    fleet.receive("a", hot, NOW)
    found = look(fleet)
    assert told(found) == [("HOT", "a", "GPU 0")]
    assert found[0].text == "HW thermal slowdown at 91 °C"


def test_a_power_cap_alone_is_normal() -> None:
    capped = sample("a", 0, clock_event_mask=clock_events.SW_POWER_CAP)
    assert look(fleet_of(gpu("a", 0), capped, capped)) == ()


@pytest.mark.parametrize(("busy", "expected"), [(0.99, True), (0.3, False)])
def test_a_busy_device_whose_clock_stays_low_is_told(busy: float, expected: bool) -> None:
    fleet = fleet_of(
        *(gpu("a", index) for index in range(4)),
        *(sample("a", index, busy_ratio=0.99, sm_clock_mhz=1755.0) for index in range(3)),
        sample("a", 3, busy_ratio=busy, sm_clock_mhz=1200.0),
    )
    assert look(fleet, looks=SLOW_LOOKS - 1) == ()
    assert told(look(fleet, looks=SLOW_LOOKS)) == ([("SLOW", "a", "GPU 3")] if expected else [])


def test_an_application_s_xid_is_no_fault_of_the_board() -> None:
    xid = events.Xid(**stamp("a"), device="GPU-a-0", code=31)
    quiet = sample("a", 0)
    assert look(fleet_of(gpu("a", 0), quiet, xid)) == ()
    other = events.Xid(**stamp("a"), device="GPU-a-0", code=79)
    assert told(look(fleet_of(gpu("a", 0), quiet, other)))[0][0] == "FAIL"


def test_findings_of_the_host_itself_are_told_and_notes_are_not() -> None:
    def finding(code: str, severity: str, device: str | None) -> events.Finding:
        return events.Finding(
            **stamp("a"),
            code=code,
            severity=severity,
            word="FULL",
            title="GPU 0  memory is full",
            device=device,
        )

    fleet = fleet_of(
        gpu("a", 0),
        sample("a", 0),
        finding("memory-full", "warn", "GPU-a-0"),
        finding("a-note", "info", "GPU-a-0"),
        finding("other", "warn", None),
    )
    found = look(fleet)
    assert sorted(told(found)) == [("FULL", "a", ""), ("FULL", "a", "GPU 0")]
    assert {one.label: one.text for one in found}["GPU 0"] == "memory is full"


def test_a_host_that_is_gone_says_why_and_since_when() -> None:
    fleet = fleet_of(hello("a"), gpu("a", 0), status("a", 0, "lost"))
    fleet.link("a", "gone", "Connection \x1b[31mreset", NOW + 5)
    (found,) = look(fleet, NOW + 75)
    assert found.severity == "fail"
    assert (
        found.text
        == "host gone: Connection \N{REPLACEMENT CHARACTER}[31mreset, last heard of 1 min ago"
    )


def test_a_host_refused_before_it_said_anything() -> None:
    fleet = FleetState()
    fleet.link("a", "refused", "Host key verification failed.", NOW)
    assert [one.text for one in look(fleet)] == ["refused: Host key verification failed."]


def test_a_problem_of_its_driver_is_told() -> None:
    problem = events.Problem(
        **stamp("a"), subject="nvml", code="version-mismatch", message="driver/library mismatch"
    )
    assert told(look(fleet_of(hello("a"), problem))) == [("N/A", "a", "")]


def test_it_looks_at_most_once_a_second() -> None:
    fleet, sieve = fleet_of(gpu("a", 0), sample("a", 0)), Sieve()
    assert sieve.update(fleet, NOW) == ()
    fleet.receive("a", status("a", 0, "lost"), NOW)
    assert sieve.update(fleet, NOW + 0.5) == ()
    assert told(sieve.update(fleet, NOW + 1.0)) == [("LOST", "a", "GPU 0")]

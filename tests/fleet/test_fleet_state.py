"""What a fleet keeps of its hosts, and when it calls them silent."""

from __future__ import annotations

import gc
import sys

import pytest
from fleet_events import (
    CEILING,
    NOW,
    ceilings,
    fleet_of,
    gpu,
    hello,
    rate,
    sample,
    stamp,
    status,
)

from topsmon import events
from topsmon.fleet.state import FleetState


def test_hosts_keep_the_order_in_which_they_were_named() -> None:
    fleet = FleetState()
    for name in ("b", "a"):
        fleet.add(name)
    fleet.receive("c", hello("c"), NOW)
    assert list(fleet.hosts) == ["b", "a", "c"]
    assert [fleet.condition(name, NOW) for name in fleet.hosts] == ["connecting"] * 2 + ["live"]


def test_only_the_latest_sample_is_kept() -> None:
    fleet = fleet_of(gpu("a", 0), sample("a", 0, busy_ratio=0.1))
    fleet.receive("a", sample("a", 0, busy_ratio=0.2), NOW + 1)
    device = fleet.hosts["a"].devices["GPU-a-0"]
    assert device.sample is not None
    assert (device.sample.busy_ratio, device.seen) == (0.2, NOW + 1)


def test_an_event_before_its_device_waits_for_it() -> None:
    fleet = fleet_of(sample("a", 0, busy_ratio=0.3), gpu("a", 0))
    device = fleet.hosts["a"].devices["GPU-a-0"]
    assert device.sample is not None
    assert device.sample.busy_ratio == 0.3
    assert fleet.hosts["a"].waiting == []


def test_events_of_devices_that_never_come_do_not_pile_up() -> None:
    fleet = FleetState()
    for _ in range(1000):
        fleet.receive("a", sample("a", 0), NOW)
    assert len(fleet.hosts["a"].waiting) <= 64


def test_equal_keys_on_two_hosts_are_two_devices() -> None:
    fleet = FleetState()
    for host in ("a", "b"):
        one = gpu("same", 0)
        fleet.receive(host, one, NOW)
    fleet.receive("a", sample("same", 0, power_watts=1.0), NOW)
    assert fleet.hosts["b"].devices["GPU-same-0"].sample is None


@pytest.mark.parametrize(
    ("silent", "interval", "expected"),
    [
        (1.0, 1.0, "live"),
        (2.9, 1.0, "live"),
        (3.1, 1.0, "stale"),
        (29.9, 1.0, "stale"),
        (30.1, 1.0, "gone"),
        (2.0, 0.1, "live"),
        (2.6, 0.1, "stale"),
        (14.0, 0.1, "stale"),
        (15.1, 0.1, "gone"),
        (25.0, 10.0, "live"),
        (1e6, None, "live"),
    ],
)
def test_a_silent_host_becomes_stale_and_then_gone(
    silent: float, interval: float | None, expected: str
) -> None:
    fleet = fleet_of(gpu("a", 0))
    fleet.interval = interval
    assert fleet.condition("a", NOW + silent) == expected


def test_a_link_that_was_told_gone_stays_so_until_it_is_told_live() -> None:
    fleet = fleet_of(gpu("a", 0))
    fleet.link("a", "gone", "Connection reset by peer", NOW + 1)
    assert fleet.condition("a", NOW + 1) == "gone"
    assert fleet.hosts["a"].detail == "Connection reset by peer"
    fleet.link("a", "live", "", NOW + 90)
    assert fleet.condition("a", NOW + 91) == "live"


def test_a_new_connection_is_not_stale_before_it_could_say_anything() -> None:
    fleet = fleet_of(gpu("a", 0))
    fleet.link("a", "gone", "", NOW + 5)
    fleet.link("a", "live", "", NOW + 500)
    assert fleet.condition("a", NOW + 501) == "live"
    assert fleet.condition("a", NOW + 504) == "stale"


def test_a_new_poller_ends_the_troubles_of_its_predecessor() -> None:
    finding = events.Finding(
        **stamp("a"), code="hot", severity="warn", word="HOT", title="hot", device="GPU-a-0"
    )
    problem = events.Problem(**stamp("a"), subject="nvml", code="missing", message="no library")
    fleet = fleet_of(hello("a"), gpu("a", 0), status("a", 0, "lost"), problem, finding)
    fleet.receive("a", hello("a", role="prober"), NOW)
    host = fleet.hosts["a"]
    assert host.devices["GPU-a-0"].condition == "lost"
    fleet.receive("a", hello("a"), NOW)
    assert host.devices["GPU-a-0"].condition == "ok"
    assert host.problems == {}
    assert host.devices["GPU-a-0"].findings == {}


def test_another_gpu_in_the_same_slot_after_a_restart_replaces_the_old_one() -> None:
    fleet = fleet_of(hello("a"), gpu("a", 0), gpu("a", 1), hello("a"))
    other = events.Device(**stamp("a"), device="GPU-new", kind="gpu", index=0, name="NVIDIA H100")
    fleet.receive("a", other, NOW)
    assert [device.key for device in fleet.hosts["a"].shown] == ["GPU-new", "GPU-a-1"]


def test_a_finding_is_over_when_it_is_said_to_be() -> None:
    finding = events.Finding(
        **stamp("a"), code="hot", severity="warn", word="HOT", title="hot", device="GPU-a-0"
    )
    fleet = fleet_of(gpu("a", 0), finding)
    assert set(fleet.hosts["a"].devices["GPU-a-0"].findings) == {"hot"}
    fleet.receive(
        "a",
        events.Finding(
            **stamp("a"),
            code="hot",
            severity="warn",
            word="HOT",
            title="hot",
            device="GPU-a-0",
            ended=True,
        ),
        NOW,
    )
    assert fleet.hosts["a"].devices["GPU-a-0"].findings == {}


def test_a_wrong_or_untrusted_rate_is_no_achievement() -> None:
    fleet = fleet_of(gpu("a", 0), ceilings("a", 0))
    device = fleet.hosts["a"].devices["GPU-a-0"]
    fleet.receive("a", rate("a", 0, 2 * CEILING, valid=False, invalid_reason="shared"), NOW)
    assert device.ratio("bf16") is None
    fleet.receive("a", rate("a", 0, 0.7 * CEILING), NOW)
    assert device.ratio("bf16") == pytest.approx(0.7)
    fleet.receive("a", rate("a", 0, 0.9 * CEILING, correct=False), NOW)
    assert device.ratio("bf16") is None
    assert device.wrong is not None


def test_equal_ceilings_are_kept_once() -> None:
    fleet = fleet_of(
        *(gpu(host, index) for host in "abc" for index in range(4)),
        *(ceilings(host, index) for host in "abc" for index in range(4)),
        *(gpu("d", 0), ceilings("d", 0, rate=60e12)),
    )
    shared = {
        id(device.ceilings) for host in fleet.hosts.values() for device in host.devices.values()
    }
    assert len(shared) == len(fleet.ceilings) == 2
    device = fleet.hosts["c"].devices["GPU-c-3"]
    assert device.ceilings is not None
    assert device.ceilings.of(device.identity).device == "GPU-c-3"
    assert device.absence("fp4") == "not on sm_90"


def test_a_device_takes_no_more_room_after_many_samples() -> None:
    fleet = fleet_of(gpu("a", 0))
    device = fleet.hosts["a"].devices["GPU-a-0"]
    for number in range(200):
        fleet.receive("a", sample("a", 0, busy_ratio=0.5), NOW + number)

    def reachable() -> int:
        gc.collect()
        seen, todo = set(), [device]
        while todo:
            one = todo.pop()
            if id(one) in seen or isinstance(one, type):
                continue
            seen.add(id(one))
            todo += gc.get_referents(one)
        return len(seen)

    before, size = reachable(), sys.getsizeof(device.xids)
    for number in range(2000):
        fleet.receive("a", sample("a", 0, busy_ratio=0.5), NOW + number)
    assert reachable() <= before + 2
    assert sys.getsizeof(device.xids) == size


def test_a_host_that_was_removed_is_not_there_any_more() -> None:
    fleet = fleet_of(gpu("a", 0))
    fleet.remove("a")
    assert fleet.hosts == {}
    assert fleet.aggregate("busy").missing == 0

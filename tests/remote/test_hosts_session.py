"""The session over several hosts: what the screen is given of them, and what is kept from it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fake_ssh import HEADER, FakeSsh, device, hello, lines, sample
from waiting import until

from topsmon import events
from topsmon.remote import link
from topsmon.remote.condition import link_finding
from topsmon.remote.session import FEW_HOSTS, HostsSession
from topsmon.remote.ssh import LinkOptions
from topsmon.tui.options import SessionLike

STREAM = hello() + "\n" + lines(device(), sample())


def session(*hosts: str) -> HostsSession:
    return HostsSession(hosts or ("a", "b"), LinkOptions())


@asynccontextmanager
async def running(made: HostsSession) -> AsyncIterator[HostsSession]:
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def feed(made: HostsSession, host: str, *more: events.AnyEvent) -> None:
    made.link(host, "live", "")
    for event in more:
        made.receive(host, event)


def test_it_is_a_session_as_the_screen_wants_one() -> None:
    made: SessionLike = session()
    assert made.torch_problem is not None
    assert "ssh -t a topsmon" in made.torch_problem
    made.benchmark(None, True)
    assert not made.benchmarking("GPU-1")


def test_each_host_has_its_own_state_and_one_is_looked_at() -> None:
    made = session()
    feed(made, "a", device(), sample(busy=0.1))
    feed(made, "b", device(), sample(busy=0.9))
    assert made.host == "a"
    assert made.state.devices["GPU-1"].sample.busy_ratio == 0.1  # type: ignore[union-attr]
    made.select("b")
    assert made.state.devices["GPU-1"].sample.busy_ratio == 0.9  # type: ignore[union-attr]
    assert "ssh -t b topsmon" in str(made.torch_problem)
    made.select(None)
    assert not made.state.devices


@pytest.mark.parametrize(("hosts", "kept"), [(2, 3), (FEW_HOSTS + 1, 1)])
def test_a_few_hosts_keep_their_histories_and_many_do_not(hosts: int, kept: int) -> None:
    made = session(*(f"h{number}" for number in range(hosts)))
    feed(made, "h0", device(), sample(), sample(), sample())
    made.select("h1")
    made.select("h0")
    assert len(made.state.devices["GPU-1"].busy) == kept


def test_processes_of_another_machine_cannot_be_signalled_here() -> None:
    entry = events.ProcessEntry(pid=1234, command="python train.py", start_ticks=99)
    made = session()
    feed(
        made,
        "a",
        device(),
        events.Processes(**HEADER, device="GPU-1", entries=(entry,)),
        events.Processes(**HEADER, device="GPU-2", entries=None, reason="no permission"),
    )
    known = made.state.devices["GPU-1"].processes
    assert known is not None
    assert known.entries is not None
    assert known.entries[0].start_ticks is None
    assert known.entries[0].command == "python train.py"


def test_a_host_does_not_speak_for_our_own_children() -> None:
    made = session()
    feed(made, "a", events.Worker(**HEADER, worker="poller", condition="failed", detail="\x1b[2J"))
    assert not made.state.workers


def test_samples_are_due_only_while_a_host_is_asked_for_them() -> None:
    made = session()
    assert made.state.sampling_since is None
    feed(made, "a", device(), sample())
    assert made.state.sampling_since is not None
    made.pause(True)
    assert made.state.sampling_since is None
    assert made.fleet.interval is None
    made.pause(False)
    made.set_interval(5.0)
    assert (made.state.interval, made.fleet.interval, made.interval) == (5.0, 5.0, 5.0)
    assert made.state.sampling_since is not None


def test_only_the_host_that_is_looked_at_is_listened_to() -> None:
    made, heard = session(), []
    made.listeners.append(heard.append)
    feed(made, "a", device(), sample())
    feed(made, "b", device(), sample())
    assert len(heard) == 2


def test_what_is_wrong_with_the_chosen_host_comes_first() -> None:
    made = session("a", "b", "c")
    feed(made, "a", device(), sample())
    feed(made, "b", device(), sample())
    made.link("b", "gone", "Connection refused")
    made.link("c", "refused", "\x1b]0;x\x07topsmon cannot be run there; install topsmon on c")
    made.select("b")
    first, *others = made.findings()
    assert (first.code, first.word, first.source) == ("host-gone", "LOST", "b")
    assert "last heard" in first.title
    assert first.cause == "Connection refused"
    refused = next(finding for finding in others if finding.code == "host-refused")
    assert refused.source == "c"
    assert "install topsmon on c" in refused.cause
    assert refused.cause.isprintable()
    assert all(finding.severity != "fail" for finding in (first, *others))


def test_a_silent_host_is_stale_after_three_intervals_with_its_age() -> None:
    made = session("a")
    feed(made, "a", device(), sample())
    seen = made.fleet.hosts["a"].seen
    assert seen is not None
    assert link_finding(made.fleet, "a", seen + 2.0) is None
    made.fleet.interval = 2.0
    assert link_finding(made.fleet, "a", seen + 5.5) is None
    silent = link_finding(made.fleet, "a", seen + 7.0)
    assert silent is not None
    assert silent.word == "STALE"
    assert "7.0 s ago" in silent.title


async def test_commands_reach_every_host_and_a_new_stream_too(
    ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "STOP_GRACE_SECONDS", 60.0)
    for host in ("a", "b"):
        ssh.plays(host, "say stream; wait_for_end", stream=STREAM)
    made = session()
    made.pause(True)
    async with running(made):
        await until(lambda: all(view.link == "live" for view in made.fleet.hosts.values()))
        assert len(made.child_pids()) == 2
        made.set_interval(0.5)
        made.set_counters(False)
    assert made.child_pids() == []
    expected = [
        {"command": "counters", "on": True},
        {"command": "pause"},
        {"command": "interval", "seconds": 0.5},
        {"command": "counters", "on": False},
        {"command": "stop"},
    ]
    for host in ("a", "b"):
        await until(lambda host=host: ssh.commands(host) == expected)  # type: ignore[misc]


async def test_it_can_be_started_again_after_a_stop(ssh: FakeSsh) -> None:
    ssh.plays("a", "say stream; wait_for_end", stream=STREAM)
    made = session("a")
    for _ in range(2):
        made.fleet.link("a", "connecting", "", 0.0)
        async with running(made):
            await until(lambda: made.fleet.hosts["a"].link == "live")

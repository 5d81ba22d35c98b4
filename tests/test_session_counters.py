"""GPM counters in a session: asked for while shown, marked where topsmon itself computed."""

from __future__ import annotations

import pytest

from topsmon import events
from topsmon.session import Session, SessionOptions


def sample(at: float, seconds: float = 1.0) -> events.DeviceSample:
    counters = events.GpuCounters(seconds=seconds, sm_active_ratio=0.9)
    return events.DeviceSample(
        time=at, monotonic=at, source="host/GPU-1", device="GPU-1", counters=counters
    )


@pytest.fixture
def session() -> Session:
    made = Session(SessionOptions(benchmarks=False))
    made.receive(
        events.Device(
            time=0.0,
            monotonic=0.0,
            source="host/GPU-1",
            device="GPU-1",
            kind="gpu",
            index=0,
            name="GPU",
        )
    )
    return made


def started(at: float) -> events.ProbeStarted:
    return events.ProbeStarted(
        time=at, monotonic=at, source="host/GPU-1", device="GPU-1", precision="fp32"
    )


def measured(at: float) -> events.RateMeasured:
    return events.RateMeasured(
        time=at,
        monotonic=at,
        source="host/GPU-1",
        device="GPU-1",
        precision="fp32",
        rate_ops_per_second=1e12,
    )


def marked(session: Session) -> bool:
    shown = session.state.devices["GPU-1"].sample
    assert shown is not None
    assert shown.counters is not None
    assert shown.counters.sm_active_ratio == 0.9
    return shown.counters.during_burst


def test_counters_without_a_burst_are_not_marked(session: Session) -> None:
    session.receive(sample(10.0))
    assert not marked(session)


def test_counters_of_a_running_burst_are_marked(session: Session) -> None:
    session.receive(started(9.8))
    session.receive(sample(10.0))
    assert marked(session)


def test_counters_whose_time_overlaps_a_burst_are_marked(session: Session) -> None:
    session.receive(started(9.1))
    session.receive(measured(9.3))
    session.receive(sample(10.0))
    assert marked(session)
    session.receive(sample(11.0))
    assert not marked(session)


class Sent:
    """In place of the poller's worker: keeps what is sent to it."""

    def __init__(self) -> None:
        self.commands: list[dict[str, object]] = []

    def send(self, **command: object) -> None:
        self.commands.append(command)


def test_a_poller_that_starts_again_is_told_whether_counters_are_shown(session: Session) -> None:
    poller = Sent()
    session._poller = poller  # type: ignore[assignment]
    session.set_counters(False)
    session._poller_started()
    session.set_counters(True)
    session._poller_started()
    wishes = [command["on"] for command in poller.commands if command["command"] == "counters"]
    assert wishes == [False, False, True, True]

"""A burst that ends with its prober: the counters of that time are topsmon's own doing as well."""

from typing import Any

import pytest

from topsmon import events
from topsmon.session import Session, SessionOptions


def header(at: float) -> dict[str, Any]:
    return {"time": at, "monotonic": at, "source": "host"}


@pytest.fixture
def session() -> Session:
    made = Session(SessionOptions(benchmarks=False))
    made.receive(
        events.Device(**header(0.0), device="GPU-1", kind="gpu", index=0, name="NVIDIA GPU")
    )
    made.receive(events.ProbeStarted(**header(5.0), device="GPU-1", precision="fp32"))
    return made


def own(session: Session, at: float) -> bool:
    counters = events.GpuCounters(seconds=1.0, sm_active_ratio=0.9)
    session.receive(events.DeviceSample(**header(at), device="GPU-1", counters=counters))
    shown = session.state.devices["GPU-1"].sample
    assert shown is not None
    assert shown.counters is not None
    return shown.counters.during_burst


def test_a_prober_that_crashed_in_a_burst(session: Session) -> None:
    session.receive(
        events.Worker(**header(9.5), worker="prober GPU-1", condition="restarted", restarts=1)
    )
    assert own(session, 10.0)
    assert not own(session, 11.0)


def test_a_precision_that_was_refused_in_a_burst(session: Session) -> None:
    session.receive(
        events.ProbeUnsupported(
            **header(9.5), device="GPU-1", precision="fp32", reason="out of memory"
        )
    )
    assert own(session, 10.0)
    assert not own(session, 11.0)

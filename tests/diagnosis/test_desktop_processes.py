"""A desktop on a GPU is listed and does not count as somebody's work."""

from __future__ import annotations

from typing import Any

import pytest

from topsmon import events
from topsmon.diagnosis import diagnose
from topsmon.diagnosis.observe import other_processes
from topsmon.state import State


def machine(kind: str) -> State:
    stamp: dict[str, Any] = {"time": 0.0, "monotonic": 0.0, "source": "node"}
    entry = events.ProcessEntry(pid=2755, name="Xorg", memory_bytes=1 << 27, kind=kind)
    state = State()
    for event in (
        events.Device(**stamp, device="GPU-1", kind="gpu", index=0, name="NVIDIA RTX 4090"),
        events.DeviceSample(**stamp, device="GPU-1", busy_ratio=0.01),
        events.Processes(**stamp, device="GPU-1", entries=(entry,)),
    ):
        state.apply(event, 0.0)
    return state


@pytest.mark.parametrize(
    ("kind", "counts"), [("graphics", False), ("compute", True), ("both", True)]
)
def test_only_compute_contexts_are_work(kind: str, counts: bool) -> None:
    state = machine(kind)
    assert bool(other_processes(state.devices["GPU-1"])) is counts
    assert any(finding.word == "SHARED" for finding in diagnose(state, 0.0)) is counts

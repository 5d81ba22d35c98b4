"""What is told of the step that a run was to profile."""

from __future__ import annotations

from collections.abc import Mapping

from topsmon import events
from topsmon.report import profile_lines
from topsmon.run_state import RunState

STAMPS = {"time": 0.0, "monotonic": 0.0, "source": "h", "run": "r"}


def run_with(
    kind: str, message: str, names: tuple[str, ...] = (), values: Mapping[str, float] | None = None
) -> RunState:
    run = RunState(events.Run(**STAMPS, pid=7, hostname="h", started=0.0))
    run.apply(
        events.RunEvent(
            **STAMPS,
            number=1,
            kind=kind,
            step=4,
            message=message,
            names=names,
            values=dict(values or {}),
        ),
        0.0,
    )
    return run


def test_the_path_and_the_five_hottest_operators() -> None:
    names = tuple(f"aten::op{n}" for n in range(6))
    shares = {"aten::op0": 0.5, "aten::op1": 0.25}
    found = dict(profile_lines.facts(run_with("profile", "/x/y.trace.json.gz", names, shares)))
    assert found["profile"] == "step 4 in /x/y.trace.json.gz"
    assert found["hottest"] == ("aten::op0 50.0%, aten::op1 25.0%, aten::op2, aten::op3, aten::op4")


def test_a_profile_that_failed_and_none() -> None:
    failed = run_with("recorder", "step 4 was not profiled: the run had passed it")
    assert list(profile_lines.facts(failed)) == [
        ("profile", "step 4 was not profiled: the run had passed it")
    ]
    assert list(profile_lines.facts(run_with("recorder", "switched itself off"))) == []


def test_a_step_that_was_never_reached() -> None:
    run = RunState(events.Run(**STAMPS, pid=7, hostname="h", started=0.0))
    assert profile_lines.never_reached([run], None) == ""
    assert profile_lines.never_reached([], 5) == ""
    assert profile_lines.never_reached([run], 5) == (
        "step 5 was not profiled: the run ended at step 0\n"
    )

"""How far a run is and how long it still takes."""

import pytest
from nodes import header, identity, node, sample

from topsmon import events
from topsmon.laboratory.progress import Pace, Progress
from topsmon.state import State

PLAN = {"bf16": 2.0, "fp16": 2.0, "memory": 4.0}


def started(key: str) -> events.ProbeStarted:
    return events.ProbeStarted(**header(), device="GPU-0000", precision=key)


def progress(
    pace: Pace, state: State, now: float, finished: frozenset[str] = frozenset()
) -> Progress:
    return pace.progress(state, {"GPU-0000": PLAN}, finished, now)


def test_what_stands_before_the_current_one_is_done_and_nothing_is_undone() -> None:
    state, pace = node(identity(), sample()), Pace()
    assert progress(pace, state, 0.0) == Progress(0, 3, None, {})
    pace.begin(10.0)
    state.apply(started("fp16"), 0.0)
    now = progress(pace, state, 16.0)
    assert (now.done, now.measuring) == (1, {"GPU 0": "fp16"})
    state.apply(events.ProberIdle(**header(), device="GPU-0000", reason="r"), 0.0)
    assert progress(pace, state, 17.0).done == 1
    over = progress(pace, state, 20.0, frozenset({"GPU-0000"}))
    assert (over.done, over.seconds_left) == (3, 0.0)


def test_the_rest_takes_as_much_longer_as_what_is_done_did() -> None:
    state, pace = node(identity(), sample()), Pace()
    pace.begin(0.0)
    assert progress(pace, state, 1.0).seconds_left == pytest.approx(8.0 + 4.0 - 1.0)
    state.apply(started("memory"), 0.0)
    # 4 s of the plan took 8 s after the start of 4 s: the other 4 s will take 8.
    assert progress(pace, state, 12.0).seconds_left == pytest.approx(8.0)


def test_words() -> None:
    assert Progress(0, 0, None, {}).text() == "looking for devices"
    one = Progress(1, 3, 6.2, {"GPU 0": "fp16"})
    assert one.text() == "measuring 1 of 3: fp16 on GPU 0, about 6 s left"
    many = Progress(2, 6, 6.2, {"GPU 0": "fp16", "GPU 1": "fp16"})
    assert many.text() == "measuring 2 of 6: fp16, about 6 s left"

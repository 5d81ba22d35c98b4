"""Commands, and the waiting that they cut short."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.probes import control as controls
from topsmon.probes.control import BurstAbandoned, Control, StopRequested, rest_seconds

KNOWN = ("fp32", "fp64", "bf16")


def make(**options) -> Control:
    return Control(options.pop("duty", 0.5), KNOWN, **options)


def test_rest_by_hand():
    assert rest_seconds(0.25, 0.03) == pytest.approx(8.0833, rel=1e-4)
    assert rest_seconds(0.25, 0.5) == pytest.approx(0.25)
    assert rest_seconds(0.25, 1.0) == 0.0


@given(st.floats(1e-3, 10), st.floats(1e-3, 1))
def test_work_is_the_wanted_share_of_time(busy, duty):
    assert busy / (busy + rest_seconds(busy, duty)) == pytest.approx(duty)


@pytest.mark.parametrize(
    "command",
    [
        {"command": "duty", "value": 0},
        {"command": "duty", "value": 1.5},
        {"command": "duty", "value": "much"},
        {"command": "duty"},
        {"command": "precisions", "keys": "fp32"},
        {"command": "dance"},
        {},
    ],
)
def test_nonsense_is_named_and_changes_nothing(command):
    control = make()
    assert control.apply(command)
    assert (control.duty, control.chosen, control.pause_reason) == (0.5, None, None)
    control.checkpoint()


def test_unknown_precisions_are_left_out_by_name():
    control = make()
    assert "fp3" in control.apply({"command": "precisions", "keys": ["fp32", "fp3"]})
    assert control.chosen == ("fp32",)


def test_a_command_that_came_before_the_waiting_is_not_waited_for():
    control = make()
    seen = control.changes
    control.apply({"command": "precisions", "keys": ["fp32", "nonsense"]})
    assert control.changes == seen + 1
    control.wait_for_change(seen)  # returns at once, or this test never ends


def test_a_stop_ends_work_in_progress():
    control = make()
    control.stop()
    with pytest.raises(StopRequested):
        control.checkpoint()
    with pytest.raises(StopRequested):
        control.rest(1.0)
    with pytest.raises(StopRequested):
        control.wait_for_change(control.changes)
    with pytest.raises(StopRequested):
        control.wait_while_paused(lambda reason: None)


def test_a_pause_abandons_work_in_progress():
    control = make()
    control.apply({"command": "pause", "reason": "training"})
    with pytest.raises(BurstAbandoned):
        control.checkpoint()
    control.apply({"command": "resume"})
    control.checkpoint()


def test_a_precision_that_is_no_longer_wanted_is_abandoned():
    control = make()
    control.measuring = "fp32"
    control.apply({"command": "precisions", "keys": ["fp32", "bf16"]})
    control.checkpoint()
    control.apply({"command": "precisions", "keys": ["fp64"]})
    with pytest.raises(BurstAbandoned):
        control.checkpoint()


def in_another_thread(action, *arguments):
    """Run something that waits; returns a function that says if it is over."""
    ended = threading.Event()

    def run():
        action(*arguments)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    return ended


@pytest.mark.parametrize(
    "command",
    [
        {"command": "pause"},
        {"command": "duty", "value": 1.0},
        {"command": "precisions", "keys": ["fp64"]},
    ],
)
def test_commands_end_a_rest_at_once(command):
    control = make(duty=1e-4)
    ended = in_another_thread(control.rest, 1.0)  # would be 10,000 s
    assert not ended.wait(0.05)
    control.apply(command)
    assert ended.wait(60)


def test_a_lower_duty_lengthens_a_rest_that_has_begun():
    now = [0.0]
    control = make(duty=0.5)
    ended = in_another_thread(control.rest, 1.0, 0.0, lambda: now[0])
    control.apply({"command": "duty", "value": 0.25})
    now[0] = 2.0
    control.apply({"command": "duty", "value": 0.25})
    assert not ended.wait(0.05)  # 3 s of rest now, not 1
    now[0] = 3.1
    control.apply({"command": "duty", "value": 0.25})
    assert ended.wait(60)


def test_the_first_round_rests_less_than_the_duty_cycle_asks():
    control = make(duty=1e-4)
    assert in_another_thread(control.rest, 0.001, 0.5).wait(60)


def test_each_reason_to_wait_is_told_once():
    control = make(pause_reason="paused")
    told = []
    ended = in_another_thread(control.wait_while_paused, told.append)
    deadline = time.monotonic() + 60
    while told != ["paused"] and time.monotonic() < deadline:
        time.sleep(0.001)
    control.apply({"command": "pause", "reason": "python train.py (PID 12) uses GPU 0"})
    while len(told) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    control.apply({"command": "pause", "reason": "python train.py (PID 12) uses GPU 0"})
    assert not ended.is_set()
    control.apply({"command": "resume"})
    assert ended.wait(60)
    assert told == ["paused", "python train.py (PID 12) uses GPU 0"]


class ProcessEndError(BaseException):
    pass


@pytest.fixture
def pipe(monkeypatch):
    """A pipe to read commands from; ending the process raises instead."""

    def end(code):
        raise ProcessEndError(code)

    monkeypatch.setattr(controls.os, "_exit", end)
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def test_the_end_of_commands_is_the_end_of_the_process(pipe):
    reading, writing = pipe
    control = make()
    os.write(writing, b'{"command":"duty","value":0.9}\n\n{"command":"pause","rea')
    os.write(writing, b'son":"x"}\nnot json\n[1]\n\xff\xfe\n{"command":"resume"}\n{"unfinished')
    os.close(writing)
    with pytest.raises(ProcessEndError) as ended:
        controls.read_commands(control, reading)
    assert ended.value.args == (0,)
    assert control.duty == 0.9
    assert control.pause_reason is None


def test_what_was_ignored_is_said(pipe, capsys):
    reading, writing = pipe
    os.write(writing, b'{"command":"dance"}\n17\n')
    os.close(writing)
    with pytest.raises(ProcessEndError):
        controls.read_commands(make(), reading)
    said = capsys.readouterr().err
    assert "dance" in said
    assert "not a JSON object" in said


def test_a_stop_does_not_wait_for_the_measuring_thread(pipe, monkeypatch):
    reading, writing = pipe
    monkeypatch.setattr(controls.time, "sleep", lambda seconds: None)
    control = make()
    os.write(writing, b'{"command":"stop"}\n')
    with pytest.raises(ProcessEndError):
        controls.read_commands(control, reading)
    os.close(writing)
    with pytest.raises(StopRequested):
        control.checkpoint()


def test_a_stop_is_over_within_the_bar_of_100_ms():
    assert controls.STOP_GRACE_SECONDS < 0.06

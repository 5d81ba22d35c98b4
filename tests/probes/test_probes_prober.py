"""The prober's loop with a made-up bench, and its command line."""

from __future__ import annotations

import pytest
from probe_children import decode

from topsmon import events
from topsmon.probes import prober as probers
from topsmon.probes.control import Control
from topsmon.probes.errors import NoMemoryError, UnsupportedError
from topsmon.probes.schedule import ORDER
from topsmon.probes.wire import Writer

FIELDS = {"rate_ops_per_second": 1e12, "correct": True, "shape": [64, 64, 64]}


class FakeBench:
    """Answers with what is planned for a precision: an exception to raise, or a rate."""

    def __init__(self, control, plan=(), end_after=6) -> None:
        self.gemms = dict.fromkeys(("fp32", "fp64", "tf32"))
        self.memory_scale = 1.0
        self.asked = []
        self._control = control
        self._plan = dict(plan)
        self._end_after = end_after

    def burst(self, key, turn, *, quick):
        self.asked.append((key, turn, quick))
        if len(self.asked) >= self._end_after:
            self._control.stop()
        self._control.checkpoint()
        answer = self._plan.get(key)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        if answer is not None:
            raise answer
        return {"precision": key, **FIELDS}


class FakePlan:
    """Notes what is asked of the plan mode, and when."""

    def __init__(self, bench, code=0):
        self.asked = []
        self._bench = bench
        self._code = code

    def run(self, keys, seconds):
        self.asked.append((tuple(keys), len(self._bench.asked)))
        return self._code


def run(plan=(), end_after=6, before=lambda control: None):
    """Run a prober to its end; returns its exit code or None if stopped, its bench, its events."""
    control = Control(1.0, ORDER)
    bench = FakeBench(control, plan, end_after)
    plan_run = bench.plan_run = FakePlan(bench)
    lines = []
    before(control)
    try:
        code = probers.Prober(Writer("cpu", lines.append), control, bench, plan_run).run()
    except probers.StopRequested:
        code = None
    return code, bench, [decode(line) for line in lines]


def test_every_burst_is_announced_and_answered():
    code, bench, seen = run()
    assert code is None
    assert [type(event).__name__ for event in seen[:4]] == ["ProbeStarted", "RateMeasured"] * 2
    assert [event.precision for event in seen[:4]] == ["fp32", "fp32", "fp64", "fp64"]
    assert bench.asked[:5] == [
        ("fp32", 0, True),
        ("fp64", 0, True),
        ("tf32", 0, True),
        ("fp32", 1, False),
        ("fp64", 1, False),
    ]


def test_what_cannot_run_is_said_once_and_never_tried_again():
    _, bench, seen = run({"tf32": UnsupportedError("needs 8.0")}, end_after=7)
    refusals = [event for event in seen if isinstance(event, events.ProbeUnsupported)]
    assert [(event.precision, event.reason) for event in refusals] == [("tf32", "needs 8.0")]
    assert [key for key, _, _ in bench.asked].count("tf32") == 1


def test_a_call_that_the_library_has_not_is_unsupported():
    _, _, seen = run({"fp64": NotImplementedError("no such kernel\nstack")})
    (refusal,) = [event for event in seen if isinstance(event, events.ProbeUnsupported)]
    assert (refusal.precision, refusal.reason) == ("fp64", "no such kernel")


def test_a_spoilt_context_ends_the_process_for_a_restart(capsys):
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    code, bench, _ = run({"fp64": error})
    assert code == probers.EXIT_DEVICE_ERROR == 70
    assert len(bench.asked) == 2
    said = capsys.readouterr().err
    assert "fp64: CUDA error: an illegal memory access was encountered" in said
    assert said.count("\n") == 1


def test_out_of_memory_once_halves_the_budget_and_twice_ends_the_process():
    class OutOfMemoryError(RuntimeError):
        pass

    code, bench, _ = run({"fp64": [OutOfMemoryError("CUDA out of memory")]}, end_after=8)
    assert code is None
    assert bench.memory_scale == 0.5
    code, bench, _ = run({"fp32": OutOfMemoryError(), "fp64": OutOfMemoryError()})
    assert code == 70
    assert len(bench.asked) == 2


def test_want_of_memory_is_told_and_waited_out(monkeypatch):
    monkeypatch.setattr(probers, "NO_MEMORY_PAUSE_SECONDS", 0.001)
    code, bench, seen = run({"fp32": NoMemoryError("12 MiB of memory are too little")})
    assert code is None
    idle = [event.reason for event in seen if isinstance(event, events.ProberIdle)]
    assert idle[0] == "12 MiB of memory are too little"
    assert [key for key, _, _ in bench.asked[:4]] == ["fp32", "fp64", "tf32", "fp32"]


def test_only_the_chosen_precisions_are_measured():
    _, bench, _ = run(
        before=lambda control: control.apply({"command": "precisions", "keys": ["fp64"]})
    )
    assert {key for key, _, _ in bench.asked} == {"fp64"}


def test_nothing_to_measure_is_said_and_waited_for():
    told = []

    def wait_for_change(control, since, seconds=None):
        told.append(seconds)
        control.stop()
        control.checkpoint_stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Control, "wait_for_change", wait_for_change)
        code, bench, seen = run(
            before=lambda control: control.apply({"command": "precisions", "keys": []})
        )
    assert (code, bench.asked, told) == (None, [], [None])
    assert [event.reason for event in seen] == [
        "none of the chosen precisions can run on this device"
    ]


@pytest.mark.parametrize(
    "arguments",
    [[], ["--device", "cpu", "--duty", "0"], ["--device", "cpu", "--duty", "1.1"],
     ["--device", "cpu", "--size", "3"], ["--device", "cpu", "--dance"]],
)  # fmt: skip
def test_wrong_usage_is_64_and_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        probers.parse(arguments)
    assert ended.value.code == 64
    said = capsys.readouterr().err
    assert said.startswith("topsmon prober: ")
    assert said.count("\n") == 1


def test_the_command_line_by_default():
    options = probers.parse(["--device", "GPU-1"])
    assert (options.duty, options.memory_limit, options.paused, options.size) == (
        0.03,
        None,
        False,
        [],
    )


def test_memory_and_caches_are_measured_once_after_the_first_round():
    _, bench, _ = run(end_after=12)
    assert bench.plan_run.asked == [(("memory", "cache"), 3)]


def test_a_device_spoilt_by_a_bandwidth_probe_ends_the_process(monkeypatch):
    monkeypatch.setattr(FakePlan, "run", lambda self, keys, seconds: 70)
    code, _, _ = run(end_after=12)
    assert code == 70

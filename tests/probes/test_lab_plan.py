"""Plan mode: what runs, in which order, in how much time, and how it ends."""

from __future__ import annotations

import math
import os
import types

import pytest

pytest.importorskip("torch")

from lab_machine import Clock, Machine
from probe_children import decode

from topsmon import events
from topsmon.probes import lab, plan
from topsmon.probes import prober as probers
from topsmon.probes.control import BurstAbandoned, Control, StopRequested
from topsmon.probes.errors import NoMemoryError, UnsupportedError
from topsmon.probes.schedule import ORDER
from topsmon.probes.wire import Writer


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class FakeBench:
    """Bursts that take a tenth of a second; answers as planned, an exception to raise."""

    def __init__(self, clock, answers) -> None:
        self.device = Machine(clock)
        self.gemms = dict.fromkeys(ORDER)
        self.memory_scale = 1.0
        self.asked = []
        self._clock = clock
        self._answers = answers

    def budget_bytes(self):
        return 1e9

    def shapes(self, gemm, budget):
        return [(size,) * 3 for size in (64, 128, 256, 512)]

    def burst(self, key, turn, *, quick):
        shape = self.shapes(None, 0)[turn]
        return self.burst_of(key, shape, quick=quick)

    def burst_of(self, key, shape, *, quick):
        self.asked.append((key, shape[0], quick))
        self._clock.spend(0.1)
        answer = self._answers.get(key)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else None
        if isinstance(answer, BaseException):
            raise answer
        return {"precision": key, "rate_ops_per_second": 1e12, "shape": list(shape)}


class Rig:
    """A plan run with made-up bursts and probes."""

    def __init__(self, monkeypatch, answers=(), probes=()) -> None:
        self.clock = Clock()
        self.control = Control(1.0, ORDER)
        self.lines = []
        self.contexts = []
        self.bench = FakeBench(self.clock, dict(answers))
        probes = dict(probes)

        def load(name):
            return types.SimpleNamespace(SECONDS=2.0, run=probes.get(name, lambda bench: {}))

        monkeypatch.setattr(lab, "load", load)

    def run(self, *keys, seconds=None):
        def new_context(time_scale, memory_scale):
            self.contexts.append((time_scale, memory_scale))
            return types.SimpleNamespace(conditions=lambda: {"note": "", "invalid_reason": ""})

        runner = plan.PlanRun(
            Writer("cpu", self.lines.append), self.control, self.bench, new_context, self.clock
        )
        return runner.run(keys, seconds)

    @property
    def events(self):
        return [decode(line) for line in self.lines]

    @property
    def told(self):
        return [
            (type(event).__name__, getattr(event, "precision", None) or event.probe)
            for event in self.events
        ]


def test_each_key_once_in_order(monkeypatch):
    rig = Rig(monkeypatch, probes={"memory": lambda bench: {"values": {"x_seconds": 1.0}}})
    assert rig.run("bf16", "memory", "fp32") == 0
    assert rig.told == [
        ("ProbeStarted", "bf16"),
        *[("RateMeasured", "bf16")] * 3,
        ("ProbeStarted", "memory"),
        ("ProbeResult", "memory"),
        ("ProbeStarted", "fp32"),
        *[("RateMeasured", "fp32")] * 3,
    ]
    assert [size for key, size, _ in rig.bench.asked if key == "bf16"] == [512, 256, 128]
    assert rig.bench.device.released == 3


def test_no_further_shape_than_time_allows(monkeypatch):
    rig = Rig(monkeypatch)
    # 1.5 s and 2 s scaled to 0.35 s: 0.15 s for the precision, whose bursts take 0.1 s.
    assert rig.run("fp32", "memory", seconds=0.35) == 0
    assert [(key, size) for key, size, _ in rig.bench.asked] == [("fp32", 512), ("fp32", 256)]
    assert all(quick for _, _, quick in rig.bench.asked)
    assert rig.contexts == [(pytest.approx(0.1), 1.0)]


def test_budgets_shrink_and_never_grow(monkeypatch):
    Rig(monkeypatch)
    assert plan.time_scale(("fp32", "memory"), None) == 1.0
    assert plan.time_scale(("fp32", "memory"), 1.75) == pytest.approx(0.5)
    assert plan.time_scale(("fp32", "memory"), 1000.0) == 1.0


def refuse(error):
    def run(bench):
        raise error

    return run


def test_what_cannot_run_here_is_said_and_the_rest_goes_on(monkeypatch):
    rig = Rig(
        monkeypatch,
        {
            "tf32": UnsupportedError("needs 8.0"),
            "fp64": NotImplementedError("no such kernel\nat x"),
        },
        {"transfer": refuse(UnsupportedError("a CPU has no link"))},
    )
    assert rig.run("tf32", "fp64", "transfer", "fp32") == 0
    refusals = [event for event in rig.events if isinstance(event, events.ProbeUnsupported)]
    assert [(event.precision, event.reason) for event in refusals] == [
        ("tf32", "needs 8.0"),
        ("fp64", "no such kernel"),
        ("transfer", "a CPU has no link"),
    ]
    assert ("RateMeasured", "fp32") in rig.told


def test_want_of_memory_is_no_property_of_the_device(monkeypatch):
    rig = Rig(
        monkeypatch,
        {"fp32": NoMemoryError("3 MiB are too little")},
        {"memory": refuse(NoMemoryError("4 MiB are too little"))},
    )
    assert rig.run("fp32", "memory") == 0
    _, rate, _, probe = rig.events
    assert (rate.rate_ops_per_second, rate.valid) == (None, False)
    assert rate.invalid_reason == "3 MiB are too little"
    assert (probe.values, probe.valid) == ({}, False)
    assert probe.invalid_reason == "4 MiB are too little"


def test_out_of_memory_once_tries_again_with_half_of_it(monkeypatch):
    failures = [OutOfMemoryError("CUDA out of memory. Tried"), None]

    def probe(bench):
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return {}

    rig = Rig(monkeypatch, probes={"memory": probe})
    assert rig.run("memory") == 0
    assert rig.contexts == [(1.0, 1.0), (1.0, 0.5)]
    assert rig.told == [("ProbeStarted", "memory"), ("ProbeResult", "memory")]


def test_out_of_memory_twice_gives_no_number_and_the_rest_goes_on(monkeypatch):
    rig = Rig(monkeypatch, {"fp32": OutOfMemoryError("CUDA out of memory")})
    assert rig.run("fp32", "memory") == 0
    rate = rig.events[1]
    assert (rate.valid, rate.rate_ops_per_second) == (False, None)
    assert rig.told[-1] == ("ProbeResult", "memory")


def test_a_spoilt_device_ends_the_plan_with_the_reason(monkeypatch, capsys):
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    rig = Rig(monkeypatch, probes={"memory": refuse(error)})
    assert rig.run("memory", "fp32") == 70
    result = rig.events[-1]
    assert (result.probe, result.valid) == ("memory", False)
    assert result.invalid_reason == "CUDA error: an illegal memory access was encountered"
    assert "memory: CUDA error" in capsys.readouterr().err
    assert rig.bench.asked == []


def test_a_pause_starts_the_probe_again(monkeypatch):
    runs = []
    rig = None

    def probe(bench):
        runs.append(1)
        if len(runs) == 1:
            rig.control.apply({"command": "pause", "reason": "someone else"})
            raise BurstAbandoned
        return {}

    def wait_while_paused(control, tell):
        if control.pause_reason:
            tell(control.pause_reason)
            control.pause_reason = None

    rig = Rig(monkeypatch, probes={"memory": probe})
    monkeypatch.setattr(Control, "wait_while_paused", wait_while_paused)
    assert rig.run("memory") == 0
    assert [type(event).__name__ for event in rig.events] == [
        "ProbeStarted",
        "ProberIdle",
        "ProbeStarted",
        "ProbeResult",
    ]


def test_a_stop_ends_the_plan(monkeypatch):
    rig = Rig(monkeypatch, {"fp32": StopRequested()})
    with pytest.raises(StopRequested):
        rig.run("fp32", "memory")
    assert rig.told == [("ProbeStarted", "fp32")]


def test_precisions_that_are_not_wanted_any_more_are_left_out(monkeypatch):
    rig = Rig(monkeypatch)
    rig.control.apply({"command": "precisions", "keys": ["fp64"]})
    assert rig.run("fp32", "fp64", "memory") == 0
    assert [key for kind, key in rig.told if kind == "ProbeStarted"] == ["fp64", "memory"]


def concluded(conditions=(), **fields):
    return plan.conclude(
        "memory", fields, {"note": "", "invalid_reason": "", **dict(conditions)}, 2
    )


def test_conditions_and_findings_come_together():
    fields = concluded(
        {"note": "upper bound", "invalid_reason": "others run", "cpu_share": 0.5},
        values={"a_seconds": 1.0},
        note="slow",
        correct=True,
    )
    assert fields["note"] == "slow; upper bound"
    assert (fields["valid"], fields["invalid_reason"]) == (False, "others run")
    assert (fields["probe"], fields["seconds"], fields["cpu_share"]) == ("memory", 2, 0.5)


def test_a_wrong_result_is_not_valid():
    fields = concluded(correct=False, relative_error=0.5, error_limit=1e-5)
    assert (fields["valid"], fields["correct"]) == (False, False)
    assert fields["invalid_reason"] == "wrong result: relative error 5.0e-01, limit 1e-05"
    assert concluded(correct=False)["invalid_reason"] == "wrong result"
    own = concluded(correct=False, invalid_reason="copied data differ")
    assert own["invalid_reason"] == "copied data differ"
    assert concluded(correct=True)["valid"] is True


def test_what_is_no_number_is_none_with_a_reason():
    fields = concluded(
        values={"a_seconds": math.nan, "b_ratio": math.inf, "c_watts": None, "d_seconds": 1.0},
        unavailable={"c_watts": "no meter"},
        series={"y_over_x": [(1.0, 2.0), (2.0, math.nan)]},
    )
    assert fields["values"] == {
        "a_seconds": None, "b_ratio": None, "c_watts": None, "d_seconds": 1.0
    }  # fmt: skip
    assert fields["unavailable"]["c_watts"] == "no meter"
    assert fields["unavailable"]["a_seconds"] == "the result is no finite number"
    assert "d_seconds" not in fields["unavailable"]
    assert fields["series"] == {"y_over_x": [[1.0, 2.0]]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plan", "fp32,dance,memory"], "dance"),
        (["--seconds", "5"], "--seconds is for --plan"),
        (["--plan", "fp32", "--seconds", "0"], "over 0"),
        (["--plan", "fp32", "--seconds", "nan"], "over 0"),
        (["--plan", ""], "no key"),
    ],
)
def test_wrong_usage_is_64_and_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        probers.parse(["--device", "cpu", *arguments])
    assert ended.value.code == 64
    words = capsys.readouterr().err
    assert said in words
    assert words.count("\n") == 1


def test_a_plan_on_the_command_line():
    options = probers.parse(["--device", "cpu", "--plan", "fp32,memory", "--seconds", "6"])
    assert (options.plan, options.seconds) == (("fp32", "memory"), 6.0)
    assert plan.unknown_keys([*ORDER, *lab.PROBES]) == []


@pytest.mark.real
def test_a_real_plan_on_this_cpu(start_child):
    keys = ("fp32", "memory", "cache", "launch", "batching", "alignment", "sync_stall", "transfer")
    child = start_child(
        "-m", "topsmon.probes", "--device", "cpu", "--plan", ",".join(keys), "--seconds", "6",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    results = {}
    for key in keys:
        child.wait_for(events.ProbeStarted, precision=key)
        kind = {"fp32": events.RateMeasured, "transfer": events.ProbeUnsupported}.get(
            key, events.ProbeResult
        )
        results[key] = child.wait_for(kind)
    assert child.process.wait(120) == 0
    assert child.process.stderr.read() == b""
    probes = {key: results[key] for key in keys if key not in {"fp32", "transfer"}}
    for key, result in probes.items():
        assert result.probe == key
        assert result.correct is True, key
        assert result.valid is not bool(result.invalid_reason), key
        assert all(value is not None for value in result.values.values()), key
        assert result.method, key
    assert "CPU" in results["transfer"].reason
    values = {name: value for result in probes.values() for name, value in result.values.items()}
    for name in ("copy", "triad", "read", "write", "dram"):
        assert 1e8 < values[f"{name}_bytes_per_second"] < 1e13, name
    if results["cache"].valid:
        assert values["l1_bytes_per_second"] > values["dram_bytes_per_second"]
    assert 1e-8 < values["eager_op_seconds"] < 1e-2
    assert 1e-9 < values["batched_seconds"] < 10
    rates = [value for name, value in values.items() if name.startswith("rate_")]
    assert len(rates) == 5
    assert all(1e6 < rate < 1e15 for rate in rates)


@pytest.mark.real
def test_a_plan_by_path_finds_its_probes(start_child):
    from probe_children import PROBES

    child = start_child(str(PROBES), "--device", "cpu", "--plan", "launch,energy")
    result = child.wait_for(events.ProbeResult)
    assert (result.probe, result.correct) == ("launch", True)
    child.wait_for((events.ProbeResult, events.ProbeUnsupported))
    assert child.process.wait(120) == 0

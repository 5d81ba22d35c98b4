"""Runs in the state: which device, in which order, how many, and the energy of their steps."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import TRAINING, cpu, gpu, machine, processes
from machines import sample as device_sample
from watched_runs import KEY, NOW, WALL, run, sample, stamp, status

from topsmon import events
from topsmon.run_energy import LEAST_SECONDS, EnergyMeter
from topsmon.state import ENDED_RUNS_KEPT, State


@pytest.mark.parametrize(
    ("identity", "entries", "device"),
    [
        ({"device_uuid": "GPU-1", "torch_device": "cuda:0"}, (), "GPU-1"),
        ({"device_uuid": "GPU-9"}, (TRAINING,), None),
        ({"torch_device": "cpu"}, (), "cpu"),
        ({"torch_device": "cuda:0", "pid": 4711}, (TRAINING,), "GPU-0"),
        ({"torch_device": "cuda:0", "pid": 4712}, (TRAINING,), None),
        ({"torch_device": "cuda:0", "pid": 4711, "local": False}, (TRAINING,), None),
    ],
)
def test_the_device_of_a_run(
    identity: dict[str, Any], entries: tuple[Any, ...], device: str | None
) -> None:
    state = machine(gpu(0), gpu(1), cpu(), processes(*entries), run(**identity))
    found = state.device_of(state.runs[KEY])
    assert (found.key if found is not None else None) == device


def test_a_process_on_two_gpus_has_no_one_device() -> None:
    both = (processes(TRAINING), processes(TRAINING, device="GPU-1"))
    state = machine(gpu(0), gpu(1), *both, run(torch_device="cuda:0"))
    assert state.device_of(state.runs[KEY]) is None


def named(key: str, started: float, **changes: Any) -> events.Run:
    return run(run=key, started=WALL + started, **changes)


def test_living_runs_come_first_the_newest_first_and_ranks_together() -> None:
    state = machine(
        named("old", -300.0),
        named("rank-1", -200.0, launch="one", rank=1, world_size=2),
        named("ended", -50.0),
        named("rank-0", -201.0, launch="one", rank=0, world_size=2),
        named("new", -100.0),
        status("finished", run="ended"),
        status("failed", run="rank-1"),
    )
    ordered = [one.key for one in state.ordered_runs()]
    assert ordered == ["new", "rank-0", "rank-1", "old", "ended"]


def test_only_the_runs_that_ended_last_are_kept() -> None:
    state = State()
    for number in range(3 * ENDED_RUNS_KEPT):
        state.apply(named(f"run-{number:03}", float(number)), NOW)
        state.apply(status("finished", -number, run=f"run-{number:03}"), NOW)
    state.apply(named("alive", -1000.0), NOW)
    assert len(state.runs) == ENDED_RUNS_KEPT + 1
    assert "alive" in state.runs
    assert f"run-{3 * ENDED_RUNS_KEPT - 1:03}" in state.runs
    assert "run-000" not in state.runs


def test_a_new_poller_tells_its_own_runs() -> None:
    hello = events.Hello(**stamp(), version="1", schema=1, role="poller", pid=1)
    state = machine(hello, run(), sample())
    assert list(state.runs) == [KEY]
    state.apply(hello, NOW)
    assert state.runs == {}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 1", "train.py"),
        ("/usr/bin/python3.11 -u /home/me/train.py", "train.py"),
        ("python -W ignore -m pack.train --amp", "pack.train"),
        ("/opt/bin/trainer --fp16", "trainer"),
        ("python -c import torch", "python"),
        ("", "PID 4711"),
    ],
)
def test_the_name_of_a_run(command: str, name: str) -> None:
    state = machine(run(command=command))
    assert state.runs[KEY].name == name


def test_time_since_a_run_ended_counts_what_was_before_the_monitor() -> None:
    state = machine(run(), status("finished", 100.0))
    assert state.runs[KEY].ended_for(NOW + 5) == pytest.approx(105.0)
    assert machine(run()).runs[KEY].ended_for(NOW) is None


def trained(seconds: int = 30, **changes: Any) -> State:
    """Two steps a second and 300 W on GPU-0: 150 J a step, 1.5 J a token of 100 a step."""
    entries = changes.pop("entries", (TRAINING,))
    state = machine(gpu(), processes(*entries), run(device_uuid="GPU-0", torch_device="cuda:0"))
    for tick in range(seconds + 1):
        counter = device_sample(float(tick), energy_joules=1e6 + 300.0 * tick)
        state.apply(counter, float(tick))
        step = 2 * tick + 1
        newest = events.RunSample(
            time=WALL + tick,
            monotonic=float(tick),
            source="node",
            run=KEY,
            step=step,
            stepped_at=WALL + tick - 0.25,
            window=events.RunWindow(steps=1),
            totals=events.RunTotals(steps=step, tokens=100.0 * step),
        )
        state.apply(newest, float(tick))
    return state


def test_energy_of_a_run_that_has_a_gpu_to_itself() -> None:
    alone = trained().runs[KEY]
    assert alone.joules_per_step == pytest.approx(150.0)
    assert alone.joules_per_token == pytest.approx(1.5)


@pytest.mark.parametrize(
    "entries",
    [
        (TRAINING, events.ProcessEntry(pid=1, command="python other.py")),
        (events.ProcessEntry(pid=1, command="python other.py"),),
        (),
    ],
)
def test_energy_of_a_shared_gpu_is_nobodys(entries: tuple[Any, ...]) -> None:
    assert trained(entries=entries).runs[KEY].joules_per_step is None


def test_energy_of_a_short_time_is_not_told() -> None:
    assert trained(seconds=8).runs[KEY].joules_per_step is None


def test_topsmons_own_idle_prober_does_not_count_and_a_burst_does() -> None:
    own = events.ProcessEntry(pid=2, command="prober", own=True)
    assert trained(entries=(TRAINING, own)).runs[KEY].joules_per_step is not None
    state = trained(entries=(TRAINING, own))
    started = events.ProbeStarted(**stamp(31.0), device="GPU-0", precision="bf16")
    state.apply(started, 31.0)
    state.apply(sample(500), 31.0)
    assert state.runs[KEY].joules_per_step is None


def test_a_counter_that_begins_anew_gives_no_negative_energy() -> None:
    meter = EnergyMeter()
    for tick in range(40):
        base = 1e6 if tick < 20 else 0.0
        readings = [(float(t), base + 300.0 * t) for t in range(max(0, tick - 3), tick + 1)]
        one = sample(tick + 1)
        newest = events.RunSample(
            **{**stamp(float(tick)), "time": WALL + tick},
            run=KEY,
            step=tick + 1,
            stepped_at=WALL + tick - 0.5,
            window=one.window,
            totals=one.totals,
        )
        meter.add(newest, readings)
    assert meter.joules_per_step == pytest.approx(300.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.floats(0, 1e9), st.floats(0, 1e4)),
        min_size=2,
        max_size=30,
    )
)
def test_energy_is_never_negative(told: list[tuple[int, float, float]]) -> None:
    meter = EnergyMeter()
    for step, joules, moment in told:
        newest = events.RunSample(
            **{**stamp(moment), "time": WALL},
            run=KEY,
            step=step,
            stepped_at=WALL,
            window=events.RunWindow(steps=1),
            totals=events.RunTotals(),
        )
        meter.add(newest, [(0.0, joules), (1e4, joules + 10)])
        value = meter.joules_per_step
        assert value is None or value >= 0
    assert LEAST_SECONDS > 0

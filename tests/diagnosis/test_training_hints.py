"""What a run waits for, alike findings of ranks, and what the machine's list says of runs."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import A100, TRAINING, gpu, machine, processes, rate, samples
from machines import status as device_status
from watched_runs import (
    KEY,
    NOW,
    SCALER,
    WALL,
    event,
    findings,
    run,
    sample,
    severities,
    stamp,
    status,
)

from topsmon import events
from topsmon.diagnosis import WORDS, device_word, diagnose, of_run
from topsmon.diagnosis.training import RUN_RULES, ranks_text
from topsmon.state import State

ON_GPU = {"torch_device": "cuda:0", "device_uuid": "GPU-0"}


def waiting(ratio: float | None, **window: Any) -> events.RunSample:
    return sample(1000, {"data_wait_ratio": ratio, "mean_step_seconds": 1.0, **window})


@pytest.mark.parametrize(
    ("ratio", "severity"),
    [(None, None), (0.19, None), (0.2, "info"), (0.49, "info"), (0.5, "warn"), (0.8, "warn")],
)
def test_the_loop_waits_for_its_loader(ratio: float | None, severity: str | None) -> None:
    assert severities(waiting(ratio)).get("input-stall") == severity


def test_a_stall_tells_the_numbers_and_the_workers() -> None:
    # 0.2 s of computing, 0.8 s of waiting.
    one = findings(run(data_workers=0), waiting(0.8))["input-stall"]
    assert one.title == "waits for its input 80% of the time"
    assert "800 ms of a step of 1.00 s" in one.evidence
    assert "0 data loader workers" in one.evidence
    assert "num_workers=0" in one.remedy
    assert "no fault of the device" in one.cause
    assert "800 ms of a step of 1.00 s" in findings(waiting(0.8))["input-stall"].evidence
    assert "prefetch_factor" in findings(waiting(0.8))["input-stall"].remedy


def test_a_stall_of_a_few_steps_is_none() -> None:
    assert severities(waiting(0.8, steps=19)) == {}


def test_a_run_that_ended_is_told_that_it_waited() -> None:
    one = findings(waiting(0.8), status("finished"))["input-stall"]
    assert one.title == "waited for its input 80% of the time"


def test_a_stall_shows_the_sawtooth_of_the_gpu() -> None:
    state = machine(gpu(), run(**ON_GPU), waiting(0.7))
    for place in range(30):
        for one in samples(count=1, busy_ratio=0.9 if place % 2 else 0.0):
            state.apply(one, NOW - 0.1)
    one = {found.code: found for found in of_run(state, KEY, NOW)}["input-stall"]
    assert "GPU 0 busy 45% on average, in bursts" in one.evidence


def stepping(
    busy: float | None,
    wait: float | None = 0.0,
    seconds: float = 0.005,
    cores: float | None = None,
    memory: float = 0.4,
) -> dict[str, events.Finding]:
    entry = events.ProcessEntry(pid=4711, cpu_cores=cores) if cores is not None else TRAINING
    state = machine(
        gpu(),
        samples(count=24, busy_ratio=busy, memory_busy_ratio=memory),
        processes(entry) if cores is not None else [],
        run(**ON_GPU),
        sample(1000, {"data_wait_ratio": wait, "step_seconds": seconds}),
    )
    return {one.code: one for one in of_run(state, KEY, NOW)}


def test_a_gpu_that_idles_while_the_run_steps() -> None:
    one = stepping(0.4, cores=1.0)["host-bound"]
    assert one.severity == "info"
    assert one.cause.startswith("launch-bound: short steps")
    assert "median step 5.00 ms" in one.evidence
    assert "mostly sleeps" in stepping(0.4, cores=0.1)["host-bound"].cause
    assert "host-bound" not in stepping(0.9, cores=1.0)
    assert "host-bound" not in stepping(0.4, wait=0.3)
    assert "host-bound" not in stepping(None)


def test_what_is_not_known_is_said_and_not_guessed() -> None:
    one = stepping(0.4, wait=None)["host-bound"]
    assert "only a profile tells" in one.cause
    assert "CPU use of its process is not known" in one.evidence
    assert any("not excluded" in line for line in one.evidence)


def test_memory_bound() -> None:
    assert stepping(0.95, memory=0.8)["memory-bound"].severity == "info"
    assert "memory-bound" not in stepping(0.95, memory=0.4)
    assert "memory-bound" not in stepping(0.5, memory=0.8)


def collapsed(rank: int, scale: float = 0.0, **identity: Any) -> list[events.AnyEvent]:
    key = f"run-{rank}"
    own = {"run": key, "rank": rank, "world_size": 8, "launch": "one", "pid": 100 + rank}
    return [
        run(**{**own, **identity}),
        sample(1000, run=key, scale=scale, totals={"scale_lowest": scale}),
    ]


def test_ranks_with_one_trouble_are_one_finding() -> None:
    state = machine(*(collapsed(rank) for rank in range(8)))
    dead = [one for one in diagnose(state, NOW) if one.code == "scale-dead"]
    assert [one.title for one in dead] == ["train.py ranks 0-7  loss scale is dead: 0"]
    assert dead[0].run == "run-0"
    assert dead[0].device is None


def test_a_rank_with_a_trouble_of_its_own_is_named() -> None:
    state = machine(*(collapsed(rank, 65536.0 if rank != 3 else 0.5) for rank in range(8)))
    assert [one.title for one in diagnose(state, NOW)] == [
        "train.py rank 3  loss scale is 0.5, below 1"
    ]


def test_two_runs_each_have_their_own_finding() -> None:
    first = collapsed(0, launch=None, world_size=1)
    second = collapsed(1, launch=None, world_size=1, command="python gan.py")
    titles = {one.title for one in diagnose(machine(first, second), NOW)}
    assert titles == {"train.py  loss scale is dead: 0", "gan.py  loss scale is dead: 0"}


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([0, 1, 2, 3], "ranks 0-3"),
        ([6, 0, 1, 3], "ranks 0-1, 3, 6"),
        ([None, None], "in 2 processes"),
    ],
)
def test_ranks_in_short(ranks: list[int | None], words: str) -> None:
    state = machine(*(run(run=f"r{place}", rank=rank) for place, rank in enumerate(ranks)))
    assert ranks_text(state.runs.values()) == words


def test_a_runs_finding_changes_no_word_of_its_device() -> None:
    state = machine(gpu(), samples(), run(**ON_GPU), sample(scale=0.0))
    found = diagnose(state, NOW)
    assert found[0].code == "scale-dead"
    assert device_word(state.devices["GPU-0"], found) == "ok"


def test_what_is_normal_is_not_among_the_machines_findings() -> None:
    newest = sample(30, {"skipped": 2}, {"skipped": 2, "calibration_skips": 2})
    state = machine(run(), newest)
    assert [one.code for one in of_run(state, KEY, NOW)] == ["calibrating"]
    assert diagnose(state, NOW) == ()


def test_an_ended_run_is_told_for_ten_minutes_and_below_a_live_failure() -> None:
    lost = device_status("lost", NOW - 5, NOW - 5)
    newest, failed = sample(scale=0.0), status("failed", 30.0, exit_code=1)
    wrong = rate("bf16", 700.0, correct=False, valid=False)
    state = machine(gpu(), gpu(1, A100), samples(), run(), newest, wrong, lost, failed)
    codes = [one.code for one in diagnose(state, NOW)]
    assert set(codes[:2]) == {"device-lost", "wrong-result"}
    assert {"scale-dead", "run-failed"} <= set(codes)
    later = machine(run(), newest, failed)
    assert {one.code for one in diagnose(later, NOW + 560)} == {"scale-dead", "run-failed"}
    assert diagnose(later, NOW + 580) == ()
    hours_ago = machine(run(), newest, status("failed", 7000.0))
    assert diagnose(hours_ago, NOW) == ()
    assert "scale-dead" in [one.code for one in of_run(hours_ago, KEY, NOW)]


def test_every_word_of_a_finding_is_in_the_order_of_words() -> None:
    state = machine(
        run(), sample(scale=0.0, skip_streak=30, loss_finite=False, totals={"bypasses": 1})
    )
    assert all(one.word in WORDS for one in of_run(state, KEY, NOW))


def numbers() -> Any:
    return st.one_of(
        st.none(),
        st.floats(allow_nan=True, allow_infinity=True),
        st.sampled_from([0.0, 1e-45, 2.0**-128, 1.0, 65536.0, 2.0**127, -1.0]),
    )


COUNTS = st.integers(0, 2**40)
WINDOWS = st.builds(
    events.RunWindow,
    steps=st.integers(0, 200),
    skipped=st.integers(0, 300),
    skips_after_growth=st.integers(0, 300),
    nonfinite_losses=st.integers(0, 300),
    step_seconds=numbers(),
    mean_step_seconds=numbers(),
    data_wait_ratio=numbers(),
    tokens_per_step=numbers(),
    gradient_norm_median=numbers(),
    gradient_norm_deviation=numbers(),
    gradient_norm_highest=numbers(),
    clip_calls=COUNTS,
    clipped_ratio=numbers(),
)
TOTALS = st.builds(
    events.RunTotals,
    steps=COUNTS,
    skipped=COUNTS,
    calibration_skips=st.integers(0, 100),
    longest_skip_streak=COUNTS,
    last_skip_step=st.one_of(st.none(), COUNTS),
    nonfinite_losses=COUNTS,
    first_nonfinite_loss_step=st.one_of(st.none(), COUNTS),
    backward_overflows=COUNTS,
    scale_lowest=numbers(),
    scale_highest=numbers(),
    scaled_clips=COUNTS,
    bypasses=COUNTS,
    scheduler_steps=COUNTS,
    gradient_zero_ratio=numbers(),
    gradient_zero_scale=numbers(),
    gradient_zero_ratio_later=numbers(),
)
SAMPLES = st.builds(
    events.RunSample,
    time=st.just(WALL),
    monotonic=st.just(NOW),
    source=st.just("node"),
    run=st.just(KEY),
    step=COUNTS,
    stepped_at=st.just(WALL),
    skip_streak=COUNTS,
    loss=numbers(),
    loss_finite=st.sampled_from([None, True, False]),
    scale=numbers(),
    gradient_norm=numbers(),
    clip_max_norm=numbers(),
    autocast=st.sampled_from([None, "fp16", "bf16"]),
    window=WINDOWS,
    totals=TOTALS,
)
SCALERS = st.one_of(
    st.none(),
    st.builds(
        events.Scaler,
        kind=st.sampled_from(["GradScaler", "ShardedGradScaler", ""]),
        enabled=st.booleans(),
        init_scale=numbers(),
        growth_interval=st.one_of(st.none(), st.integers(-5, 10**6)),
        min_scale=numbers(),
    ),
)
KINDS = st.sampled_from(
    [
        "nonfinite-gradients",
        "nonfinite-output",
        "nonfinite-weights",
        "scaled-clip",
        "bypass",
        "gradient-zeros",
        "exception",
        "recorder",
        "end",
    ]
)
HAPPENINGS = st.builds(
    lambda kind, step, message, names, values: event(
        kind, step, message=message, names=tuple(names), values=values
    ),
    kind=KINDS,
    step=COUNTS,
    message=st.text(max_size=40),
    names=st.lists(st.text(max_size=20), max_size=4),
    values=st.dictionaries(
        st.sampled_from(["norm", "max_norm", "scale", "ratio", "bad", "parameters", "handled"]),
        st.floats(allow_nan=True, allow_infinity=True),
    ),
)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(
    newest=SAMPLES,
    scaler=SCALERS,
    happened=st.lists(HAPPENINGS, max_size=4),
    condition=st.sampled_from([None, "running", "silent", "finished", "failed", "killed", "gone"]),
    parameters=st.integers(-10, 10**12),
)
def test_no_rule_raises_whatever_a_run_says(
    newest: events.RunSample,
    scaler: events.Scaler | None,
    happened: list[events.RunEvent],
    condition: Any,
    parameters: int,
) -> None:
    state: State = machine(gpu(), samples())
    identity = run(
        **ON_GPU,
        scaler=scaler,
        parameters=parameters,
        embedding_parameters=parameters,
        transformer=True,
        parameter_types={"float16": parameters},
    )
    state.apply(identity, NOW)
    state.apply(newest, NOW)
    for number, one in enumerate(happened, 1):
        state.apply(
            event(
                one.kind, one.step, number,
                names=one.names, values=one.values, message=one.message,
            ),
            NOW,
        )  # fmt: skip
    if condition is not None:
        state.apply(status(condition), NOW)
    found = of_run(state, KEY, NOW)
    assert all(one.run == KEY and one.title for one in found)
    assert len({one.code for one in found}) == len(found)
    diagnose(state, NOW)


def test_every_rule_is_silent_on_a_healthy_run() -> None:
    assert findings(sample(), status("running")) == {}
    assert len(set(RUN_RULES)) == len(RUN_RULES)
    assert SCALER.enabled
    assert stamp()["source"] == "node"

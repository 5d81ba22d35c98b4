"""Model FLOPs utilisation: published cases, its precision, its absence, and the waterfall."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import A100, FUTURE_CARD, cpu, gpu, machine, rate, samples
from watched_runs import KEY, NOW, findings, run, sample

from topsmon import events
from topsmon.diagnosis import diagnose, mfu
from topsmon.diagnosis.waterfall import steps
from topsmon.state import State
from topsmon.training.recorder import active

ON_GPU = {"torch_device": "cuda:0", "device_uuid": "GPU-0", "scaler": None}


def trained(
    board: Any = None,
    seconds: float | None = 1.0,
    tokens: float | None = None,
    window: int = 200,
    autocast: str | None = "bf16",
    **identity: Any,
) -> State:
    newest = sample(
        1000,
        {"steps": window, "mean_step_seconds": seconds, "tokens_per_step": tokens},
        scale=None,
        autocast=autocast,
    )
    boards = gpu() if board is None else gpu(0, board)
    return machine(boards, samples(), run(**{**ON_GPU, **identity}), newest)


def found(state: State, key: str = KEY) -> mfu.Mfu:
    return mfu.of_run(state, state.runs[key])


def test_nanogpt_on_an_h100_that_divided_by_an_a100() -> None:
    # 104 % of 312 are 324.5 TFLOPS: 32.8 % of the 989.4 of an H100.
    given = {"flops_per_step": 1.04 * 312e12, "flops_source": "given"}
    one = found(trained(**given))
    assert one.flops_per_second == pytest.approx(324.48e12)
    assert one.ratio == pytest.approx(0.328, abs=5e-4)
    assert (one.source, one.precision, one.device) == ("given", "bf16", "GPU-0")
    wrong = found(trained(A100, **given))
    assert wrong.ratio == pytest.approx(1.04, abs=1e-3)
    assert wrong.doubtful
    assert "in doubt" in mfu.words(wrong)


def test_above_100_percent_is_flagged_by_a_finding() -> None:
    state = trained(A100, flops_per_step=1.04 * 312e12)
    flagged = [one for one in diagnose(state, NOW) if one.code == "mfu-above-ceiling"]
    assert [one.severity for one in flagged] == ["warn"]
    assert "104.0% of the ceiling" in flagged[0].title
    fine = diagnose(trained(flops_per_step=1.04 * 312e12), NOW)
    assert "mfu-above-ceiling" not in [one.code for one in fine]


def test_seventy_billion_parameters_on_sixteen_a100() -> None:
    # 6 x 70e9 x 500 x 16 x 2048 = 6.8813e18 FLOP in 48,600 s on 16 GPUs: 8.85 TFLOP/s each,
    # 2.84 % of 312; one rank has one of the 16 sequences of a step.
    state = trained(
        A100, 48_600 / 500, 2048.0, parameters=70_000_000_000, transformer=True, world_size=16
    )
    one = found(state)
    assert one.flops_per_second == pytest.approx(6.8813e18 / 48_600 / 16, rel=1e-4)
    assert one.ratio == pytest.approx(0.0284, abs=5e-5)
    assert one.source == "6 x parameters x tokens"
    assert one.lower_bound


def test_a_sharded_model_counts_whole() -> None:
    # 192 TFLOP a sample, 2 samples in 2.2 s: 174.5 TFLOPS, 55.9 % of 312 (a shard of 8: 7.0 %).
    one = found(trained(A100, 2.2, flops_per_step=384e12, sharded=True, world_size=8))
    assert one.flops_per_second == pytest.approx(174.5e12, rel=1e-3)
    assert one.ratio == pytest.approx(0.559, abs=1e-3)


def test_an_unknown_board_has_no_ceiling_and_no_other_ones() -> None:
    one = found(trained(FUTURE_CARD, flops_per_step=1756.6e12))
    assert one.flops_per_second == pytest.approx(1756.6e12)
    assert (one.ratio, one.ceiling_ops_per_second) == (None, None)
    assert not one.doubtful
    assert one.reason
    assert "ceiling unknown" in mfu.words(one)
    assert "312" not in mfu.words(one)


def test_recomputation_does_not_raise_it() -> None:
    # Two Linear 512 x 512 on 64 rows: 201,326,592 model FLOPs with and without checkpointing,
    # which executes 234,881,024 and so takes longer.
    without = found(trained(None, 1.0e-3, flops_per_step=201_326_592.0, flops_source="counted"))
    took = 1.0e-3 * 234_881_024 / 201_326_592
    with_it = found(trained(None, took, flops_per_step=201_326_592.0, flops_source="counted"))
    assert without.flops_per_second == pytest.approx(201_326_592e3)
    assert without.ratio is not None
    assert with_it.ratio == pytest.approx(without.ratio * 201_326_592 / 234_881_024)
    assert with_it.source == "counted in one step"


def test_embeddings_only_look_up() -> None:
    one = found(
        trained(
            None, 1.0, 1000.0, parameters=1_000_000, embedding_parameters=400_000, transformer=True
        )
    )
    assert one.flops_per_second == 6 * 600_000 * 1000


def test_of_a_mixture_of_experts_the_chosen_ones_count() -> None:
    # Mixtral 8x7B (arXiv 2401.04088): 46.7 billion parameters, 12.9 billion a token.
    one = found(
        trained(
            None,
            1.0,
            1000.0,
            parameters=46_700_000_000,
            embedding_parameters=131_072_000,
            active_parameters=12_900_000_000,
            active_note="2 of 8 experts",
            transformer=True,
        )
    )
    assert one.flops_per_second == 6 * 12.9e9 * 1000
    assert one.source == "6 x parameters x tokens, N = 2 of 8 experts"
    assert one.lower_bound


@pytest.mark.parametrize(
    ("flowing", "per_token", "source"),
    [
        (0, 6 * 1000 + 2 * 90_000, mfu.WITH_FROZEN),
        (60_000, 6 * 1000 + 2 * 30_000 + 4 * 60_000, mfu.WITH_FLOWING),
    ],
)
def test_frozen_parameters_count_what_they_cost(flowing: int, per_token: int, source: str) -> None:
    frozen = {"frozen_parameters": 90_000, "frozen_flowing": flowing, "parameters": 1000}
    one = found(trained(None, 1.0, 100.0, **frozen, transformer=True))
    assert (one.flops_per_second, one.source) == (per_token * 100, source)
    assert one.lower_bound


def test_the_precision_is_that_of_the_frozen_ones_where_they_are_more() -> None:
    types = {"parameter_types": {"float32": 9}, "frozen_types": {"bfloat16": 900}}
    assert found(trained(autocast=None, flops_per_step=1e12, **types)).precision == "bf16"


def test_of_split_layers_this_ranks_part_counts() -> None:
    one = found(
        trained(None, 2.0, 1000.0, active_parameters=500_000, active_note="part", transformer=True)
    )
    assert one.flops_per_second == 6 * 500_000 * 1000 / 2


@pytest.mark.parametrize("absence", [active.MIXTURE, active.SPLIT])
def test_an_uncertain_count_is_refused_unless_one_is_given(absence: str) -> None:
    identity = {"transformer": True, "parameters": 10**9, "active_absence": absence}
    one = found(trained(None, 1.0, 1000.0, **identity))
    assert (one.flops_per_second, one.ratio) == (None, None)
    assert one.reason == f"{absence}: give the FLOPs per step (--flops, watch(flops_per_step=))"
    given = found(trained(None, 1.0, 1000.0, **identity, flops_per_step=1e12))
    assert given.flops_per_second == 1e12


@pytest.mark.parametrize(
    ("changes", "identity", "words"),
    [
        ({}, {"transformer": False, "parameters": 10**6}, "no transformer: give"),
        ({}, {"transformer": None, "parameters": 10**6}, "not known as a transformer"),
        ({"tokens": None}, {"transformer": True, "parameters": 10**6}, "tokens per step"),
        ({}, {"transformer": True}, "number of parameters"),
        ({"window": 19}, {"flops_per_step": 1e12}, "mean of 20 steps"),
        ({"seconds": None}, {"flops_per_step": 1e12}, "time of a step"),
    ],
)
def test_without_a_count_it_is_not_available_and_says_why(
    changes: dict[str, Any], identity: dict[str, Any], words: str
) -> None:
    one = found(trained(**{"tokens": 512.0, **changes}, **identity))
    assert (one.flops_per_second, one.ratio) == (None, None)
    assert words in one.reason
    assert mfu.words(one).startswith("N/A: ")


def test_a_given_count_may_be_a_lower_bound() -> None:
    assert not found(trained(flops_per_step=1e12)).lower_bound
    assert found(trained(flops_per_step=1e12, flops_lower_bound=True)).lower_bound


@pytest.mark.parametrize(
    ("autocast", "identity", "precision"),
    [
        ("fp16", {"parameter_types": {"float32": 9}}, "fp16"),
        ("bf16", {"parameter_types": {"float32": 9}}, "bf16"),
        (None, {"parameter_types": {"torch.bfloat16": 9, "torch.float32": 1}}, "bf16"),
        (None, {"parameter_types": {"float32": 9}}, "fp32"),
        (None, {"parameter_types": {"float32": 9}, "allow_tf32": True}, "tf32"),
        (None, {"parameter_types": {"float64": 9}, "allow_tf32": True}, "fp64"),
        (None, {"parameter_types": {"float8_e4m3fn": 9}}, None),
        (None, {}, None),
    ],
)
def test_the_ceiling_is_that_of_the_precision_in_use(
    autocast: str | None, identity: dict[str, Any], precision: str | None
) -> None:
    state = trained(autocast=autocast, flops_per_step=1e12, **identity)
    one = found(state)
    assert one.precision == precision
    ceiling = state.devices["GPU-0"].ceiling(precision) if precision else None
    assert one.ceiling_ops_per_second == (ceiling.ops_per_second if ceiling else None)


def ranks(count: int, device: str | None, torch_device: str) -> list[events.AnyEvent]:
    made: list[events.AnyEvent] = []
    for rank in range(count):
        key = f"rank-{rank}"
        identity = {"run": key, "rank": rank, "world_size": count, "launch": "one", "pid": rank}
        identity |= {"device_uuid": device, "torch_device": torch_device, "scaler": None}
        made.append(run(**identity, flops_per_step=1e12, parameter_types={"float32": 1}))
        made.append(sample(100, {"mean_step_seconds": 1.0}, run=key, scale=None, autocast=None))
    return made


def test_ranks_on_one_device_are_summed_and_others_are_not() -> None:
    state = machine(gpu(), ranks(2, "GPU-0", "cuda:0"))
    assert found(state, "rank-1").flops_per_second == 2e12
    assert found(state, "rank-1").runs == ("rank-0", "rank-1")
    other = run(run="other", launch="two", device_uuid="GPU-0", flops_per_step=5e12)
    state.apply(other, NOW)
    state.apply(sample(100, {"mean_step_seconds": 1.0}, run="other", scale=None), NOW)
    assert found(state, "rank-0").flops_per_second == 2e12
    whole = mfu.of_device(state, state.devices["GPU-0"])
    assert whole is not None
    assert whole.flops_per_second == 7e12


def test_ranks_on_the_cpu_share_its_ceiling() -> None:
    state = machine(cpu(), ranks(4, None, "cpu"))
    one = found(state, "rank-3")
    assert (one.device, one.flops_per_second) == ("cpu", 4e12)
    assert "4 ranks on this device" in mfu.words(one)


def test_a_rank_that_has_ended_counts_no_more() -> None:
    ended = events.RunStatus(
        time=1.0, monotonic=NOW, source="node", run="rank-0", condition="failed", since=1.0
    )
    state = machine(gpu(), ranks(2, "GPU-0", "cuda:0"), ended)
    assert found(state, "rank-1").flops_per_second == 1e12
    assert mfu.of_device(machine(gpu()), machine(gpu()).devices["GPU-0"]) is None


def test_a_run_whose_device_is_not_known() -> None:
    state = machine(gpu(), run(flops_per_step=1e12, torch_device="cuda:0"), sample())
    assert found(state).reason == "the device of this run is not known"


def test_the_job_is_the_last_step_of_the_waterfall() -> None:
    # 989.4 rated, 700 best GEMM, 324.5 the job: it loses (700 - 324.5) / 989.4 = 38.0 %.
    state = trained(flops_per_step=1.04 * 312e12)
    state.apply(rate("bf16", 700.0), NOW)
    device = state.devices["GPU-0"]
    one = mfu.of_device(state, device)
    found_steps = steps(device, "bf16", diagnose(state, NOW), one)
    assert [step.key for step in found_steps] == ["rated", "held", "gemm", "job"]
    job = found_steps[-1]
    assert job.ops_per_second == pytest.approx(324.48e12)
    assert job.lost == pytest.approx((700 - 324.48) / 989.4, abs=1e-3)
    assert job.cause == "the model's own kernels"
    lost = sum(step.lost or 0.0 for step in found_steps)
    assert one is not None
    assert lost + (one.ratio or 0.0) == pytest.approx(1.0)
    fp32 = steps(device, "fp32", (), one)[-1]
    assert (fp32.ops_per_second, fp32.unavailable) == (None, "it computes in BF16")
    assert len(steps(device, "bf16", ())) == 3


def test_the_finding_that_explains_the_jobs_loss() -> None:
    newest = sample(1000, {"mean_step_seconds": 1.0, "data_wait_ratio": 0.6}, autocast="bf16")
    state = machine(gpu(), samples(), run(**ON_GPU, flops_per_step=324e12), newest)
    device = state.devices["GPU-0"]
    job = steps(device, "bf16", diagnose(state, NOW), mfu.of_device(state, device))[-1]
    assert job.cause == "waits for its input"
    assert job.finding is not None
    assert job.finding.code == "input-stall"
    assert job.lost == pytest.approx(1 - 324 / 989.4, abs=1e-3)


def test_a_job_above_its_ceiling_is_in_doubt() -> None:
    state = trained(A100, flops_per_step=1.04 * 312e12)
    device = state.devices["GPU-0"]
    job = steps(device, "bf16", (), mfu.of_device(state, device))[-1]
    assert job.cause == "above the ceiling: in doubt"


@given(
    parameters=st.integers(1, 10**12),
    tokens=st.floats(1, 1e9),
    seconds=st.floats(1e-4, 1e4),
)
def test_six_n_d(parameters: int, tokens: float, seconds: float) -> None:
    one = found(trained(None, seconds, tokens, parameters=parameters, transformer=True))
    assert one.flops_per_second == pytest.approx(6.0 * parameters * tokens / seconds)


def test_an_unknown_run_has_no_findings() -> None:
    assert findings() == {}


def test_the_rate_is_of_the_same_steps_as_the_speed() -> None:
    # Tokens are known of the steps that took 0.1 s, not of the slow ones before them.
    window = {"mean_step_seconds": 0.3, "tokens_per_step": 1000.0, "tokens_per_second": 10_000.0}
    given = run(**ON_GPU, flops_per_step=1e12, flops_source="given")
    known = machine(gpu(), samples(), given, sample(1000, window))
    assert found(known).flops_per_second == pytest.approx(1e13)
    window.pop("tokens_per_second")
    unknown = machine(gpu(), samples(), given, sample(1000, window))
    assert found(unknown).flops_per_second == pytest.approx(1e12 / 0.3)


def test_a_cpus_ceiling_says_which_cores_it_counts() -> None:
    identity = run(
        scaler=None,
        torch_device="cpu",
        flops_per_step=1e9,
        flops_source="given",
        parameter_types={"torch.float32": 9},
    )
    state = machine(cpu(), identity, sample(1000, scale=None, autocast=None))
    ceiling = events.Ceiling(
        precision="fp32",
        ops_per_second=5e11,
        origin="computed",
        source="cores x rate per clock x clock",
        note="2 cores x 64 per clock (AVX-512)",
    )
    state.apply(
        events.Ceilings(time=0.0, monotonic=NOW, source="node", device="cpu", rates=(ceiling,)), NOW
    )
    assert "(given, ceiling of 2 cores x 64 per clock (AVX-512))" in mfu.words(found(state))
    on_gpu = trained(seconds=0.1, flops_per_step=1e12, flops_source="given")
    assert found(on_gpu).ceiling_note == ""

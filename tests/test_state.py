"""The fold: what the views are shown for a given sequence of events."""

import pytest

from topsmon import events
from topsmon.device_state import HISTORY_LENGTH
from topsmon.state import State

HEADER = {"time": 1.0, "monotonic": 1.0, "source": "host"}


def gpu(index: int = 0, key: str = "GPU-0") -> events.Device:
    return events.Device(**HEADER, device=key, kind="gpu", index=index, name="NVIDIA H100")


def ceilings(key: str = "GPU-0") -> events.Ceilings:
    # H100 SXM: 132 SMs x 4096 FLOP/clock x 1830 MHz = 989.4 TFLOPS; FP64 tensor 66.9.
    return events.Ceilings(
        **HEADER,
        device=key,
        rates=(
            events.Ceiling(
                precision="bf16",
                ops_per_second=989.4e12,
                ops_per_clock=132 * 4096,
                rated_clock_mhz=1830,
                origin="published",
                source="s",
            ),
            events.Ceiling(
                precision="fp64", ops_per_second=33.5e12, origin="published", source="s"
            ),
            events.Ceiling(
                precision="fp64_tensor", ops_per_second=66.9e12, origin="published", source="s"
            ),
        ),
        absent={"fp4": "no FP4 on sm_90"},
    )


def rate(value: float | None, **changes: object) -> events.RateMeasured:
    fields: dict[str, object] = {
        "device": "GPU-0",
        "precision": "bf16",
        "rate_ops_per_second": value,
        "shape": (4096, 4096, 4096),
        "correct": True,
    }
    return events.RateMeasured(**HEADER, **{**fields, **changes})


def folded(*more: events.AnyEvent) -> State:
    state = State()
    for event in (gpu(), ceilings(), *more):
        state.apply(event, 10.0)
    return state


def test_ratio_against_the_rated_and_the_held_ceiling() -> None:
    # 412 of 989.4 = 41.6 %; at 1155 MHz the ceiling is 132 x 4096 x 1155e6 = 624.5e12.
    device = folded(rate(412e12, held_clock_mhz=1155)).devices["GPU-0"]
    assert device.ratio("bf16") == pytest.approx(0.4164, abs=1e-4)
    assert device.held_ceiling("bf16") == pytest.approx(624.5e12, rel=1e-4)
    assert device.held_ratio("bf16") == pytest.approx(0.6598, abs=1e-4)


def test_a_ratio_over_one_is_not_clamped() -> None:
    assert folded(rate(1070e12)).devices["GPU-0"].ratio("bf16") == pytest.approx(1.0815, abs=1e-4)


def test_fp64_is_held_against_the_tensor_ceiling_where_there_is_one() -> None:
    ceiling = folded().devices["GPU-0"].ceiling("fp64")
    assert ceiling is not None
    assert ceiling.precision == "fp64_tensor"


def test_no_ceiling_means_no_ratio_and_a_reason() -> None:
    device = folded(rate(1e12, precision="fp4")).devices["GPU-0"]
    assert device.ratio("fp4") is None
    assert device.absence("fp4") == "no FP4 on sm_90"


def test_the_fastest_valid_shape_is_shown() -> None:
    device = folded(
        rate(700e12, shape=(8192, 8192, 8192)),
        rate(760e12, shape=(2048, 2048, 13312)),
        rate(900e12, shape=(1, 1, 1), valid=False, invalid_reason="shared"),
        rate(650e12),
    ).devices["GPU-0"]
    best = device.rates["bf16"].best
    assert best is not None
    assert best.shape == (2048, 2048, 13312)
    assert len(device.rates["bf16"].history) == 3


def test_a_wrong_result_hides_behind_no_good_one() -> None:
    best = folded(rate(700e12), rate(760e12, correct=False)).devices["GPU-0"].rates["bf16"].best
    assert best is not None
    assert best.correct is False


def test_a_remembered_rate_gives_way_to_a_measured_one() -> None:
    state = folded()
    state.remember(rate(500e12))
    precision = state.devices["GPU-0"].rates["bf16"]
    assert precision.is_remembered
    state.apply(rate(400e12), 11.0)
    assert not precision.is_remembered
    assert precision.best is not None
    assert precision.best.rate_ops_per_second == 400e12


def test_events_before_the_identity_are_kept() -> None:
    state = State()
    state.apply(ceilings(), 1.0)
    assert not state.devices
    state.apply(gpu(), 2.0)
    assert state.devices["GPU-0"].ceilings is not None


def test_a_stream_of_unknown_devices_does_not_grow_the_state() -> None:
    state = State()
    for number in range(10_000):
        state.apply(events.DeviceSample(**HEADER, device=f"x{number % 500}"), 1.0)
    assert sum(len(queue) for queue in state._waiting.values()) <= 64 * 32


def test_histories_have_a_fixed_size() -> None:
    state = folded()
    for number in range(HISTORY_LENGTH + 50):
        sample = events.DeviceSample(
            time=0.0, monotonic=float(number), source="h", device="GPU-0", busy_ratio=0.5
        )
        state.apply(sample, float(number))
    device = state.devices["GPU-0"]
    assert len(device.busy) == HISTORY_LENGTH
    assert device.sampled_span() == HISTORY_LENGTH - 1
    assert device.age(HISTORY_LENGTH + 52.0) == pytest.approx(3.0)


def test_devices_keep_their_order_and_the_cpu_is_last() -> None:
    state = State()
    state.apply(events.Device(**HEADER, device="cpu", kind="cpu", index=0, name="c"), 1.0)
    state.apply(gpu(1, "GPU-b"), 1.0)
    state.apply(gpu(0, "GPU-z"), 1.0)
    assert [device.label for device in state.ordered()] == ["GPU 0", "GPU 1", "CPU"]


def test_a_problem_ends_when_its_code_is_none() -> None:
    state = State()
    state.apply(events.Problem(**HEADER, subject="nvml", code="9", message="m"), 1.0)
    assert set(state.problems) == {"nvml"}
    state.apply(events.Problem(**HEADER, subject="nvml", code=None, message=""), 1.0)
    assert not state.problems


def test_a_probe_is_shown_only_while_its_worker_runs() -> None:
    state = folded(events.ProbeStarted(**HEADER, device="GPU-0", precision="fp32"))
    prober = state.devices["GPU-0"].prober
    assert prober.measuring == "fp32"
    ended = events.Worker(**HEADER, worker="prober GPU-0", condition="restarted", restarts=1)
    state.apply(ended, 2.0)
    assert prober.measuring is None
    assert prober.worker == ended


def cpu_with_nominal_clock() -> State:
    # 2 cores x 64 FLOP/clock at a nominal 2600 MHz: 332.8 GFLOPS.
    state = State()
    state.apply(events.Device(**HEADER, device="cpu", kind="cpu", index=0, name="c"), 1.0)
    state.apply(
        events.Ceilings(
            **HEADER,
            device="cpu",
            clock_source="2600 MHz, nominal",
            rates=(
                events.Ceiling(
                    precision="fp32",
                    ops_per_second=332.8e9,
                    ops_per_clock=128,
                    rated_clock_mhz=2600,
                    origin="computed",
                    source="s",
                ),
            ),
        ),
        1.0,
    )
    return state


def test_a_cpu_clock_measured_above_the_nominal_one_becomes_the_rated_clock() -> None:
    state = cpu_with_nominal_clock()
    fast = rate(400e9, device="cpu", precision="fp32", held_clock_mhz=4000.0)
    state.apply(fast, 2.0)
    device = state.devices["cpu"]
    # 128 x 4000 MHz = 512 GFLOPS: 400 of 512 is 78.1 %, not 120 % of the nominal ceiling.
    assert device.ratio("fp32") == pytest.approx(0.78125)
    assert device.ceilings is not None
    assert "4000 MHz, the highest clock measured here" in device.ceilings.clock_source
    state.apply(rate(300e9, device="cpu", precision="fp32", held_clock_mhz=3000.0), 3.0)
    assert device.ceiling("fp32").ops_per_second == pytest.approx(512e9)  # type: ignore[union-attr]


def test_the_measured_clock_outlives_a_new_poller() -> None:
    state = cpu_with_nominal_clock()
    state.apply(rate(400e9, device="cpu", precision="fp32", held_clock_mhz=4000.0), 2.0)
    nominal = cpu_with_nominal_clock().devices["cpu"].ceilings
    assert nominal is not None
    state.apply(nominal, 3.0)
    assert state.devices["cpu"].ratio("fp32") == pytest.approx(0.78125)


def test_a_clock_within_the_told_one_changes_nothing() -> None:
    state = cpu_with_nominal_clock()
    state.apply(rate(300e9, device="cpu", precision="fp32", held_clock_mhz=2610.0), 2.0)
    assert state.devices["cpu"].ceilings.clock_source == "2600 MHz, nominal"  # type: ignore[union-attr]


def test_a_slowdown_is_not_hidden_by_an_old_result_of_another_shape() -> None:
    big, small = (8192, 8192, 8192), (4096, 4096, 4096)
    state = folded(rate(760e12, shape=big), rate(700e12, shape=small))
    precision = state.devices["GPU-0"].rates["bf16"]
    state.apply(rate(690e12, shape=small), 11.0)
    assert precision.best is not None
    assert precision.best.rate_ops_per_second == 760e12
    state.apply(rate(400e12, shape=small), 12.0)
    assert precision.best.rate_ops_per_second == 400e12


def test_a_new_poller_starts_without_the_troubles_of_the_last_one() -> None:
    status = events.DeviceStatus(**HEADER, device="GPU-0", condition="error", since=1.0)
    problem = events.Problem(**HEADER, subject="nvml", code="reloaded", message="m")
    state = folded(status, problem)
    hello = events.Hello(**HEADER, version="1", schema=1, role="prober", pid=1)
    state.apply(hello, 2.0)
    assert state.devices["GPU-0"].condition == "error"
    state.apply(events.Hello(**HEADER, version="1", schema=1, role="poller", pid=2), 3.0)
    assert state.devices["GPU-0"].condition == "ok"
    assert not state.problems


def test_a_slot_has_one_row_when_a_new_poller_knows_its_gpu_by_uuid() -> None:
    state = State()
    state.apply(gpu(0, "gpu-0"), 1.0)
    state.apply(gpu(1, "GPU-b"), 1.0)
    state.apply(events.Hello(**HEADER, version="1", schema=1, role="poller", pid=2), 2.0)
    state.apply(gpu(0, "GPU-a"), 3.0)
    assert [device.key for device in state.ordered()] == ["GPU-a", "GPU-b"]
    state.apply(gpu(1, "GPU-b"), 3.0)
    state.apply(gpu(1, "GPU-c"), 4.0)  # two devices of one index, both alive: keep both
    assert set(state.devices) == {"GPU-a", "GPU-b", "GPU-c"}

"""Losses are shares of the rated ceiling and add up to 100 % with the achieved ratio."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import FUTURE_CARD, NOW, RTX_3090, gpu, machine, rate, sample, samples, status

from topsmon.diagnosis import diagnose
from topsmon.diagnosis.waterfall import limited_by, steps
from topsmon.state import State

CAPPED_NOW = {"power_limit_watts": 350.0, "power_watts": 347.0, "clock_event_mask": 0x4}


def waterfall(state: State, precision: str = "bf16") -> tuple[object, ...]:
    return steps(state.devices["GPU-0"], precision, diagnose(state, NOW))


def test_a_capped_h100() -> None:
    # 989.4 rated; 132 x 4096 x 1155e6 = 624.5 at held clock: -36.9 %; 412 achieved: -21.5 %.
    burst = rate("bf16", 412.0, held_clock_mhz=1155.0, clock_event_mask=0x4)
    rated, held, gemm = waterfall(machine(gpu(), samples(**CAPPED_NOW), burst))
    assert [step.key for step in (rated, held, gemm)] == ["rated", "held", "gemm"]
    assert rated.ops_per_second == pytest.approx(989.4e12, rel=1e-3)
    assert rated.lost == 0.0
    assert held.ops_per_second == pytest.approx(624.5e12, rel=1e-3)
    assert held.lost == pytest.approx(0.369, abs=1e-3)
    assert held.cause == "power limit 350 W"
    assert held.finding is not None
    assert held.finding.command == "sudo nvidia-smi -i 0 -pl 700"
    assert gemm.lost == pytest.approx(0.215, abs=1e-3)
    assert gemm.cause == "library and shape"


@given(
    achieved=st.floats(min_value=1.0, max_value=2000.0),
    clock=st.one_of(st.none(), st.floats(min_value=100.0, max_value=3000.0)),
)
def test_losses_and_ratio_add_up_to_one(achieved: float, clock: float | None) -> None:
    state = machine(gpu(), rate("bf16", achieved, held_clock_mhz=clock))
    lost = [step.lost for step in steps(state.devices["GPU-0"], "bf16", ())]
    ratio = state.devices["GPU-0"].ratio("bf16")
    assert ratio is not None
    assert sum(share for share in lost if share is not None) + ratio == pytest.approx(1.0)


def test_a_boost_above_rated_is_a_gain() -> None:
    # 1905 of 1695 MHz: 12.4 % more than rated.
    _, held, _ = waterfall(machine(gpu(0, RTX_3090), rate("bf16", 76.3, held_clock_mhz=1905.0)))
    assert held.lost == pytest.approx(-0.124, abs=1e-3)
    assert held.cause == "boost above rated"


def test_without_a_clock_the_loss_is_not_split() -> None:
    rated, held, gemm = waterfall(machine(gpu(), rate("bf16", 700.0, held_clock_mhz=None)))
    assert (held.ops_per_second, held.lost) == (None, None)
    assert held.unavailable == "no clock was read during the burst"
    assert gemm.lost == pytest.approx(1 - 700 / 989.4, abs=1e-3)
    assert gemm.cause == "clock and library"
    assert rated.ops_per_second is not None


def test_before_any_measurement() -> None:
    rated, held, gemm = waterfall(machine(gpu()))
    assert rated.ops_per_second is not None
    assert (held.unavailable, gemm.unavailable) == ("not measured yet", "not measured yet")
    assert gemm.lost is None


def test_without_a_ceiling_the_rate_is_still_shown() -> None:
    rated, held, gemm = waterfall(machine(gpu(0, FUTURE_CARD), rate("bf16", 700.0)))
    assert (rated.ops_per_second, held.ops_per_second) == (None, None)
    assert rated.unavailable
    assert (gemm.ops_per_second, gemm.lost) == (700e12, None)


def test_a_precision_that_the_device_lacks_says_why() -> None:
    rated, _, _ = waterfall(machine(gpu()), "fp4")
    assert rated.ops_per_second is None
    assert "FP4" in rated.unavailable


def test_a_wrong_result_is_no_rate() -> None:
    wrong = rate("bf16", 700.0, correct=False, valid=False)
    _, held, gemm = waterfall(machine(gpu(), samples(), wrong))
    assert (held.ops_per_second, gemm.ops_per_second) == (None, None)
    assert gemm.unavailable == "the result is wrong"
    assert gemm.finding is not None
    assert gemm.finding.word == "FAIL"


def test_an_invalid_rate_is_shown_with_its_reason() -> None:
    shared = rate("bf16", 300.0, valid=False, invalid_reason="shared: python (PID 1) uses GPU 0")
    gemm = waterfall(machine(gpu(), shared))[2]
    assert gemm.ops_per_second == 300e12
    assert gemm.cause == "not valid: shared: python (PID 1) uses GPU 0"


def test_a_hot_gpu_explains_the_step_to_the_held_clock() -> None:
    hot = rate("bf16", 440.0, held_clock_mhz=975.0, clock_event_mask=0x48)
    state = machine(gpu(), samples(clock_event_mask=0x48, temperature_celsius=91.0), hot)
    held = waterfall(state)[1]
    assert held.cause == "HW thermal"
    assert held.finding is not None
    assert held.finding.word == "HOT"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clock_event_mask": 0}, ""),
        ({"clock_event_mask": 1}, ""),
        ({"clock_event_mask": None}, ""),
        ({"clock_event_mask": 4}, "SW power cap"),
        ({"clock_event_mask": 4, "power_limit_watts": 350.0}, "power limit 350 W"),
        ({"clock_event_mask": 4 | 0x20}, "thermal"),
        ({"clock_event_mask": 8 | 0x40}, "HW thermal"),
        ({"clock_event_mask": 8 | 0x80}, "power brake"),
        ({"clock_event_mask": 0x8000}, "0x8000"),
    ],
)
def test_limited_by(changes: dict[str, object], words: str) -> None:
    state = machine(gpu(), sample(NOW, **changes))
    assert limited_by(state.devices["GPU-0"]) == words


def test_a_lost_gpu_is_limited_by_nothing() -> None:
    state = machine(gpu(), sample(NOW, clock_event_mask=4), status("lost", 1.0, 1.0))
    assert limited_by(state.devices["GPU-0"]) == ""

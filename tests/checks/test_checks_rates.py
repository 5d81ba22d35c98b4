"""Verdicts on matrix products."""

from pathlib import Path

import nodes
import pytest
from nodes import A100, FUTURE_CARD, RTX_3090, RTX_5090, healthy, node, one, rate

from topsmon import ceilings, diagnosis, events
from topsmon.checks.context import without_keys
from topsmon.checks.outcome import exit_code, status


def gpu(board=nodes.H100, **changes) -> list[events.AnyEvent]:
    device = nodes.identity(0, board, **changes)
    return [device, ceilings.for_device(device), nodes.sample()]


def test_healthy_rates_pass_with_limit_ratio_and_source() -> None:
    result = one(node(healthy()), "bf16")
    # The lowest of three published figures is 764.9 (cutlass issue 1662); 92 % of it.
    assert (result.state, result.label, result.device) == ("PASS", "GPU 0", "GPU-0000")
    assert result.pass_limit == pytest.approx(0.92 * 764.9e12)
    assert result.fail_limit == pytest.approx(0.80 * 764.9e12)
    assert result.ratio == pytest.approx(794.5 / 989.43, rel=1e-4)
    assert result.value_text == "794 TFLOPS"
    assert "cutlass" in result.basis


@pytest.mark.parametrize(
    ("tera", "expected"), [(704.0, "PASS"), (703.0, "WARN"), (612.0, "WARN"), (611.0, "FAIL")]
)
def test_limits_of_a_board_with_a_published_figure(tera: float, expected: str) -> None:
    assert one(node(gpu(), rate("bf16", tera)), "bf16").state == expected


def test_a100_with_random_data_is_healthy() -> None:
    # thonking.ai: 258 TFLOPS with normal random data, 82.7 % of 312.
    state = node(gpu(A100), rate("fp16", 258.0, held_clock_mhz=1300.0))
    result = one(state, "fp16")
    assert result.state == "PASS"
    assert result.ratio == pytest.approx(0.827, abs=5e-4)


def test_at_the_power_cap_the_cause_is_power_and_not_the_kernel() -> None:
    capped = rate("fp16", 220.0, held_clock_mhz=1005.0, clock_event_mask=4, power_watts=399.0)
    state = node(gpu(A100), nodes.sample(power_watts=399.0, power_limit_watts=400.0), capped)
    result = one(state, "fp16")
    assert result.state == "WARN"
    assert "power cap of 400 W" in result.cause


def test_a_chosen_power_limit_warns_and_is_no_defect() -> None:
    readings = {"power_limit_watts": 350.0, "power_watts": 347.0, "clock_event_mask": 4}
    capped = rate("bf16", 523.0, held_clock_mhz=1155.0, clock_event_mask=4)
    result = one(node(gpu(), nodes.sample(**readings), capped), "bf16")
    assert result.state == "WARN"  # far below 80 % of the published figure
    assert result.cause == "power limit is set to 350 W (default 700 W)"
    assert result.command == "sudo nvidia-smi -i 0 -pl 700"
    assert "press" not in result.remedy
    assert result.remedy.endswith("then check again.")


def test_a_low_clock_without_a_reason_fails() -> None:
    result = one(node(gpu(), rate("bf16", 523.0, held_clock_mhz=1155.0)), "bf16")
    assert result.state == "FAIL"
    assert "clock held at 1155 MHz" in result.cause


def test_clocks_that_were_set_by_someone_warn() -> None:
    locked = rate("bf16", 523.0, held_clock_mhz=1155.0, clock_event_mask=2)
    assert one(node(gpu(), locked), "bf16").state == "WARN"


def test_sync_boost_is_throttling_by_others() -> None:
    follower = rate("bf16", 523.0, held_clock_mhz=1155.0, clock_event_mask=0x10)
    result = one(node(gpu(), follower), "bf16")
    assert (result.state, result.unknown) == ("INVALID", True)
    assert "another GPU" in result.cause


@pytest.mark.parametrize("tera", [0.0, -1.0])
def test_a_measured_zero_is_a_failure(tera: float) -> None:
    results = nodes.check(node(gpu(), rate("bf16", tera)), "bf16")
    assert [result.state for result in results] == ["FAIL"]
    assert exit_code(results) == 2


def test_nothing_measured_is_unknown_and_never_healthy() -> None:
    results = nodes.check(node(gpu()), "bf16")
    assert [(result.state, result.unknown) for result in results] == [("NO-VERDICT", True)]
    assert exit_code(results) == 3


def test_a_rate_that_could_not_be_read_is_unknown() -> None:
    lost = rate("bf16", None, valid=False, invalid_reason="torch gave up")
    result = one(node(gpu(), lost), "bf16")
    assert (result.state, result.unknown, result.cause) == ("NO-VERDICT", True, "torch gave up")


def test_a_disturbed_rate_is_invalid_and_keeps_its_number() -> None:
    shared = rate("bf16", 300.0, valid=False, invalid_reason="shared: python train.py (PID 12)")
    result = one(node(gpu(), shared), "bf16")
    assert (result.state, result.unknown) == ("INVALID", True)
    assert result.value == 300e12
    assert "train.py" in result.cause


def test_a_wrong_result_is_a_failure_even_if_a_later_one_is_right() -> None:
    wrong = rate("bf16", 794.0, correct=False, relative_error=0.3)
    state = node(gpu(), wrong, rate("bf16", 794.0))
    assert one(state, "bf16").state == "FAIL"
    result = one(state, "correctness")
    assert (result.state, result.value_text) == ("FAIL", "1 wrong")
    assert "BF16 4096x4096x4096: relative error 3.0e-01, limit 1e-02" in result.evidence
    assert "GPU-0000" in result.evidence
    assert "Stop using this board" in result.remedy


def test_correctness_counts_what_was_verified() -> None:
    result = one(node(gpu(), rate("bf16", 794.0), rate("fp16", 760.0, correct=None)), "correctness")
    assert (result.state, result.value_text) == ("PASS", "1 right")
    assert one(node(gpu()), "correctness").unknown


def test_a_wrong_laboratory_probe_fails_correctness() -> None:
    state = node(gpu(), rate("bf16", 794.0), nodes.probe("memory", correct=False))
    assert one(state, "correctness").cause == "silent corruption: memory"


def test_an_emulated_type_has_no_verdict_of_the_hardware() -> None:
    state = node(gpu(), rate("bf16", 2.1, emulated=True, note="no native BF16 on Tesla T4"))
    results = nodes.check(state, "bf16")
    assert (results[0].state, results[0].unknown) == ("EMULATED", False)
    assert results[0].cause == "no native BF16 on Tesla T4"


def test_an_unsupported_type_says_why() -> None:
    refused = events.ProbeUnsupported(
        **nodes.header(), device="GPU-0000", precision="fp4", reason="no FP4 Tensor Cores"
    )
    result = one(node(gpu(), refused), "fp4")
    assert (result.state, result.cause, result.unknown) == (
        "UNSUPPORTED",
        "no FP4 Tensor Cores",
        False,
    )


def test_slow_int8_is_the_library_and_never_the_board() -> None:
    # triton issue 634: A100 INT8 38400 x 4096 x 1024 in 4.148 ms, FP16 in 1.457 ms.
    operations = 2 * 38400 * 4096 * 1024
    int8, fp16 = operations / 4.148e-3 / 1e12, operations / 1.457e-3 / 1e12
    assert (round(int8, 1), round(fp16, 1)) == (77.7, 221.1)
    state = node(gpu(A100), rate("int8", int8, held_clock_mhz=1400.0, relative_error=0.0))
    results = nodes.check(state, "int8")
    assert results[0].state == "WARN"
    assert results[0].ratio == pytest.approx(0.124, abs=1e-3)
    assert "library path" in results[0].cause
    assert results[0].fail_limit is None
    assert exit_code(results, fail_on="fail") == 0


def test_slow_int8_at_a_low_clock_is_the_library_or_the_clock() -> None:
    state = node(gpu(A100), rate("int8", 190.0, held_clock_mhz=600.0, clock_event_mask=0x40))
    result = one(state, "int8")
    assert result.state == "WARN"
    assert result.cause.startswith("library path, or too hot")


def test_a_rate_of_another_path_is_not_passed() -> None:
    # NVIDIA/CUDALibrarySamples issue 283: RTX 5090, block-scaled FP8 4096^3 in 210 us = 654.5
    # TFLOPS, 156 % of the 419 with FP32 accumulation.
    tera = 2 * 4096**3 / 210e-6 / 1e12
    assert round(tera, 1) == 654.5
    for clock in (None, 2407.0):
        result = one(node(gpu(RTX_5090), rate("fp8", tera, held_clock_mhz=clock)), "fp8")
        assert (result.state, result.unknown) == ("INVALID", True)
        assert result.ratio == pytest.approx(1.562, abs=2e-3)


def test_boost_above_the_rated_clock_passes_and_is_explained() -> None:
    # zzc0721/torch-performance-test-data: RTX 3090 FP16 75.5-75.9 TFLOPS, 106 % of 71.2.
    result = one(node(gpu(RTX_3090), rate("fp16", 75.7, held_clock_mhz=1905.0)), "fp16")
    assert result.state == "PASS"
    assert result.ratio == pytest.approx(1.06, abs=0.01)
    assert "boosts to 1905 MHz, rated 1695" in result.cause


def test_an_unknown_board_gets_no_ceiling_and_no_verdict_on_its_rates() -> None:
    results = nodes.check(node(healthy(0, FUTURE_CARD)), "bf16", "inventory", "correctness")
    by_check = {result.check: result for result in results}
    assert by_check["bf16"].state == "NO-VERDICT"
    assert "no ceiling known" in by_check["bf16"].cause
    assert by_check["bf16"].ratio is None
    assert exit_code(results) == 0  # what could be judged is fine


def test_fp64_has_no_verdict_since_nobody_published_one() -> None:
    result = one(node(healthy()), "fp64")
    assert (result.state, result.unknown, result.value) == ("NO-VERDICT", False, 53.4e12)


def test_fp16_accumulation_is_judged_where_the_board_is_made_for_it() -> None:
    def gain(board, short: float, long: float, **more) -> events.CheckResult:
        measured = [rate("fp16", long, held_clock_mhz=None), rate("fp16_acc16", short, **more)]
        return one(node(gpu(board), measured), "fp16-accumulate")

    made_for_it = gain(RTX_3090, 130.0, 75.0)
    assert (made_for_it.state, made_for_it.value_text) == ("PASS", "1.73x")
    assert "accuracy" in made_for_it.cause
    library = gain(RTX_3090, 76.0, 75.0, note="by its error the library still summed in FP32")
    assert (library.state, library.experimental) == ("WARN", True)
    assert "summed in FP32" in library.cause
    assert gain(nodes.H100, 760.0, 758.0).state == "NO-VERDICT"


def test_results_of_an_earlier_session_do_not_count() -> None:
    state = node(gpu())
    state.remember(rate("bf16", 794.0))
    assert one(state, "bf16").unknown


def test_nothing_judged_at_all_is_unknown() -> None:
    assert status([]) == "UNKNOWN"
    assert status(nodes.check(node(healthy()), "fp64", "alignment")) == "UNKNOWN"


def test_exit_codes() -> None:
    low = nodes.check(node(gpu(), rate("bf16", 690.0)), "bf16")
    assert [exit_code(low), exit_code(low, fail_on="fail")] == [1, 0]
    missing = nodes.check(node(gpu()), "bf16", "link")
    assert [exit_code(missing), exit_code(missing, unknown_ok=True)] == [3, 0]
    both = [*low, *missing]
    assert [exit_code(both), exit_code(both, fail_on="fail")] == [1, 3]
    informed = [*low, *nodes.check(node(gpu(), rate("fp64", 53.4)), "fp64")]
    assert exit_code(informed, fail_on="fail") == 0
    assert exit_code(low, interrupted=True) == 130


def test_no_remedy_of_the_live_screen_asks_a_command_to_press_keys() -> None:
    sources = Path(diagnosis.__file__).parent.glob("*.py")
    pressed = [
        line.strip()
        for path in sources
        for line in path.read_text().splitlines()
        if "press b" in line.lower() and '"' in line
    ]
    assert pressed
    for line in pressed:
        assert "press" not in without_keys(line).lower(), line


def test_results_that_took_no_work_are_not_right() -> None:
    zero = [nodes.identity(), nodes.sample(), nodes.rate("bf16", 0.0), nodes.rate("fp16", 0.0)]
    result = nodes.one(nodes.node(zero), "correctness")
    assert (result.state, result.unknown) == ("INVALID", True)
    assert "nothing was computed" in result.cause
    some = nodes.node(zero, nodes.rate("tf32", 400.0))
    assert nodes.one(some, "correctness").value_text == "1 right"

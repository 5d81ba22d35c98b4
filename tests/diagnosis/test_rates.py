"""Achieved against expected, against equals, and above the ceiling; wrong results."""

import math

import pytest
from machines import (
    A100,
    FUTURE_CARD,
    H100,
    LAPTOP_4070,
    NOW,
    RTX_3090,
    RTX_5090,
    TRAINING,
    codes,
    cpu,
    gpu,
    header,
    machine,
    only,
    processes,
    rate,
    samples,
)

from topsmon import events
from topsmon.diagnosis import device_word, diagnose
from topsmon.diagnosis.expected import expectation, table


def h100(*rates: events.RateMeasured, **changes: object) -> list[object]:
    return [*gpu(), *samples(**changes), *rates]


# 412 of 989.4 TFLOPS at 1155 MHz: ceiling there 132 x 4096 x 1155e6 = 624.5, 66.0 % of it.
CAPPED = {"held_clock_mhz": 1155.0, "clock_event_mask": 0x4, "power_watts": 348.0}
CAPPED_NOW = {
    "power_limit_watts": 350.0,
    "power_watts": 347.0,
    "sm_clock_mhz": 1155.0,
    "clock_event_mask": 0x4,
}


def test_a_capped_gpu_among_eight_is_one_finding_with_numbers_cause_and_command() -> None:
    groups = [
        [*gpu(index), *samples(index), rate("bf16", 720.0 + index, index)]
        for index in range(8)
        if index != 3
    ]
    capped = [*gpu(3), *samples(3, **CAPPED_NOW), rate("bf16", 412.0, 3, **CAPPED)]
    state = machine(*groups, capped)
    found = only(state)
    assert (found.word, found.severity, found.device) == ("SLOW", "warn", "GPU-3")
    assert found.title == "GPU 3  BF16 412 of 989 TFLOPS (41.6%)"
    assert found.cause == "power limit is set to 350 W (default 700 W)"
    assert found.command == "sudo nvidia-smi -i 3 -pl 700"
    assert "press b" in found.remedy
    # 720/989.4 = 72.8 %, 727/989.4 = 73.5 %; the median of 720, 721, 722, 724 ... 727 is 724.
    assert found.evidence[0] == "the other 7 equal GPUs: 72.8%-73.5%, median 724 TFLOPS"
    assert "held 1155 MHz: 66.0% of the 624 TFLOPS there" in found.evidence
    words = [device_word(device, (found,)) for device in state.ordered()]
    assert words == ["ok", "ok", "ok", "SLOW", "ok", "ok", "ok", "ok"]


def test_the_title_fits_the_finding_line() -> None:
    for finding in diagnose(machine(h100(rate("bf16", 412.0, **CAPPED), **CAPPED_NOW)), NOW):
        assert len(finding.title) <= 70
        assert len(finding.cause) <= 80


def test_random_data_on_an_a100_at_its_power_cap_are_as_expected() -> None:
    # thonking.ai: 257-258 TFLOPS with random inputs, 82.7 % of 312, at 399 of 400 W.
    at_cap = {"power_watts": 399.0, "power_limit_watts": 400.0, "clock_event_mask": 0x4}
    held = rate("fp16", 258.0, held_clock_mhz=1275.0, clock_event_mask=0x4, power_watts=399.0)
    assert codes(machine(gpu(0, A100), samples(**at_cap), held)) == []


def test_low_at_the_default_power_cap_names_the_power_cap_and_not_the_kernel() -> None:
    # 190 TFLOPS at 950 of 1410 MHz: 61 % of rated, 90 % of the ceiling at the held clock.
    at_cap = {"power_watts": 399.0, "power_limit_watts": 400.0, "clock_event_mask": 0x4}
    held = rate("fp16", 190.0, held_clock_mhz=950.0, clock_event_mask=0x4, power_watts=399.0)
    found = only(machine(gpu(0, A100), samples(**at_cap), held))
    assert found.cause == (
        "clock held at 950 MHz (rated 1410) by the power cap of 400 W, the board's default"
    )
    assert "power cap" in found.remedy
    assert found.command == ""  # 400 W is also the maximum: nothing to raise


def test_a_little_below_at_the_default_power_cap_is_normal() -> None:
    # 692 of 989.4 is under 92 % of the published 760, but 80 % of the ceiling at 1594 MHz.
    at_cap = {"power_watts": 699.0, "clock_event_mask": 0x4}
    held = rate("fp16", 692.0, held_clock_mhz=1594.0, clock_event_mask=0x4)
    assert codes(machine(h100(held, **at_cap))) == []
    cool = rate("fp16", 692.0)
    assert codes(machine(h100(cool))) == ["rate-below-expected"]


def test_a_power_cap_that_may_be_raised_says_so() -> None:
    board = {**A100, "power_limit_max_watts": 500.0}
    at_cap = {"power_limit_watts": 400.0, "clock_event_mask": 0x4}
    held = rate("fp16", 190.0, held_clock_mhz=950.0, clock_event_mask=0x4)
    assert only(machine(gpu(0, board), samples(**at_cap), held)).command == (
        "sudo nvidia-smi -i 0 -pl 500"
    )


def test_a_low_rate_of_a_hot_gpu_is_one_hot_finding_with_the_numbers() -> None:
    hot = {"clock_event_mask": 0x48, "temperature_celsius": 91.0, "sm_clock_mhz": 975.0}
    slow = rate("bf16", 440.0, held_clock_mhz=975.0, clock_event_mask=0x48)
    found = only(machine(h100(slow, **hot)))
    assert (found.code, found.word, found.severity) == ("thermal-slowdown", "HOT", "fail")
    assert found.title == "GPU 0  BF16 440 of 989 TFLOPS (44.5%)"
    assert found.cause == "too hot: 91 C (slowdown at 89 C)"


def test_heat_seen_only_during_the_burst_is_the_cause_all_the_same() -> None:
    slow = rate("bf16", 440.0, held_clock_mhz=975.0, clock_event_mask=0x40)
    found = only(machine(h100(slow)))
    assert (found.word, found.cause) == ("SLOW", "too hot during the burst (HW thermal slowdown)")


def test_a_low_clock_without_a_reason_may_be_locked() -> None:
    found = only(machine(h100(rate("bf16", 500.0, held_clock_mhz=1200.0))))
    assert found.cause.startswith("clock held at 1200 MHz (rated 1830)")
    assert (found.command, found.severity) == ("sudo nvidia-smi -i 0 -rgc", "warn")


def test_a_held_clock_and_a_low_rate_is_the_kernel() -> None:
    # 400 of 989.4 at 1755 MHz: ceiling there 948.9, 42.2 % of it.
    found = only(machine(h100(rate("bf16", 400.0))))
    assert (found.code, found.severity) == ("rate-below-expected", "fail")
    assert "kernel at 42.2% of the ceiling there" in found.cause
    assert "pl" not in found.command


def test_the_larger_loss_is_named_first() -> None:
    # At 1700 MHz with the power cap bit the clock costs 7 %, the kernel far more.
    slow = rate("bf16", 300.0, held_clock_mhz=1700.0, clock_event_mask=0x4)
    assert "kernel at" in only(machine(h100(slow, clock_event_mask=0x4))).cause


def test_a_low_memory_clock_under_load_is_a_cause_but_p2_is_not() -> None:
    slow = rate("bf16", 300.0)
    assert "memory clock 810 of 2619 MHz" in only(machine(h100(slow, memory_clock_mhz=810.0))).cause
    assert "kernel at" in only(machine(h100(slow, memory_clock_mhz=2550.0))).cause


def test_p2_memory_clock_of_a_geforce_board_is_no_finding() -> None:
    # 9501 instead of 9751 MHz in P2: normal for compute on GeForce.
    p2 = {"performance_state": 2, "memory_clock_mhz": 9501.0, "power_limit_watts": 350.0}
    healthy = rate("fp32", 24.6, held_clock_mhz=1695.0)
    assert codes(machine(gpu(0, RTX_3090), samples(**p2), healthy)) == []


# The published figures, hand-copied: stas00/ml-engineering accelerator README (MAMF) and
# zzc0721/torch-performance-test-data (ZZ). Each must count as healthy on its own board.
PUBLISHED = [
    ("a100-sxm4-80gb", "bf16", 271.2),
    ("a100-sxm4-80gb", "bf16", 264.5),
    ("a100-sxm4-80gb", "fp16", 258.7),
    ("a100-sxm4-80gb", "fp32", 19.18),
    ("h100-sxm", "bf16", 794.5),
    ("h100-sxm", "bf16", 797.5),
    ("h100-sxm", "bf16", 764.9),
    ("h100-sxm", "fp16", 760.0),
    ("h100-sxm", "tf32", 402.2),
    ("h100-sxm", "fp32", 51.9),
    ("h100-sxm", "fp8", 1402.6),
    ("h100-sxm", "fp8", 1296.9),
    ("h200-sxm", "bf16", 790.3),
    ("h200-sxm", "fp16", 759.4),
    ("h200-sxm", "fp32", 51.3),
    ("h200-sxm", "fp8", 1453.4),
    ("b200", "bf16", 1745.0),
    ("b200", "fp8", 3432.5),
    ("b300", "bf16", 1769.0),
    ("b300", "fp8", 3353.3),
    ("gb200", "bf16", 1822.0),
    ("gb200", "fp8", 3615.6),
    ("h20", "fp32", 31.99),
    ("h20", "tf32", 71.8),
    ("h20", "fp16", 142.1),
    ("l40s", "fp32", 46.9),
    ("l40s", "fp16", 264.0),
    ("l40s", "bf16", 269.0),
    ("t4", "fp32", 4.2),
    ("t4", "fp16", 41.9),
    ("v100-sxm2-16gb", "fp32", 14.06),
    ("v100-sxm2-16gb", "fp16", 94.8),
    ("rtx-3090", "fp32", 24.5),
    ("rtx-3090", "fp16", 75.5),
    ("rtx-3090", "bf16", 76.3),
]


def board_device(key: str) -> list[events.AnyEvent]:
    from topsmon.ceilings import boards

    board = boards()[key]
    ids = board.pci_ids[0].split(":", 1) if board.pci_ids else []
    found = gpu(
        0,
        {
            "name": board.names[0],
            "pci_device_id": ids[0] if ids else None,
            "pci_subsystem_id": ids[1] if len(ids) > 1 else None,
            "compute_capability": board.cc,
            "sm_count": board.sms,
        },
    )
    assert isinstance(found[1], events.Ceilings)
    assert found[1].board == key
    return found


@pytest.mark.parametrize(("board", "precision", "tera"), PUBLISHED)
def test_a_published_figure_is_as_expected(board: str, precision: str, tera: float) -> None:
    slow = ("rate-below-expected", "rate-below-peers")
    state = machine(board_device(board), rate(precision, tera, held_clock_mhz=None))
    assert [code for code in codes(state) if code in slow] == []


@pytest.mark.parametrize(("board", "precision", "tera"), PUBLISHED)
def test_three_quarters_of_a_published_figure_are_far_off(
    board: str, precision: str, tera: float
) -> None:
    lowest = min(figure for key, kind, figure in PUBLISHED if (key, kind) == (board, precision))
    state = machine(board_device(board), rate(precision, 0.75 * lowest, held_clock_mhz=None))
    assert codes(state)[0] == "rate-below-expected"


@pytest.mark.parametrize(("board", "precision", "tera"), PUBLISHED)
def test_a_published_figure_passes_the_default_of_its_class_too(
    board: str, precision: str, tera: float
) -> None:
    """Classes were set so that every published NVIDIA figure passes."""
    ceiling = machine(board_device(board)).devices["GPU-0"].ceiling(precision)
    assert ceiling is not None
    for default in table().default:
        members = {member for group in default.groups for member in table().groups[group]}
        if precision in default.precisions and board in members:
            assert tera * 1e12 >= default.enough * ceiling.ops_per_second


def test_the_figures_in_the_table_are_those_published() -> None:
    listed = {
        (board, figure.precision, tera)
        for figure in table().figure
        for board in figure.boards
        for tera in figure.tflops.values()
    }
    assert set(PUBLISHED) <= listed


def test_every_limit_is_a_fraction_and_every_board_exists() -> None:
    from topsmon.ceilings import boards

    assert 0 < table().published.far_off < table().published.enough < 1
    for default in table().default:
        assert 0 < default.far_off < default.enough < 1
        assert set(default.groups) <= set(table().groups)
        assert default.basis
    named = {board for group in table().groups.values() for board in group}
    named |= {board for figure in table().figure for board in figure.boards}
    assert named <= set(boards())


def test_every_data_centre_workstation_and_desktop_board_is_in_a_group() -> None:
    """A new board must be sorted into the groups, or be named here with its reason."""
    from topsmon.ceilings import boards

    grouped = {board for group in table().groups.values() for board in group}
    without = {
        key
        for key, board in boards().items()
        if key not in grouped
        and not key.endswith(("-laptop", "-mobile"))  # clocks are the notebook maker's choice
        and board.cc not in ("6.0", "6.1", "7.2", "8.7", "11.0", "12.1")  # no Tensor Core, SoC
    }
    assert without == set()


@pytest.mark.parametrize(
    ("tera", "severity"),
    # FP16 of an H100 NVL, in no published figure: class default 55 / 45 % of 835.5 TFLOPS.
    [(470.0, None), (450.0, "warn"), (380.0, "warn"), (370.0, "fail")],
)
def test_class_default_of_a_board_without_a_figure(tera: float, severity: str | None) -> None:
    state = machine(board_device("h100-nvl"), rate("fp16", tera, held_clock_mhz=1545.0))
    found = [one.severity for one in diagnose(state, NOW) if one.code == "rate-below-expected"]
    assert found == ([severity] if severity else [])


def test_slow_int8_is_the_library_and_never_a_failure() -> None:
    # GB300-like: _int_mm row-major, far below; here 300 of 1979 TOPS on an H100.
    found = only(machine(h100(rate("int8", 300.0))))
    assert found.severity == "warn"
    assert found.title == "GPU 0  INT8 300 of 1979 TOPS (15.2%)"
    assert "library path" in found.cause
    assert "column-major" in found.remedy


@pytest.mark.parametrize(
    "result",
    [
        rate("bf16", 100.0, valid=False, invalid_reason="shared: python (PID 1) uses GPU 0"),
        rate("bf16", 100.0, emulated=True),
        rate("fp64", 1.0),  # no published figure
        rate("fp16_acc16", 100.0),
        rate("bf16", None),
    ],
)
def test_no_verdict(result: events.RateMeasured) -> None:
    assert codes(machine(h100(result))) == []


def test_no_verdict_on_rates_of_an_earlier_session() -> None:
    state = machine(h100())
    state.remember(rate("bf16", 100.0))
    assert codes(state) == []


def test_no_verdict_on_a_part_of_a_gpu() -> None:
    assert codes(machine(gpu(mig=True), samples(), rate("bf16", 100.0))) == []


def test_no_verdict_without_a_ceiling() -> None:
    state = machine(gpu(0, FUTURE_CARD), samples(), rate("bf16", 1756.6))
    assert codes(state) == ["ceiling-unknown"]
    assert expectation(state.devices["GPU-0"], "bf16") is None


def test_no_verdict_on_a_laptop_board_whose_clock_the_maker_decides() -> None:
    held = rate("bf16", 20.0, held_clock_mhz=2175.0)
    limit = {"power_limit_watts": 105.0}
    assert codes(machine(gpu(0, LAPTOP_4070), samples(**limit), held)) == []


def eight(precision: str, rates: list[float], board: dict[str, object] = H100) -> object:
    return machine(
        *(
            [*gpu(index, board), *samples(index), rate(precision, tera, index)]
            for index, tera in enumerate(rates)
        )
    )


def test_one_gpu_at_a_third_of_its_equals_is_singled_out() -> None:
    # DCGM issue 122: one of 8 makes 511.70 where 1480.77 GFLOPS are the threshold: 34.6 %.
    found = only(eight("fp64", [1.4808] * 5 + [0.5117] + [1.4808] * 2))
    assert (found.severity, found.device, found.code) == ("fail", "GPU-5", "rate-below-peers")
    assert found.title.startswith("GPU 5  FP64 0.512 of 66.9 TFLOPS")
    assert "GPU-5" in found.evidence
    assert "median 1.48 TFLOPS" in found.evidence[0]


def test_peers_count_also_where_no_ceiling_is_known() -> None:
    state = eight("bf16", [100, 100, 99, 101, 100, 78, 100, 100], FUTURE_CARD)
    found = [one for one in diagnose(state, NOW) if one.code == "rate-below-peers"]
    assert [one.title for one in found] == ["GPU 5  BF16 78.0 TFLOPS, 23% below its equals"]
    # its clock, power and temperature stand beside it
    assert "in the burst: 640 W, 62 C" in found[0].evidence


def test_spread_up_to_a_tenth_is_no_finding() -> None:
    assert codes(eight("fp64", [50, 45.1, 48, 49])) == []
    assert codes(eight("fp64", [50, 44.9, 48, 49])) == ["rate-below-peers"]


def test_with_two_gpus_the_slow_one_is_found() -> None:
    # A median of two would stand in the middle and excuse the slow one.
    assert [one.device for one in diagnose(eight("fp64", [50, 40]), NOW)] == ["GPU-1"]


def test_different_boards_are_no_peers() -> None:
    a100 = [*gpu(1, A100), *samples(1, power_limit_watts=400.0), rate("fp64", 18.0, 1)]
    h100s = [*gpu(0), *samples(0), rate("fp64", 55.0, 0)]
    assert codes(machine(h100s, a100)) == []


def test_an_invalid_rate_is_no_reference_for_others() -> None:
    fast = [*gpu(1), *samples(1), rate("fp64", 90.0, 1, valid=False, invalid_reason="x")]
    assert codes(machine(gpu(0), samples(0), rate("fp64", 50.0, 0), fast)) == []


def test_several_low_precisions_are_one_finding() -> None:
    found = only(machine(h100(rate("fp8", 500.0), rate("bf16", 250.0), rate("tf32", 90.0))))
    assert found.title.startswith("GPU 0  BF16")
    assert "low as well: FP8 25.3%, TF32 18.2%" in found.evidence


def test_boosting_above_rated_is_explained_and_no_error() -> None:
    # RTX 3090: 76.3 of 71.2; at 1905 MHz the ceiling is 82 x 512 x 1905e6 = 80.0: 95.4 %.
    boosting = {"power_limit_watts": 350.0}
    fast = rate("bf16", 76.3, held_clock_mhz=1905.0)
    found = only(machine(gpu(0, RTX_3090), samples(**boosting), fast))
    assert (found.severity, found.code) == ("info", "rate-above-rated")
    assert found.title == "GPU 0  BF16 76.3 of 71.2 TFLOPS (107.2%)"
    assert (
        found.cause == "boosts to 1905 MHz, rated 1695 MHz: 95.4% of the 80.0 TFLOPS at this clock"
    )
    state = machine(gpu(0, RTX_3090), samples(**boosting), fast)
    assert device_word(state.devices["GPU-0"], (found,)) == "ok"


def test_above_the_ceiling_even_at_held_clock_is_a_doubt() -> None:
    # RTX 5090 MXFP8 4096^3 in 210 us = 654.5 TFLOPS, against 419 for FP8 with FP32 accumulate.
    tera = 2 * 4096**3 / 210e-6 / 1e12
    limit = {"power_limit_watts": 575.0}
    state = machine(gpu(0, RTX_5090), samples(**limit), rate("fp8", tera, held_clock_mhz=2407.0))
    found = only(state)
    assert (found.severity, found.code) == ("info", "ceiling-doubtful")
    assert found.title == "GPU 0  FP8 654 of 419 TFLOPS (156.2%)"
    assert found.cause.startswith("ceiling or formula is in doubt: 156.2%")


def test_over_100_percent_without_a_clock_is_a_doubt_too() -> None:
    # nanoGPT on an H100 divided by the A100's 312: 324.5 TFLOPS shown as 104 %.
    fast = rate("fp16", 324.5, held_clock_mhz=None)
    found = only(machine(gpu(0, A100), samples(power_limit_watts=400.0), fast))
    assert found.code == "ceiling-doubtful"
    assert "no clock was measured" in found.cause
    assert "104.0%" in found.title


def test_a_wrong_result_is_the_worst_finding_of_all() -> None:
    wrong = rate("fp16", 700.0, correct=False, valid=False, relative_error=0.31, error_limit=2e-3)
    found = diagnose(machine(h100(wrong, clock_event_mask=0x40)), NOW)
    assert [one.code for one in found] == ["wrong-result", "thermal-slowdown"]
    assert (found[0].word, found[0].severity) == ("FAIL", "fail")
    assert found[0].title == "GPU 0  FP16 results are wrong"
    assert found[0].remedy.startswith("Stop using this board")
    assert found[0].evidence[0] == "FP16 4096x4096x4096: relative error 3.1e-01, limit 2e-03"


def test_corruption_that_comes_and_goes_stays_a_failure() -> None:
    wrong = rate("fp16", 700.0, correct=False, valid=False, relative_error=None)
    found = only(machine(h100(wrong, rate("fp16", 720.0))))
    assert found.cause.endswith("it comes and goes")
    assert "not finite" in found.evidence[0]


def test_wrong_results_of_a_cpu_get_no_remedy_for_a_board() -> None:
    wrong = events.RateMeasured(
        **header(NOW), device="cpu", precision="fp32", rate_ops_per_second=1e11, correct=False
    )
    found = only(machine(cpu(), wrong))
    assert "board" not in found.remedy
    assert found.command == ""


def test_shared_device_names_who_and_offers_b() -> None:
    found = only(machine(h100(), processes(TRAINING)))
    assert (found.word, found.severity) == ("SHARED", "info")
    assert found.title == "GPU 0  used by python train.py (PID 4711)"
    assert found.cause == "benchmarks are not started beside other work"
    assert "b" in found.remedy.split()


def test_percentages_are_finite() -> None:
    assert all(math.isfinite(default.enough) for default in table().default)

"""Precision advice, board by board: what is recommended, and above all what must not be."""

from __future__ import annotations

import json

import machines
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import A100, FUTURE_CARD, H100, RTX_3090, gpu, header, machine, rate, status

from topsmon import ceilings, events
from topsmon.ceilings.cpu_facts import Core, CpuFacts
from topsmon.device_state import DeviceState
from topsmon.diagnosis.advice import Advice, advise
from topsmon.report import advice as report
from topsmon.report.columns import cells
from topsmon.state import State

T4 = {
    "name": "Tesla T4",
    "pci_device_id": "1EB8",
    "pci_subsystem_id": None,
    "compute_capability": "7.5",
    "sm_count": 40,
    "memory_total_bytes": 15 * 2**30,
    "sm_clock_max_mhz": 1590,
}
V100 = {
    **T4,
    "name": "Tesla V100-SXM2-16GB",
    "pci_device_id": "1DB1",
    "compute_capability": "7.0",
    "sm_count": 80,
    "memory_total_bytes": 16 * 2**30,
    "sm_clock_max_mhz": 1530,
}
RTX_4090 = {
    **RTX_3090,
    "name": "NVIDIA GeForce RTX 4090",
    "pci_device_id": "2684",
    "compute_capability": "8.9",
    "sm_count": 128,
    "sm_clock_max_mhz": 3105,
}
GTX_1080_TI = {
    **RTX_3090,
    "name": "NVIDIA GeForce GTX 1080 Ti",
    "pci_device_id": "1B06",
    "compute_capability": "6.1",
    "sm_count": 28,
    "memory_total_bytes": 11 * 2**30,
    "sm_clock_max_mhz": 1911,
}
GTX_1660 = {
    **T4,
    "name": "NVIDIA GeForce GTX 1660",
    "pci_device_id": "2184",
    "sm_count": 22,
    "memory_total_bytes": 6 * 2**30,
}

# TFLOPS and TOPS of published runs (torch-performance-test-data, ml-engineering, pytorch #187094).
RATES_3090 = {"fp32": 24.6, "tf32": 33.0, "fp16": 75.7, "bf16": 76.5, "fp16_acc16": 130.0}
RATES_A100 = {"fp32": 19.18, "tf32": 130.0, "fp16": 258.7, "bf16": 264.5}
RATES_H100 = {"fp32": 51.9, "tf32": 402.2, "fp16": 760.0, "bf16": 797.5, "fp8": 1402.6}
ERRORS = {
    "error_fp32_ratio": 2.5e-7,
    "error_fp16_ratio": 3.6e-4,
    "error_bf16_ratio": 2.9e-3,
    "error_int8_ratio": 1.4e-2,
    "error_int8_per_row_ratio": 1.1e-2,
    "error_int8_outliers_ratio": 3.6e-2,
}


def probe(name, *, device="GPU-0", **values) -> events.ProbeResult:
    fields = {key: values.pop(key) for key in ("valid", "correct", "labels") if key in values}
    return events.ProbeResult(**header(95.0), device=device, probe=name, values=values, **fields)


def board(described, rates=(), *more) -> DeviceState:
    measured = [rate(key, tera) for key, tera in dict(rates).items()]
    state = machine(gpu(0, described), measured, *more)
    return state.devices["GPU-0"]


def processor(*flags, model=0x01, family=0x19, rates=(), more=()) -> DeviceState:
    """A CPU of two cores at 3 GHz; Zen 3 unless told otherwise. Rates in GFLOPS."""
    facts = CpuFacts(
        system="Linux",
        machine="x86_64",
        name="AMD EPYC",
        vendor="AuthenticAMD",
        family=family,
        model=model,
        flags=frozenset(flags),
        cores=(Core(model, max_mhz=3000.0),) * 2,
        logical_cpus=2,
    )
    device = machines.cpu()
    measured = [
        rate(key, value / 1e3, device="cpu", emulated=emulated) for key, value, emulated in rates
    ]
    state = machine(device, ceilings.for_cpu(device, facts), measured, *more)
    return state.devices["cpu"]


AVX2 = ("avx", "avx2", "fma")
AVX512_BF16 = (*AVX2, "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni")
RATES_AVX2 = (
    ("fp32", 118.8, False),
    ("bf16", 4.7, True),
    ("fp16", 6.2, True),
    ("int8", 1.4, True),
)


def by_workload(device) -> dict[str, Advice]:
    advice = {one.workload: one for one in advise(device)}
    assert list(advice) == [
        "vision training",
        "language training",
        "language inference",
        "deployment",
    ]
    return advice


def chosen(device) -> tuple[str, ...]:
    return tuple(one.precision for one in by_workload(device).values())


def option(options, label) -> str:
    """The one reason given for this."""
    (found,) = [one.reason for one in options if one.label == label]
    return found


def labels(options) -> list[str]:
    return [one.label for one in options]


# The seven boards and two CPUs.


def test_rtx_3090():
    device = board(RTX_3090, {**RATES_3090, "int8": 210.0}, probe("quantisation", **ERRORS))
    assert chosen(device) == ("fp16", "bf16", "bf16", "int8")
    advice = by_workload(device)
    for one in advice.values():
        assert "TF32" not in labels(one.alternatives)
    # Both are rated 35.6 TFLOPS; that TF32 measures faster is the FP32 kernels' doing.
    reason = option(advice["language training"].avoid, "TF32")
    assert "35.6 TFLOPS on this board, the same as FP32" in reason
    assert "FP32 kernels reach less of it" in reason
    assert "GradScaler" in advice["vision training"].how
    assert "no GradScaler" in advice["language training"].how
    assert "INT8 210 TOPS, 2.8x FP16 (75.7 TFLOPS): measured" in advice["deployment"].evidence
    assert "no FP8 on sm_86" in option(advice["deployment"].avoid, "FP8")
    assert "1.7x FP16" in option(advice["deployment"].alternatives, "FP16 accumulation")
    assert "overflow" in option(advice["vision training"].avoid, "FP16 accumulation")


def test_rtx_4090_unmeasured_is_advised_by_its_ratings():
    advice = by_workload(board(RTX_4090))
    assert chosen(board(RTX_4090)) == ("fp16", "bf16", "bf16", "fp16")
    assert "TF32" in labels(advice["vision training"].avoid)
    assert advice["language training"].evidence[0] == (
        "BF16 165 TFLOPS, 2.0x FP32 (82.6 TFLOPS): rated, not measured"
    )
    # 8 bits are never chosen on a rating alone.
    for eight in ("FP8", "INT8"):
        assert "measure before you rely on it" in option(advice["deployment"].alternatives, eight)


def test_a100():
    advice = by_workload(board(A100, RATES_A100))
    assert chosen(board(A100, RATES_A100)) == ("fp16", "bf16", "bf16", "fp16")
    assert "6.8x FP32" in option(advice["vision training"].alternatives, "TF32")
    assert "no FP8 on sm_80" in option(advice["deployment"].avoid, "FP8")
    # FP16 accumulation gains nothing on it, and nobody is tempted.
    assert "FP16 accumulation" not in labels(advice["vision training"].avoid)


def test_int8_behind_a_slow_library_path():
    # triton #634: 38400x4096x1024 in 4.148 ms is 77.7 TOPS, FP16 in 1.457 ms 221.1 TFLOPS.
    work = 2 * 38400 * 4096 * 1024
    rates = {"fp32": 19.18, "bf16": 220.0, "fp16": work / 1.457e-3 / 1e12}
    device = board(A100, {**rates, "int8": work / 4.148e-3 / 1e12})
    advice = by_workload(device)["deployment"]
    assert advice.precision == "fp16"
    reason = option(advice.avoid, "INT8")
    assert reason == (
        "slower here by its library path: 77.7 TOPS, 0.35x FP16 (221 TFLOPS): measured; "
        "rated 624 TOPS"
    )


def test_h100():
    device = board(H100, {**RATES_H100, "int8": 900.0}, probe("quantisation", **ERRORS))
    assert chosen(device) == ("fp16", "bf16", "bf16", "fp8")
    advice = by_workload(device)
    assert "1.8x BF16" in option(advice["language training"].alternatives, "FP8")
    assert labels(advice["deployment"].alternatives)[0] == "FP16"
    # INT8 gains 18 %: under the 20 % that its error must earn.
    assert "gains too little for its error" in option(advice["deployment"].avoid, "INT8")


def test_t4():
    emulated = rate("bf16", 2.3, emulated=True)
    device = board(T4, {"fp32": 4.3, "fp16": 42.3}, emulated)
    assert chosen(device) == ("fp16",) * 4
    advice = by_workload(device)
    for one in advice.values():
        assert "emulated: no native BF16 on sm_75; measured 2.30 TFLOPS" in option(
            one.avoid, "BF16"
        )
        assert "TF32" not in labels(one.alternatives)
    for training in ("vision training", "language training"):
        assert 'torch.amp.GradScaler("cuda")' in advice[training].how


def test_v100():
    device = board(V100, {"fp32": 14.06, "fp16": 94.8}, rate("bf16", 10.3, emulated=True))
    assert chosen(device) == ("fp16",) * 4
    advice = by_workload(device)["deployment"]
    assert "no INT8 Tensor Core type on sm_70" in option(advice.avoid, "INT8")
    assert "no FP8 on sm_70" in option(advice.avoid, "FP8")


def test_volta_and_turing_need_no_measurement_to_be_told_fp16():
    for described in (T4, V100):
        assert chosen(board(described)) == ("fp16",) * 4


def test_a_board_whose_fp16_gains_nothing():
    # sm_61: 11.3 TFLOPS in FP32 and through FP16 storage alike; half the bytes still help decoding.
    device = board(GTX_1080_TI)
    assert chosen(device) == ("fp32", "fp32", "fp16", "fp32")
    advice = by_workload(device)
    assert "not worth its rounding" in option(advice["vision training"].avoid, "FP16")
    assert "BF16" in labels(advice["language training"].avoid)


def test_a_board_without_tensor_cores_waits_for_a_measurement():
    # A vector rate of FP16 says nothing of what the library's products do.
    assert advise(board(GTX_1660)) == ()
    measured = board(GTX_1660, {"fp32": 4.5, "fp16": 0.5})
    assert chosen(measured) == ("fp32",) * 4


def test_cpu_with_avx2():
    device = processor(*AVX2, rates=RATES_AVX2)
    assert chosen(device) == ("fp32",) * 4
    advice = by_workload(device)
    for one in advice.values():
        assert "no native BF16 on this CPU (AVX2)" in option(one.avoid, "BF16")
        assert "no native FP16 on this CPU (AVX2)" in option(one.avoid, "FP16")
        assert "TF32" not in labels((*one.alternatives, *one.avoid))
    assert "measured 1.40 GOPS" in option(advice["deployment"].avoid, "INT8")
    assert advice["vision training"].how == "no autocast, no GradScaler"
    # Weights in INT8 need no INT8 arithmetic.
    assert "at most 4.0x" in option(advice["language inference"].alternatives, "INT8 weights")


def test_cpu_with_avx512_bf16():
    rates = (("fp32", 215.0, False), ("bf16", 940.0, False), ("fp16", 46.0, True))
    device = processor(*AVX512_BF16, family=0x1A, model=0x02, rates=rates)
    assert chosen(device) == ("bf16",) * 4
    advice = by_workload(device)
    assert advice["language training"].how == (
        'torch.autocast("cpu", dtype=torch.bfloat16), no GradScaler'
    )
    assert advice["language training"].evidence == (
        "BF16 940 GFLOPS, 4.4x FP32 (215 GFLOPS): measured",
    )
    assert "no native FP16" in option(advice["vision training"].avoid, "FP16")


def test_a_cpu_s_int8_is_taken_when_it_was_measured_to_gain():
    rates = (("fp32", 215.0, False), ("bf16", 940.0, False), ("int8", 2300.0, False))
    device = processor(*AVX512_BF16, family=0x1A, model=0x02, rates=rates)
    advice = by_workload(device)["deployment"]
    assert advice.precision == "int8"
    assert "TensorRT" not in advice.how


# What the numbers decide.


def test_vision_takes_the_clearly_faster_half_type():
    rates = {"fp32": 19.0, "fp16": 200.0, "bf16": 209.0}
    assert by_workload(board(A100, rates))["vision training"].precision == "fp16"
    rates["bf16"] = 211.0
    assert by_workload(board(A100, rates))["vision training"].precision == "bf16"


def test_channels_last_is_advised_where_it_was_faster():
    faster = board(A100, RATES_A100, probe("layout", channels_last_speedup_ratio=1.6))
    advice = by_workload(faster)["vision training"]
    assert "torch.channels_last" in advice.how
    assert "channels_last makes a convolution 1.6x as fast: measured" in advice.evidence
    slower = board(A100, RATES_A100, probe("layout", channels_last_speedup_ratio=0.8))
    advice = by_workload(slower)["vision training"]
    assert "channels_last" not in advice.how
    assert "channels_last is 0.80x as fast here: stay with contiguous" in advice.evidence
    doubtful = probe("layout", channels_last_speedup_ratio=1.6, valid=False)
    assert (
        "channels_last" not in by_workload(board(A100, RATES_A100, doubtful))["vision training"].how
    )


def test_decoding_by_bytes():
    device = board(
        A100,
        RATES_A100,
        probe("memory", read_bytes_per_second=1.7e12),
        probe("quantisation", **ERRORS),
    )
    advice = by_workload(device)["language inference"]
    # 1.7e12 / 14e9 bytes a token; 264.5e12 / 1.7e12 operations a byte.
    bytes_line, operations_line = advice.evidence
    assert bytes_line.startswith("1700 GB/s of memory (measured): 7 billion weights, 14 GB in BF16")
    assert bytes_line.endswith("at most 121 tokens/s at batch 1")
    assert operations_line.startswith("operations a byte of weights: 1 at batch 1;")
    assert operations_line.endswith("in BF16 would be the limit from 156 on")
    reason = option(advice.alternatives, "INT8 weights")
    assert "at most 2.0x the tokens/s" in reason
    assert "relative error of a product 1.1e-02, 3.6e-02 with outlier features" in reason


def test_measured_and_rated_are_never_mixed():
    # Only BF16 was measured: against FP32's rating that would be 4.1x, honest ratings give 2.0x.
    device = board(RTX_4090, {"bf16": 340.0})
    evidence = by_workload(device)["language training"].evidence
    assert evidence[0] == "BF16 165 TFLOPS, 2.0x FP32 (82.6 TFLOPS): rated, not measured"


def test_the_probe_stands_in_for_rates():
    speeds = {"speedup_fp16_ratio": 3.0, "speedup_bf16_ratio": 2.9, "speedup_int8_ratio": 6.3}
    device = board(A100, {}, probe("quantisation", **speeds))
    advice = by_workload(device)
    assert "FP16 3.0x FP32: measured, same matrices" in advice["vision training"].evidence
    assert advice["deployment"].precision == "int8"
    emulated = probe("quantisation", **speeds, labels={"emulated_int8": "no INT8"})
    assert by_workload(board(A100, {}, emulated))["deployment"].precision == "fp16"
    contended = probe("quantisation", **speeds, valid=False)
    assert by_workload(board(A100, {}, contended))["deployment"].precision == "fp16"


def test_errors_count_even_when_times_do_not():
    contended = probe("quantisation", **ERRORS, valid=False)
    assert "3.6e-04" in str(by_workload(board(A100, RATES_A100, contended))["vision training"])
    wrong = probe("quantisation", **ERRORS, correct=False)
    assert "3.6e-04" not in str(by_workload(board(A100, RATES_A100, wrong)))


def test_a_precision_that_computes_wrongly_is_never_advised():
    wrong = rate("bf16", 264.5, correct=False, relative_error=0.5, valid=False)
    device = board(A100, {"fp32": 19.0, "fp16": 258.7}, wrong)
    assert chosen(device) == ("fp16",) * 4
    reason = option(by_workload(device)["language training"].avoid, "BF16")
    assert reason == "gave a wrong result here (relative error 5.0e-01)"


def test_disturbed_rates_do_not_count():
    device = board(A100, {"fp32": 19.0, "fp16": 258.7}, rate("int8", 500.0, valid=False))
    assert by_workload(device)["deployment"].precision == "fp16"


def test_what_the_library_refuses_is_passed_on():
    refusal = events.ProbeUnsupported(
        **header(95.0), device="GPU-0", precision="int8", reason="_int_mm needs torch 2.2"
    )
    advice = by_workload(board(A100, RATES_A100, refusal))["deployment"]
    assert option(advice.avoid, "INT8") == "_int_mm needs torch 2.2"


@pytest.mark.parametrize(("speed_up", "offered"), [(1.5, True), (1.02, False)])
def test_structured_sparsity_where_it_was_measured(speed_up, offered):
    advice = by_workload(board(A100, RATES_A100, probe("sparsity", speedup_ratio=speed_up)))
    one = advice["deployment"]
    assert ("2:4 sparse FP16" in labels(one.alternatives)) is offered
    assert ("2:4 sparse FP16" in labels(one.avoid)) is not offered


def test_unknown_boards_wait_for_measurements():
    assert advise(board(FUTURE_CARD)) == ()
    assert advise(board(FUTURE_CARD, {"fp32": 50.0, "bf16": 900.0})) == ()
    measured = board(FUTURE_CARD, {"fp32": 50.0, "bf16": 900.0, "fp16": 880.0})
    assert chosen(measured) == ("fp16", "bf16", "bf16", "fp16")


def test_nothing_is_advised_for_a_lost_device():
    lost = status("lost", 90.0, 90.0)
    assert advise(board(A100, RATES_A100, lost)) == ()


@given(
    rates=st.dictionaries(
        st.sampled_from(["fp32", "tf32", "fp16", "fp16_acc16", "bf16", "fp8", "int8", "fp4"]),
        st.floats(0.01, 5000.0),
    ),
    described=st.sampled_from([RTX_3090, RTX_4090, A100, H100, T4, V100, GTX_1080_TI]),
)
def test_advice_never_contradicts_itself(rates, described):
    for one in advise(board(described, rates)):
        assert one.label not in labels((*one.alternatives, *one.avoid))
        assert not set(labels(one.alternatives)) & set(labels(one.avoid))
        assert len(set(labels(one.avoid))) == len(one.avoid)
        cc = float(described["compute_capability"])
        if cc < 8.0:
            assert one.precision not in ("bf16", "tf32", "fp8", "fp4")
        if described in (RTX_3090, RTX_4090):
            assert "TF32" not in labels(one.alternatives)
        if one.precision in ("fp8", "int8"):
            assert one.precision in rates
            assert "training" not in one.workload


# As text.


def test_the_text_fits_80_columns_and_says_it_all():
    device = board(RTX_3090, {**RATES_3090, "int8": 210.0}, probe("quantisation", **ERRORS))
    advice = advise(device)
    lines = report.lines(device, advice)
    assert max(map(cells, lines)) <= 80
    assert all(line.isascii() for line in lines)
    assert lines[0] == "GPU 0  NVIDIA GeForce RTX 3090: precision for each kind of work"
    joined = " ".join(" ".join(lines).split())
    for one in advice:
        assert f"{one.workload}: {one.label}" in joined
        for text in (one.reason, one.how, *one.evidence):
            assert text in joined
        for each in (*one.alternatives, *one.avoid):
            assert f"{each.label}: {each.reason}" in joined


def test_no_advice_says_what_is_missing():
    lines = report.lines(board(FUTURE_CARD), ())
    assert " ".join(" ".join(lines).split()) == (
        "GPU 0 NVIDIA FutureCard X1: no precision advice yet: FP32, BF16 and FP16 must be "
        "measured here, or rated"
    )


def test_a_name_cannot_move_the_cursor():
    hostile = board({**FUTURE_CARD, "name": "GPU\x1b[2J"})
    assert "\x1b" not in "".join(report.lines(hostile, ()))


def test_advice_is_json():
    encoded = msgspec.json.encode(advise(board(A100, RATES_A100)))
    first = json.loads(encoded)[0]
    assert first["workload"] == "vision training"
    assert {"precision", "reason", "evidence", "alternatives", "avoid", "how"} <= set(first)


def test_a_state_without_devices_is_nobody_s_trouble():
    assert [advise(device) for device in State().ordered()] == []

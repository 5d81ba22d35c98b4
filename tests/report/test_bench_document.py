"""What a benchmark's document says: ratios, speed-ups, expectations, energy, what is missing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench_runs import (
    A100,
    CUBE,
    H100,
    LONG,
    RTX_3090,
    RTX_5090,
    SMALL,
    UNKNOWN,
    WALL,
    cpu,
    gpu,
    probe,
    rate,
    refused,
    run,
    state,
)

from topsmon import events
from topsmon.report import bench
from topsmon.report.bench import model

POWER_CAP = 0x4
NEWER = (
    b'{"document": "topsmon bench", "schema_version": 2, "topsmon_version": "9.0", '
    b'"time_unix_seconds": 1, "devices": []}'
)


def device_of(*groups, key="GPU-0", **options) -> model.BenchDevice:
    (found,) = bench.document(state(*groups), (key,), wall=WALL, **options).devices
    return found


def result_of(precision: str, *groups) -> model.PrecisionResult:
    return next(one for one in device_of(*groups).precisions if one.precision == precision)


# Rates --------------------------------------------------------------------------------------------


def test_ratio_to_the_rated_ceiling_of_an_h100_in_bf16() -> None:
    # stas00/ml-engineering: 794.5 TFLOPS, 80.3 % of 989
    result = result_of("bf16", gpu(H100), rate("bf16", 794.5, shape=LONG))
    assert result.ratio == pytest.approx(0.803, abs=0.0005)
    assert result.ceiling_ops_per_second == pytest.approx(989.4e12, rel=1e-3)
    assert result.ceiling_key == "bf16"
    assert result.ceiling_source
    assert (result.best.shape, result.unit) == (LONG, "TFLOPS")


def test_ratio_to_the_ceiling_at_the_clock_that_was_held() -> None:
    # 132 SMs x 4096 operations a clock x 1.755 GHz = 948.9 TFLOPS
    result = result_of("bf16", gpu(H100), rate("bf16", 794.5, held_clock_mhz=1755.0))
    assert result.ceiling_at_held_clock_ops_per_second == pytest.approx(948.9e12, rel=1e-4)
    assert result.ratio_at_held_clock == pytest.approx(794.5 / 948.9, rel=1e-4)


def test_ratios_are_never_clamped_and_say_why_they_exceed_one() -> None:
    # zzc0721: RTX 3090 FP16 75.5 TFLOPS of 71.2: the board boosts above 1695 MHz
    result = result_of("fp16", gpu(RTX_3090), rate("fp16", 75.5, held_clock_mhz=1905.0))
    assert result.ratio == pytest.approx(1.06, abs=0.005)
    assert result.ratio_at_held_clock < 1
    assert any("above the rated ceiling" in text and "1905" in text for text in result.remarks)


def test_more_than_the_held_clock_allows_is_no_pass() -> None:
    # MXFP8 of 654.5 TFLOPS on an RTX 5090, whose FP8 with FP32 accumulation is 419
    result = result_of("fp8", gpu(RTX_5090), rate("fp8", 654.5, held_clock_mhz=2407.0))
    assert result.ratio == pytest.approx(1.562, abs=0.002)
    assert any("another path ran" in text for text in result.remarks)


def test_quartiles_as_a_share_of_the_median() -> None:
    changes = {"rate_low_ops_per_second": 95e12, "rate_high_ops_per_second": 103e12}
    assert result_of("bf16", gpu(H100), rate("bf16", 100.0, **changes)).iqr_ratio == 0.08


def test_speed_up_over_fp32_measured_and_rated() -> None:
    # RTX 3090, data sheet: FP16 with FP16 accumulation 142.3, FP32 35.6 TFLOPS: 4 times
    rates = [rate("fp32", 24.5), rate("fp16", 75.5), rate("fp16_acc16", 110.0), rate("int8", 98.0)]
    found = {one.precision: one for one in device_of(gpu(RTX_3090), rates).precisions}
    measured = {key: one.speedup_over_fp32_ratio for key, one in found.items()}
    rated = {key: one.rated_speedup_over_fp32_ratio for key, one in found.items()}
    assert measured["fp32"] == 1.0
    assert measured["fp16"] == pytest.approx(75.5 / 24.5)
    assert measured["int8"] == pytest.approx(4.0)
    assert rated["fp16"] == pytest.approx(2.0, abs=0.01)
    assert rated["fp16_acc16"] == pytest.approx(4.0, abs=0.01)
    assert rated["int8"] == pytest.approx(8.0, abs=0.01)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([], "not measured"),
        ([rate("fp32", 24.5, valid=False, invalid_reason="shared")], "not valid"),
        ([rate("fp32", 24.5, correct=False)], "not valid"),
    ],
)
def test_no_speed_up_over_a_rate_that_cannot_be_trusted(more, reason: str) -> None:
    result = result_of("fp16", gpu(RTX_3090), rate("fp16", 75.5), more)
    assert result.speedup_over_fp32_ratio is None
    assert reason in result.unavailable["speedup_over_fp32_ratio"]


def test_all_shapes_are_kept_the_best_is_shown() -> None:
    rates = [
        rate("bf16", 735, shape=CUBE),
        rate("bf16", 790, shape=LONG),
        rate("bf16", 690, shape=SMALL),
    ]
    result = result_of("bf16", gpu(H100), rates)
    assert result.best.shape == LONG
    assert [one.shape for one in result.bursts] == [LONG, CUBE, SMALL]


def test_a_wrong_result_is_no_rate_even_if_a_later_one_is_right() -> None:
    wrong = rate("bf16", 900.0, correct=False, valid=False, relative_error=0.3, error_limit=1e-2)
    result = result_of("bf16", gpu(H100), wrong, rate("bf16", 790.0))
    assert result.best.correct is False
    assert result.ratio is None
    assert result.unavailable["ratio"] == "the result is wrong"
    assert "WRONG RESULT" in result.remarks[0]
    assert "3.0e-01, limit 1e-02" in result.remarks[0]
    assert not result.trusted


def test_an_invalid_rate_keeps_its_number_and_its_reason() -> None:
    busy = rate("bf16", 300.0, valid=False, invalid_reason="shared: python train.py (PID 12)")
    result = result_of("bf16", gpu(H100), busy)
    assert result.best.rate_ops_per_second == 300e12
    assert "not valid: shared: python train.py (PID 12)" in result.remarks
    assert not any("expected" in text for text in result.remarks)


def test_an_earlier_session_is_named() -> None:
    found = state(gpu(H100))
    found.remember(rate("bf16", 700.0))
    (device,) = bench.document(found, ("GPU-0",)).devices
    (result,) = device.precisions
    assert result.remembered
    assert not result.trusted
    assert any("earlier session" in text for text in result.remarks)


def test_no_ceiling_on_an_unknown_board_or_for_a_precision() -> None:
    unknown = device_of(gpu(UNKNOWN), rate("bf16", 700.0))
    assert unknown.precisions[0].ratio is None
    assert unknown.no_ceiling
    processor = device_of(cpu(), rate("bf16", 0.05, device="cpu"), key="cpu")
    assert processor.precisions[0].unavailable["ratio"] == "AVX2 has no BF16 products"
    assert processor.precisions[0].ratio_at_held_clock is None


# Expectation and causes ---------------------------------------------------------------------------


def test_expected_range_of_a_board_with_published_figures() -> None:
    result = result_of("bf16", gpu(H100), rate("bf16", 790.0))
    # 92 % of the lowest of three: cutlass issue 1662, 764.9 TFLOPS
    assert result.expected_ops_per_second == pytest.approx(0.92 * 764.9e12)
    assert "cutlass" in result.expected_words
    assert not any("expected" in text for text in result.remarks)


def test_random_inputs_at_the_power_limit_blame_power_not_kernels() -> None:
    # A100 SXM of 400 W, 8192^3: 4.262 ms with random normal inputs, 82.7 % of 312 TFLOPS
    capped = rate("fp16", 2 * 8192**3 / 4.262e-3 / 1e12)
    capped = msgspec.structs.replace(capped, clock_event_mask=POWER_CAP, power_watts=399.0)
    result = result_of("fp16", gpu(A100), capped)
    assert result.ratio == pytest.approx(0.827, abs=0.001)
    assert "random normal inputs" in result.best.method
    assert "SW power cap in the burst: 399 of 400 W" in result.remarks
    assert result.best.clock_events == "SW power cap"


def test_a_low_rate_under_the_power_cap_names_the_cap() -> None:
    slow = rate("fp16", 190.0, held_clock_mhz=900.0, clock_event_mask=POWER_CAP, power_watts=399.0)
    (below,) = [text for text in result_of("fp16", gpu(A100), slow).remarks if "below" in text]
    assert "power cap of 400 W" in below
    assert "kernel" not in below


def test_int8_below_fp16_is_the_library_not_the_board() -> None:
    # triton issue 634: A100 INT8 77.7 TOPS beside FP16 221.1 TFLOPS
    rates = [rate("int8", 77.7, held_clock_mhz=1410.0), rate("fp16", 221.1)]
    result = result_of("int8", gpu(A100), rates)
    assert result.ratio == pytest.approx(0.1245, abs=0.0005)
    assert result.unit == "TOPS"
    (below,) = [text for text in result.remarks if "below" in text]
    assert "library path" in below
    assert "defect" not in below


def test_an_odd_size_gets_its_remark() -> None:
    from topsmon.probes import schedule

    odd = (4095, 4095, 4095)
    result = result_of("fp16", gpu(H100), rate("fp16", 400.0, shape=odd, note=schedule.remark(odd)))
    assert any("4095x4095x4095 has an odd size" in text for text in result.remarks)
    assert schedule.remark(CUBE) == ""


# Energy -------------------------------------------------------------------------------------------


def energy(**values) -> events.ProbeResult:
    labels = {"precision": "fp16", "source": "energy counter", "shape": "8192x8192x8192"}
    return probe("energy", values, labels=labels)


def test_operations_per_joule_of_the_burst_are_indicative() -> None:
    # 257 TFLOPS at 400 W = 642.5 GFLOPS/W
    result = result_of("fp16", gpu(A100), rate("fp16", 257.0, power_watts=400.0))
    assert result.ops_per_joule == pytest.approx(642.5e9)
    assert "indicative" in result.ops_per_joule_source


def test_the_energy_probe_outranks_the_power_of_the_burst_for_its_precision() -> None:
    rates = [rate("fp16", 257.0, power_watts=380.0), rate("bf16", 260.0, power_watts=400.0)]
    found = device_of(gpu(A100), rates, energy(ops_per_joule=642.5e9, mean_watts=400.0))
    by_key = {one.precision: one for one in found.precisions}
    assert by_key["fp16"].ops_per_joule == 642.5e9
    assert by_key["fp16"].ops_per_joule_source == "energy counter"
    assert by_key["bf16"].ops_per_joule == pytest.approx(650e9)
    assert found.energy.mean_watts == 400.0


def test_a_counter_that_disagrees_with_the_samples_is_told() -> None:
    # ml-energy/zeus issue 181: 187.443 J in 5.0045 s = 37.45 W by the counter, 65.32 W by samples
    from topsmon.report.bench import text

    note = "the energy counter says 37.5 W and the power readings 65.3 W over the same time"
    found = msgspec.structs.replace(energy(mean_watts=37.45, sampled_watts=65.32), note=note)
    document = bench.document(state(gpu(A100), rate("fp16", 257.0), found), ("GPU-0",))
    shown = " ".join(text(document, 80, False).split())
    assert note in shown
    assert "by the energy counter: 37 W" in shown


def test_without_a_power_reading_there_is_no_efficiency() -> None:
    result = result_of("fp16", gpu(A100), rate("fp16", 257.0))
    assert result.ops_per_joule is None
    assert result.unavailable["ops_per_joule"] == "no power was read"


# Probes -------------------------------------------------------------------------------------------


def test_bandwidths_with_their_ceilings() -> None:
    memory = probe(
        "memory",
        {
            "copy_bytes_per_second": 2.9e12,
            "copy_low_bytes_per_second": 2.88e12,
            "copy_high_bytes_per_second": 2.91e12,
            "copy_calls": 500.0,
            "buffer_bytes": 2.7e8,
        },
    )
    transfer = probe(
        "transfer",
        {
            "h2d_pinned_bytes_per_second": 55e9,
            "h2d_pageable_bytes_per_second": 9e9,
            "pcie_generation": 5.0,
            "pcie_width": 16.0,
        },
    )
    cache = probe("cache", {"l2_bytes_per_second": 6.1e12})
    found = device_of(gpu(H100), memory, transfer, cache)
    by_name = {one.name: one for one in found.bandwidths}
    assert set(by_name) == {"DRAM copy", "H2D pinned", "H2D pageable", "L2 cache"}
    copy = by_name["DRAM copy"]
    # 5120 bit x 2 x 2619 MHz / 8 = 3352 GB/s
    assert copy.ratio == pytest.approx(2900 / 3352, abs=0.001)
    assert copy.iqr_ratio == pytest.approx(0.03 / 2.9)
    assert copy.calls == 500
    # 32 GT/s x 16 lanes x 128/130 / 8 = 63.0 GB/s
    assert by_name["H2D pinned"].ratio == pytest.approx(55 / 63.0, abs=0.002)
    assert by_name["H2D pageable"].ratio is None
    assert by_name["L2 cache"].ratio is None
    assert found.conditions.pcie == "PCIe 5.0 x16 under load"


def test_launch_times() -> None:
    values = {
        "launch_seconds": 3.2e-6,
        "launch_low_seconds": 3.1e-6,
        "launch_high_seconds": 3.4e-6,
        "graph_launch_seconds": 1.1e-6,
        "graph_gain_ratio": 2.9,
    }
    found = device_of(gpu(H100), probe("launch", values)).latencies
    assert [(one.name, one.seconds) for one in found] == [
        ("kernel launch", 3.2e-6),
        ("graph launch", 1.1e-6),
    ]
    assert found[0].iqr_ratio == pytest.approx(0.3 / 3.2)


def test_a_missing_value_of_a_probe_has_its_reason() -> None:
    why = {"dram_bytes_per_second": "no working set belongs to it alone"}
    values = {"l2_bytes_per_second": 6e12, "dram_bytes_per_second": None}
    found = device_of(gpu(H100), probe("cache", values, unavailable=why)).bandwidths
    assert (found[1].bytes_per_second, found[1].unavailable) == (None, why["dram_bytes_per_second"])


def test_sustained_against_burst() -> None:
    values = {
        "burst_rate_ops_per_second": 760e12,
        "sustained_rate_ops_per_second": 700e12,
        "sustained_ratio": 700 / 760,
        "burst_clock_mhz": 1755.0,
        "sustained_clock_mhz": 1590.0,
    }
    found = device_of(gpu(H100), probe("sustained", values, labels={"precision": "bf16"})).sustained
    assert found.sustained_ratio == pytest.approx(0.921, abs=0.001)


# What is missing ----------------------------------------------------------------------------------


def test_what_was_not_measured_has_a_reason() -> None:
    found = device_of(
        gpu(H100),
        rate("bf16", 790.0),
        refused("fp4", "NVFP4 needs compute capability 10.0"),
        refused("sparsity", "no cuSPARSELt in this build"),
        rate("fp8", None, valid=False, invalid_reason="0.5 MiB of memory are too little"),
        probe("memory", {}, valid=False, invalid_reason="out of memory"),
        asked=("bf16", "fp8", "fp16", "memory", "launch"),
        missing={"GPU-0": "time ran out after 30 s"},
    )
    assert [one.precision for one in found.precisions] == ["bf16"]
    assert found.not_measured == {
        "fp4": "NVFP4 needs compute capability 10.0",
        "sparsity": "no cuSPARSELt in this build",
        "fp8": "0.5 MiB of memory are too little",
        "memory": "out of memory",
        "fp16": "time ran out after 30 s",
        "launch": "time ran out after 30 s",
    }


def test_a_lost_device_is_why_nothing_came() -> None:
    lost = events.DeviceStatus(
        time=WALL, monotonic=1.0, source="node", device="GPU-0", condition="lost", since=1.0
    )
    found = device_of(gpu(H100), lost, asked=("bf16",))
    assert found.not_measured == {"bf16": "the device is lost"}


def test_conditions_of_the_run() -> None:
    document = bench.document(
        state(gpu(H100), rate("bf16", 790.0, clock_event_mask=0x2)), ("GPU-0",), wall=WALL
    )
    conditions = document.devices[0].conditions
    assert (document.hostname, document.driver_version, document.cuda_version) == (
        "node17",
        "570.86",
        "12.8",
    )
    assert conditions.torch_version == "2.7.1"
    assert (conditions.power_limit_watts, conditions.power_limit_default_watts) == (700.0, 700.0)
    assert conditions.clocks_set is True
    assert conditions.temperature_celsius == 62.0


# Files --------------------------------------------------------------------------------------------


def full() -> model.BenchDocument:
    rates = [rate(key, 700.0 + at, power_watts=640.0) for at, key in enumerate(("fp32", "bf16"))]
    probes = [
        probe("memory", {"copy_bytes_per_second": 2.9e12}),
        probe("launch", {"launch_seconds": 3e-6}),
    ]
    found = state(gpu(H100), gpu(H100, 1), rates, probes, energy(ops_per_joule=1e12))
    return bench.document(found, ("GPU-0", "GPU-1"), asked=("fp32", "bf16"), wall=WALL)


def test_a_saved_benchmark_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(bench.to_json(full()))
    assert bench.load(file) == full()


def test_fields_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    content = msgspec.json.decode(bench.to_json(full()))
    content["weather"] = "fine"
    content["devices"][0]["precisions"][0]["best"]["moon_phase_ratio"] = 0.5
    file = tmp_path / "run.json"
    file.write_bytes(msgspec.json.encode(content))
    assert bench.load(file) == full()


def test_names_from_outside_cannot_break_a_file_or_a_terminal(tmp_path: Path) -> None:
    hostile = {**H100, "name": "GPU\x1b[2J\udc80"}
    document = bench.document(state(gpu(hostile), rate("bf16", 1.0)), ("GPU-0",), "sim\nulated")
    file = tmp_path / "run.json"
    file.write_bytes(bench.to_json(document))
    shown = bench.text(bench.load(file), 80, False)
    assert "\x1b" not in shown
    assert "SIMULATED (sim\N{REPLACEMENT CHARACTER}ulated)" in shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no result of topsmon bench"),
        (b"\xff\xfe", "is no result of topsmon bench"),
        (b"[" * 100_000, "is no result of topsmon bench"),
        (b'{"schema_version": 1, "devices": []}', "is no result of topsmon bench"),
        (b'{"schema": "topsmon.check/1", "devices": [], "checks": []}', "is no result"),
        (
            NEWER,
            "from topsmon 9.0, whose format 2 is newer",
        ),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        bench.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*: "):
        bench.load(tmp_path / name)


def test_json_has_null_for_what_was_not_measured() -> None:
    content = msgspec.json.decode(
        bench.to_json(bench.document(state(gpu(H100), rate("bf16", 1.0)), ("GPU-0",)))
    )
    best = content["devices"][0]["precisions"][0]["best"]
    assert best["power_watts"] is None
    assert best["held_clock_mhz"] is None
    assert content["schema_version"] == 1
    assert run().devices == ()

"""A benchmark and a comparison as people read them."""

from __future__ import annotations

import re

import msgspec
import pytest
from bench_runs import (
    A100,
    H100,
    LONG,
    SMALL,
    WALL,
    burst,
    cpu,
    device,
    gpu,
    precision,
    probe,
    rate,
    refused,
    run,
    state,
)

from topsmon.report import bench
from topsmon.report.bench import model
from topsmon.report.columns import cells

KEYS = ("fp64", "fp32", "tf32", "fp16", "fp16_acc16", "bf16", "fp8", "int8")


def rates(index: int = 0, factor: float = 1.0):
    found = []
    for key, tera in zip(KEYS, (55, 51.9, 402, 760, 765, 794, 1402, 1429), strict=True):
        for shape, share in (((8192,) * 3, 1.0), (LONG, 0.97), (SMALL, 0.94)):
            found.append(
                rate(
                    key,
                    tera * share * factor,
                    shape=shape,
                    held_clock_mhz=1755.0,
                    clock_event_mask=0x4,
                    power_watts=698.0,
                    device=f"GPU-{index}",
                )
            )
    return found


MEMORY = probe(
    "memory",
    {
        "copy_bytes_per_second": 2.9e12,
        "copy_low_bytes_per_second": 2.88e12,
        "copy_high_bytes_per_second": 2.91e12,
        "copy_calls": 500.0,
    },
)
CACHE = probe("cache", {"last_level_bytes_per_second": 6.1e12})
LAUNCH = probe(
    "launch",
    {
        "launch_seconds": 3.2e-6,
        "launch_calls": 190.0,
        "launch_low_seconds": 3.1e-6,
        "launch_high_seconds": 3.4e-6,
    },
)


def machine(factor: float = 1.0) -> model.BenchDocument:
    found = state(
        gpu(H100),
        gpu(H100, 1),
        rates(factor=factor),
        rates(1),
        MEMORY,
        CACHE,
        LAUNCH,
        refused("fp4", "NVFP4 needs compute capability 10.0, this is 9.0"),
    )
    return bench.document(found, ("GPU-0", "GPU-1"), wall=WALL)


def row(text: str, name: str) -> str:
    """The first line of a table with this name."""
    return next(line for line in text.splitlines() if re.match(rf"{name}\s\s", line))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_lines_fit(width: int, ascii_only: bool) -> None:
    texts = [
        bench.text(machine(), width, ascii_only),
        bench.text(
            bench.document(state(cpu(), rate("fp32", 0.12, device="cpu")), ("cpu",)),
            width,
            ascii_only,
        ),
        bench.comparison_text(bench.compare(machine(), machine(0.7)), width, ascii_only),
    ]
    for text in texts:
        assert max(cells(line) for line in text.splitlines()) <= width
        assert text.isascii() or not ascii_only
        assert text.endswith("\n")


def test_every_row_has_rate_spread_ratios_speed_up_and_shape() -> None:
    line = row(bench.text(machine(), 80, False), "BF16")
    # 794 of 989.4; at 1755 of 1830 MHz; 794 / 51.9 and 989.4 / 66.9
    for part in ("794 TFLOPS", "0.6%", "80.2%", "83.7%", "15.3/14.8", "8192^3"):
        assert part in line, part


def test_integer_operations_are_tops() -> None:
    assert "1429 TOPS" in row(bench.text(machine(), 80, False), "INT8")


def test_a_wide_terminal_shows_calls_clock_and_error_too() -> None:
    narrow, wide = (row(bench.text(machine(), width, False), "FP16") for width in (80, 120))
    for part in ("1755", " 200 ", "2.1e-04", "1.09 T"):
        assert part in wide, part
    assert " 200 " not in narrow


def test_all_shapes_are_printed() -> None:
    text = bench.text(machine(), 120, False)
    assert "BF16 shapes: 8192^3 794 TFLOPS, 2048x2048x13312 770 TFLOPS, 4096^3 746 TFLOPS" in text


def test_what_could_not_be_measured_has_its_reason() -> None:
    assert "N/A FP4: NVFP4 needs compute capability 10.0, this is 9.0" in bench.text(
        machine(), 80, False
    )


def test_none_is_never_zero() -> None:
    document = bench.document(state(cpu(), rate("fp32", 0.12, device="cpu", calls=3)), ("cpu",))
    text = bench.text(document, 120, False)
    assert "N/A per W: no power was read" in text
    assert "N/A held: the held clock was not read" in text
    assert not re.search(r"\b0(\.0+)?( W|%| MHz)", text)


def test_conditions_and_expectation_are_told() -> None:
    text = " ".join(bench.text(machine(), 80, False).split())
    assert "driver 570.86" in text
    assert "CUDA 12.8" in text
    assert "torch 2.7.1, power limit 700 W (default 700 W), clock up to 1980 MHz" in text
    # zzc0721: 760 TFLOPS in FP16, of which 92 %
    assert "FP16 699 TFLOPS: 92% of the lowest published figure (ZZ)" in text
    assert text.count("expected at least: BF16") == 1, "the second, equal board says it again"


def test_method_and_boost_are_told() -> None:
    text = " ".join(bench.text(machine(), 80, False).split())
    assert "random normal inputs" in text
    assert "boost" in text
    assert "SW power cap in the burst: 698 of 700 W" in text


def test_doubtful_numbers_are_marked_and_explained() -> None:
    busy = rate("bf16", 300.0, valid=False, invalid_reason="shared: python train.py (PID 12)")
    text = bench.text(bench.document(state(gpu(H100), busy), ("GPU-0",)), 80, False)
    assert "300 TFLOPS!" in row(text, "BF16")
    assert "BF16: not valid: shared: python train.py (PID 12)" in text
    assert "! marks what must not be trusted" in text
    assert "! marks" not in bench.text(machine(), 80, False)


def test_a_simulation_says_so_first() -> None:
    document = msgspec.structs.replace(machine(), simulated="h100-8")
    assert bench.text(document, 80, False).startswith("SIMULATED (h100-8)")


def test_nothing_measured_is_no_empty_table() -> None:
    assert "no device was measured" in bench.text(run(), 80, False)
    bare = bench.document(state(gpu(A100)), ("GPU-0",), asked=("bf16",))
    assert "N/A BF16: no result came" in bench.text(bare, 80, False)


# Comparison ---------------------------------------------------------------------------------------


def test_a_comparison_says_what_became_slower() -> None:
    comparison = bench.compare(machine(), machine(0.7))
    text = bench.comparison_text(comparison, 80, False)
    words = " ".join(text.split())
    line = row(text, "BF16")
    for part in ("794 TFLOPS", "556 TFLOPS", "-30.0%", "REGRESSION"):
        assert part in line, part
    assert "the clock does not explain it: 1755 MHz before, 1755 MHz now" in words
    assert "no difference" in row(text, "DRAM copy")
    assert "REGRESSION 8 slower, 10 without a difference (exit 1)" in words


def test_equal_runs_say_so() -> None:
    text = bench.comparison_text(bench.compare(machine(), machine()), 80, False)
    assert "OK  18 without a difference (exit 0)" in text
    assert "REGRESSION" not in text


def test_changed_conditions_and_missing_devices_are_told() -> None:
    one = precision("bf16", burst(700e12))
    old = run(
        device(one, conditions=model.Conditions(torch_version="2.6.0", power_limit_watts=700.0))
    )
    new = run(
        device(one, conditions=model.Conditions(torch_version="2.7.1", power_limit_watts=500.0)),
        driver_version="580.1",
    )
    text = bench.comparison_text(bench.compare(old, new), 80, False)
    assert "changed: driver 570.86 -> 580.1" in text
    assert "changed: torch 2.6.0 -> 2.7.1, power limit 700 W -> 500 W" in text
    gone = bench.comparison_text(bench.compare(old, run()), 80, False)
    assert "not in this run: GPU 0 NVIDIA H100 80GB HBM3 GPU-0" in gone
    assert "UNKNOWN  nothing could be compared (exit 3" in gone


def test_the_comparison_as_json() -> None:
    content = msgspec.json.decode(bench.comparison_json(bench.compare(machine(), machine(0.7))))
    assert content["exit_code"] == 1
    first = next(one for one in content["devices"][0]["rows"] if one["key"] == "bf16")
    assert first["verdict"] == "regression"
    assert first["change_ratio"] == pytest.approx(-0.3)

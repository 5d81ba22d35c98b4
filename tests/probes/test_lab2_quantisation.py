"""Scaling, rounding and errors of fewer bits."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lab2_boards import MIB, cpu, gpu  # noqa: E402
from lab_machine import run  # noqa: E402

from topsmon.probes.lab import quantisation  # noqa: E402
from topsmon.probes.lab.context import relative_error  # noqa: E402
from topsmon.probes.precisions import all_gemms  # noqa: E402

GEMMS = all_gemms()
TENSOR_CPU = torch.device("cpu")


def doubles(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_scales_by_hand():
    rows = doubles([1.0, -2.0], [4.0, 0.5])
    assert quantisation.scale_of(rows, 127.0, per_row=False) == 4 / 127
    assert quantisation.scale_of(rows, 127.0, per_row=True).tolist() == [[2 / 127], [4 / 127]]


def test_int8_by_hand():
    # With steps of 1: ties go to the even neighbour, and the ends are symmetric.
    rows = doubles([0.5, 1.5, -2.5, 126.6, -127.0, 300.0])
    codes = quantisation.quantised(rows, "int8", doubles([1.0]))
    assert codes.dtype == torch.int8
    assert codes.tolist() == [[0, 2, -2, 127, -127, 127]]


def test_fp8_by_hand():
    # E4M3 has steps of 1/8 from 1 to 2 and of 32 from 256 on, and ends at 448.
    rows = doubles([1.0, 1.06, 1.07, 300.0, 448.0, -448.0])
    numbers = quantisation.quantised(rows, "fp8", doubles([1.0]))
    assert numbers.to(torch.float64).tolist() == [[1.0, 1.0, 1.125, 288.0, 448.0, -448.0]]


def test_a_row_of_zeros_stays_zeros():
    rows = torch.zeros(2, 4, dtype=torch.float64)
    for key, largest in quantisation.LARGEST.items():
        scale = quantisation.scale_of(rows, largest, per_row=True)
        codes = quantisation.quantised(rows, key, scale)
        assert codes.to(torch.float64).abs().sum() == 0


@given(
    values=st.lists(st.floats(-1e30, 1e30, allow_subnormal=False), min_size=2, max_size=40),
    key=st.sampled_from(["int8", "fp8"]),
)
def test_rounding_is_never_off_by_more_than_half_a_step(values, key):
    rows = doubles(values)
    largest = quantisation.LARGEST[key]
    scale = quantisation.scale_of(rows, largest, per_row=False)
    back = quantisation.quantised(rows, key, scale).to(torch.float64) * scale
    # INT8: half a step. E4M3: three bits behind the point, and steps of 2^-9 near zero.
    half = scale / 2 if key == "int8" else torch.maximum(rows.abs() / 16, scale * 2.0**-10)
    assert bool((back - rows).abs().le(half * (1 + 1e-6)).all())


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # Two sides, each off by up to half a step of s: error sqrt(2) * s / sqrt(12) for numbers
        # around 1. A normal number has its leading bit at 1/2, 1 or 2, so s is about 2^-10 in FP16,
        # 2^-7 in BF16, 2^-3 in E4M3; INT8 has 127 steps up to the largest of 131,072, 4.4.
        ("fp16", math.sqrt(2 / 12) * 2**-10),
        ("bf16", math.sqrt(2 / 12) * 2**-7),
        ("fp8", math.sqrt(2 / 12) * 2**-3),
        ("int8", math.sqrt(2 / 12) * 4.4 / 127),
    ],
)
def test_errors_are_what_rounding_foretells(key, expected):
    inputs = quantisation.make_inputs(TENSOR_CPU)
    gemm = GEMMS[key]
    error = relative_error(quantisation.multiply(gemm, inputs), inputs.product)
    assert error == pytest.approx(expected, rel=0.35)
    assert error <= quantisation.LIMITS[key]


@pytest.mark.parametrize("key", ["int8", "fp8"])
def test_a_wrong_scale_is_a_wrong_result(key, monkeypatch):
    inputs = quantisation.make_inputs(TENSOR_CPU)
    honest = quantisation.scale_of

    def forgetful(rows, largest, *, per_row):
        scale = honest(rows, largest, per_row=per_row)
        return scale * 1.1 if rows is inputs.a else scale

    def quantise_by_itself(rows, key, scale):
        return honest_codes(rows, key, honest(rows, quantisation.LARGEST[key], per_row=False))

    gemm, honest_codes = GEMMS[key], quantisation.quantised
    monkeypatch.setattr(quantisation, "scale_of", forgetful)
    monkeypatch.setattr(quantisation, "quantised", quantise_by_itself)
    error = relative_error(quantisation.multiply(gemm, inputs), inputs.product)
    assert error > quantisation.LIMITS[key]


def test_a_scale_a_row_helps_where_rows_differ():
    sizes = torch.logspace(-3, 3, 64, dtype=torch.float64)
    a = torch.randn(64, 128, dtype=torch.float64) * sizes[:, None]
    b = torch.randn(64, 128, dtype=torch.float64)
    inputs = quantisation.Inputs(a, b, a @ b.t())
    norms = inputs.product.norm(dim=1)

    def row_error(per_row):
        got = quantisation.multiply(GEMMS["int8"], inputs, per_row=per_row)
        return float(((got - inputs.product).norm(dim=1) / norms).mean())

    # With one scale the smaller rows vanish: their whole content is the error.
    assert row_error(per_row=False) > 0.5
    assert row_error(per_row=True) < 0.03


def test_outliers_are_every_128th_feature():
    plain = quantisation.make_inputs(TENSOR_CPU)
    outliers = quantisation.make_inputs(TENSOR_CPU, outliers=True)
    spread = outliers.a.std(0)
    assert spread[::128].min() > 15
    assert spread[1:128].max() < 1.5
    assert plain.a.std(0).max() < 1.5
    for inputs in (plain, outliers):
        assert torch.equal(inputs.product, inputs.a @ inputs.b_rows.t())


def price(name, args):
    """A product takes its operations over a rate by type; FP32 makes 100 MFLOPS."""
    rates = {
        torch.float32: 1e8,
        torch.float16: 4e8,
        torch.bfloat16: 2e8,
        torch.int8: 5e7,
        torch.float8_e4m3fn: 8e8,
    }
    if name in ("mm", "_int_mm", "_scaled_mm") and args[0].dtype in rates:
        a, b = args[:2]
        return 2 * a.shape[0] * a.shape[1] * b.shape[1] / rates[a.dtype]
    return 0.0


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(quantisation, "SIZES", (64, 128))


def test_speed_ups_on_a_priced_board(small):
    fields, _ = run(quantisation, gpu(9, 0, free=80 * MIB), price)
    values = fields["values"]
    assert values["speedup_fp16_ratio"] == pytest.approx(4.0)
    assert values["speedup_bf16_ratio"] == pytest.approx(2.0)
    assert values["speedup_int8_ratio"] == pytest.approx(0.5)
    assert values["speedup_fp8_ratio"] == pytest.approx(8.0)
    assert values["speedup_fp8_per_row_ratio"] == pytest.approx(8.0)
    assert "speedup_fp32_ratio" not in values
    # FP32 takes 5 ms for 64 x 64 x 64, and FP16 could do more: both are timed at the smaller size.
    assert fields["labels"]["shape_fp16"] == "N = 64"


def test_a_board_without_the_types_says_so(small):
    fields, _ = run(quantisation, gpu(7, 5, free=80 * MIB), price)
    unavailable = fields["unavailable"]
    assert "8.9" in unavailable["speedup_fp8_ratio"]
    assert "8.9" in unavailable["error_fp8_ratio"]
    assert "8.0" in unavailable["error_tf32_ratio"]
    assert fields["labels"]["emulated_bf16"] == "no native BF16"
    assert "error_bf16_ratio" in fields["values"]
    assert not set(unavailable) & set(fields["values"])


def test_what_a_cpu_emulates_is_labelled(small):
    fields, _ = run(quantisation, cpu("avx2", free=80 * MIB), price)
    assert "AVX2" in fields["labels"]["emulated_bf16"]
    assert "AVX2" in fields["labels"]["emulated_int8"]
    assert "a CPU has none" in fields["unavailable"]["speedup_tf32_ratio"]
    native = cpu("avx512f", "avx512_bf16", "avx512_vnni", free=80 * MIB)
    fields, _ = run(quantisation, native, price)
    assert "emulated_bf16" not in fields["labels"]


def test_a_kernel_that_the_library_lacks_costs_only_its_own_values(small, monkeypatch):
    real = torch._scaled_mm

    def no_rows(a, b, *, scale_a, scale_b, **options):
        if scale_a.numel() > 1:
            raise RuntimeError("Invalid scaling configuration. row-wise scaling needs sm_90")
        return real(a, b, scale_a=scale_a, scale_b=scale_b, **options)

    monkeypatch.setattr(torch, "_scaled_mm", no_rows)
    fields, _ = run(quantisation, cpu(free=80 * MIB), price)
    assert "sm_90" in fields["unavailable"]["speedup_fp8_per_row_ratio"]
    assert "sm_90" in fields["unavailable"]["error_fp8_outliers_ratio"]
    assert math.isfinite(fields["values"]["error_fp8_ratio"])
    assert fields["correct"] is True


def test_a_kernel_that_is_wrong_is_not_correct(small, monkeypatch):
    real = torch._int_mm

    def lossy(a, b, *, out):
        real(a, b, out=out)
        out[:, ::2] = 0
        return out

    monkeypatch.setattr(torch, "_int_mm", lossy)
    fields, _ = run(quantisation, cpu(free=80 * MIB), price)
    assert fields["correct"] is False


def test_fp32_that_ran_as_tf32_is_no_base_for_speed_ups(small, monkeypatch):
    real = quantisation.multiply

    def shortened(gemm, inputs, *, per_row=False):
        result = real(gemm, inputs, per_row=per_row)
        return result * (1 + 3e-4) if gemm.key == "fp32" else result

    monkeypatch.setattr(quantisation, "multiply", shortened)
    fields, _ = run(quantisation, cpu(free=80 * MIB), price)
    assert fields["valid"] is False
    assert "NVIDIA_TF32_OVERRIDE" in fields["invalid_reason"]
    assert fields["correct"] is True

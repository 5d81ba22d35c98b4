"""Operands, calls and the check of results, with the torch that is installed."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from topsmon.probes import gemm as gemms  # noqa: E402 - torch first
from topsmon.probes.precisions import (  # noqa: E402
    FP4_MAGNITUDES,
    DeviceFacts,
    Fp32Gemm,
    all_gemms,
    fp4_codes,
)
from topsmon.probes.verdict import judge, products_of  # noqa: E402
from topsmon.units import PRECISIONS  # noqa: E402

GEMMS = all_gemms()
CPU = torch.device("cpu")
ON_CPU = DeviceFacts("cpu", "a CPU")
RUN_HERE = [key for key, gemm in GEMMS.items() if gemm.refusal(ON_CPU) is None]
SHAPE = (96, 128, 192)


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(1)


def operands(key, shape=SHAPE):
    if key == "fp4" and not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no FP4")
    return gemms.make_operands(GEMMS[key], shape, CPU)


def test_every_precision_of_the_screen_is_known():
    assert set(GEMMS) == set(PRECISIONS)


@pytest.mark.parametrize("key", GEMMS)
def test_the_right_side_is_the_transposed_view_of_a_contiguous_matrix(key):
    made = operands(key)
    rows, columns = made.b.shape
    assert made.b.stride() == (1, rows)
    assert made.b.t().is_contiguous()
    assert made.a.is_contiguous()
    assert columns == 128
    assert rows * (2 if key == "fp4" else 1) == 192


@pytest.mark.parametrize("key", sorted(set(GEMMS) - {"int8"}))
def test_floating_point_inputs_are_normal_numbers(key):
    made = operands(key, (256, 256, 256))
    for side in (made.a, made.b.t()):
        values = GEMMS[key].exact(side)
        assert torch.isfinite(values).all()
        assert values.std().item() == pytest.approx(1.0, abs=0.03)
        assert values.mean().item() == pytest.approx(0.0, abs=0.03)
        assert len(values.unique()) >= (13 if key == "fp4" else 100)


def test_integer_inputs_use_the_whole_range():
    made = operands("int8", (512, 512, 512))
    for side in (made.a, made.b):
        assert (side.min().item(), side.max().item()) == (-128, 127)
        assert len(side.unique()) == 256


def test_int8_hands_the_transposed_view_to_its_special_kernel(monkeypatch):
    seen = []
    real = torch._int_mm

    def recording(a, b, **keywords):
        seen.append((a.dtype, b.shape, b.stride(), b.t().is_contiguous()))
        return real(a, b, **keywords)

    monkeypatch.setattr(torch, "_int_mm", recording)
    made = operands("int8")
    result = GEMMS["int8"].run(made)
    assert seen == [(torch.int8, (192, 128), (1, 192), True)]
    assert result.dtype == torch.int32
    m, n, k = SHAPE
    assert m > 16
    assert n % 8 == k % 8 == 0


@pytest.mark.parametrize("key", RUN_HERE)
def test_a_right_result_passes_the_check(key):
    gemm = GEMMS[key]
    made = operands(key)
    try:
        result = gemm.run(made)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch cannot: {error}")
    checked = gemms.check(gemm, made, result)
    assert checked.correct
    # No limit is so wide that it would let a half-wrong result pass.
    assert checked.error <= gemm.error_limit <= 0.03


@pytest.mark.parametrize("key", [key for key in RUN_HERE if key != "fp8"])
def test_the_result_goes_where_it_was_wanted(key):
    made = operands(key)
    assert GEMMS[key].run(made).data_ptr() == made.out.data_ptr()


@pytest.mark.parametrize("key", ["fp64", "fp32", "bf16", "int8"])
def test_a_wrong_column_in_the_result_is_found(key):
    gemm = GEMMS[key]
    made = operands(key)
    result = gemm.run(made)
    result[:, 77] = 3
    checked = gemms.check(gemm, made, result)
    assert not checked.correct
    assert judge(key, checked)["correct"] is False


def test_not_a_number_is_wrong():
    made = operands("fp32")
    result = GEMMS["fp32"].run(made)
    result[:, 5] = math.nan
    assert not gemms.check(GEMMS["fp32"], made, result).correct


def test_a_gemm_that_is_wrong_in_every_way_alike_is_not_its_own_judge(monkeypatch):
    made = operands("fp64")
    broken = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: 2 * broken(a, b))
    result = 2 * GEMMS["fp64"].run(made)
    assert not gemms.check(GEMMS["fp64"], made, result).correct


def tf32(matrix):
    """FP32 numbers with 13 of their 23 fraction bits dropped."""
    return (matrix.view(torch.int32) & ~0x1FFF).view(torch.float32)


def rounded_tf32(matrix):
    """The same, rounded to nearest as the hardware does."""
    return ((matrix.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("rounding", [tf32, rounded_tf32])
@pytest.mark.parametrize("size", [64, 512])
def test_products_with_dropped_bits_are_told_to_be_tf32(rounding, size):
    made = operands("fp32", (size, size, size))
    result = rounding(made.a) @ rounding(made.b.t()).t()
    checked = gemms.check(GEMMS["fp32"], made, result)
    assert products_of(checked.error) == "tf32"
    assert judge("fp32", checked)["valid"] is False
    assert judge("tf32", checked._replace(limit=GEMMS["tf32"].error_limit))["valid"] is True


def test_rounding_to_tf32_gives_the_published_error():
    made = operands("fp32", (512, 512, 512))
    result = rounded_tf32(made.a) @ rounded_tf32(made.b.t()).t()
    # 2.6e-4 in pytorch/pytorch#195301.
    assert gemms.check(GEMMS["fp32"], made, result).error == pytest.approx(2.6e-4, rel=0.15)


def test_plain_fp32_is_told_to_be_ieee():
    made = operands("fp32", (512, 512, 512))
    checked = gemms.check(GEMMS["fp32"], made, GEMMS["fp32"].run(made))
    assert products_of(checked.error) == "ieee"
    assert judge("fp32", checked)["valid"] is True


class Switches:
    """Stands for torch.backends.cuda.matmul."""


@pytest.mark.parametrize(
    ("attribute", "before", "fp32", "tf32_value"),
    [("fp32_precision", "none", "ieee", "tf32"), ("allow_tf32", True, False, True)],
)
def test_fp32_and_tf32_set_and_restore_one_switch(monkeypatch, attribute, before, fp32, tf32_value):
    switches = Switches()
    setattr(switches, attribute, before)
    monkeypatch.setattr(torch.backends.cuda, "matmul", switches)
    for key, wanted in (("fp32", fp32), ("tf32", tf32_value)):
        with Fp32Gemm(key).mode():
            assert vars(switches) == {attribute: wanted}
        assert vars(switches) == {attribute: before}


def test_the_switch_is_restored_after_a_failure():
    matmul = torch.backends.cuda.matmul
    attribute = "fp32_precision" if hasattr(matmul, "fp32_precision") else "allow_tf32"
    before = getattr(matmul, attribute)
    during = []

    def fail():
        with Fp32Gemm("tf32").mode():
            during.append(getattr(matmul, attribute))
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert during != [before]
    assert getattr(matmul, attribute) == before


def test_fp16_sums_are_long_unless_short_ones_are_asked_for(monkeypatch):
    switches = Switches()
    switches.allow_fp16_accumulation = True
    monkeypatch.setattr(torch.backends.cuda, "matmul", switches)
    for key, short in (("fp16", False), ("fp16_acc16", True)):
        with GEMMS[key].mode():
            assert switches.allow_fp16_accumulation is short
        assert switches.allow_fp16_accumulation is True


@pytest.mark.parametrize(("version", "takes_out"), [("2.4.1+cu121", False), ("2.5.0", True)])
def test_fp8_of_an_older_torch_returns_a_pair_and_takes_no_single_result(
    monkeypatch, version, takes_out
):
    def scaled_mm(a, b, *, scale_a, scale_b, out_dtype, use_fast_accum, **out):
        assert ("out" in out) is takes_out
        assert scale_a.item() == scale_b.item() == 1
        result = (a.float() @ b.float()).to(out_dtype)
        return result if takes_out else (result, torch.tensor(0.0))

    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    gemm = GEMMS["fp8"]
    made = operands("fp8")
    assert gemms.check(gemm, made, gemm.run(made)).correct


def gpu(*capability, name="a GPU"):
    return DeviceFacts("gpu", name, capability)


@pytest.mark.parametrize(
    ("key", "facts", "runs", "words"),
    [
        ("tf32", gpu(7, 5), False, "8.0"),
        ("tf32", gpu(8, 0), True, ""),
        ("tf32", ON_CPU, False, "CPU"),
        ("fp8", gpu(8, 6), False, "8.9"),
        ("fp8", gpu(8, 9), True, ""),
        ("fp8", ON_CPU, True, ""),
        ("fp4", gpu(9, 0), False, "10.0"),
        ("fp4", ON_CPU, False, "CPU"),
        ("fp16_acc16", ON_CPU, False, "CPU"),
        ("bf16", gpu(7, 5), True, ""),
        ("fp64", gpu(6, 1), True, ""),
    ],
)
def test_what_cannot_run_is_refused_in_words(key, facts, runs, words):
    refusal = GEMMS[key].refusal(facts)
    assert (refusal is None) is runs
    assert words in (refusal or "")


def test_fp4_codes_are_the_nearest_numbers():
    values = torch.tensor([0.0, 0.2, 0.3, -0.6, 1.3, 2.4, 2.6, 4.9, 100.0, -100.0])
    expected = [0.0, 0.0, 0.5, -0.5, 1.5, 2.0, 3.0, 4.0, 6.0, -6.0]
    signed = torch.tensor([*FP4_MAGNITUDES, *(-value for value in FP4_MAGNITUDES)])
    assert signed[fp4_codes(values).long()].tolist() == expected


def test_fp4_numbers_are_packed_in_pairs_and_read_back():
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no FP4")
    gemm = GEMMS["fp4"]
    codes = torch.tensor([[1, 2, 15, 8]], dtype=torch.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    assert gemm.exact(packed.view(torch.float4_e2m1fn_x2)).tolist() == [[0.5, 1.0, -6.0, -0.0]]


@pytest.mark.parametrize(("shape", "counts"), [
    ((128, 256, 64), (128 * 4, 256 * 4)),
    ((130, 64, 192), (256 * 12, 128 * 12)),
])  # fmt: skip
def test_fp4_scales_have_the_padded_size(shape, counts):
    made = operands("fp4", shape)
    assert tuple(scale.numel() for scale in made.scales) == counts
    assert all(scale.to(torch.float32).eq(1).all() for scale in made.scales)


@pytest.mark.parametrize(
    ("set_bytes", "cache", "budget", "count"),
    [
        (100e6, 0, 2e9, 1),  # a CPU
        (402e6, 50e6, 2e9, 1),  # 8192^3 FP16 on an H100: beyond its L2 by itself
        (64e6, 50e6, 2e9, 2),  # 4096^3 FP8: 64 MB would half stay in L2
        (25e6, 126e6, 2e9, 8),  # B200, capped
        (25e6, 126e6, 60e6, 2),  # as far as the memory goes
        (25e6, 126e6, 1e6, 1),
    ],
)
def test_sets_of_operands_exceed_twice_the_cache(set_bytes, cache, budget, count):
    assert gemms.count_sets(set_bytes, cache, budget) == count


def test_memory_of_a_set_by_hand():
    m, n, k = 8192, 4096, 2048
    assert gemms.set_bytes(GEMMS["fp32"], (m, n, k)) == 4 * (m * k + n * k + m * n)
    assert gemms.set_bytes(GEMMS["int8"], (m, n, k)) == m * k + n * k + 4 * m * n
    assert gemms.set_bytes(GEMMS["fp8"], (m, n, k)) == m * k + n * k + 2 * m * n
    assert gemms.set_bytes(GEMMS["fp4"], (m, n, k)) == 0.5625 * (m * k + n * k) + 2 * m * n


def test_making_operands_can_be_stopped_in_between():
    pieces = 0

    def checkpoint():
        nonlocal pieces
        pieces += 1

    gemms.make_operands(GEMMS["fp32"], (2048, 2048, 2048), CPU, checkpoint)
    assert pieces >= 8

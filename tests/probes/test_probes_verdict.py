"""Whether a rate may be trusted, and what failed calls mean."""

from __future__ import annotations

import math

import pytest

from topsmon.probes.verdict import (
    Check,
    accumulation_note,
    cpu_use,
    in_one_line,
    judge,
    kind_of_failure,
    products_of,
)


@pytest.mark.parametrize(
    ("error", "products"),
    [(2.5e-7, "ieee"), (9e-7, "ieee"), (2.6e-4, "tf32"), (7e-4, "tf32"), (0.03, "neither")],
)
def test_products_are_told_by_their_error(error, products):
    assert products_of(error) == products


def test_a_right_result_is_valid():
    assert judge("fp32", Check(2.5e-7, 1e-5)) == {
        "correct": True,
        "valid": True,
        "invalid_reason": "",
    }


@pytest.mark.parametrize("error", [0.5, math.nan, math.inf])
def test_a_wrong_result_is_a_failure(error):
    verdict = judge("bf16", Check(error, 1e-2))
    assert verdict["correct"] is False
    assert verdict["valid"] is False
    assert "wrong result" in verdict["invalid_reason"]


def test_one_wrong_integer_is_a_failure():
    assert judge("int8", Check(1e-9, 0.0))["correct"] is False
    assert judge("int8", Check(0.0, 0.0))["correct"] is True


@pytest.mark.parametrize(("key", "error", "ran"), [
    ("fp32", 2.6e-4, "TF32"), ("tf32", 2.5e-7, "IEEE FP32"),
])  # fmt: skip
def test_the_other_products_are_no_defect_but_not_this_precision(key, error, ran):
    verdict = judge(key, Check(error, 1e-5 if key == "fp32" else 3e-3))
    assert verdict["correct"] is None
    assert verdict["valid"] is False
    assert ran in verdict["invalid_reason"]
    assert "NVIDIA_TF32_OVERRIDE" in verdict["invalid_reason"]


def test_a_burst_that_others_disturbed_is_invalid_with_the_share_in_words():
    use = cpu_use(0.62, 0.3, 2, None)
    assert use.complaint == "only 62 % of CPU time received: other processes are running"
    verdict = judge("fp64", Check(1e-15, 1e-12), use.complaint)
    assert (verdict["correct"], verdict["valid"]) == (True, False)


def test_without_a_word_on_waiting_a_low_share_is_blamed_on_others():
    assert cpu_use(0.5, None, 2, None).complaint


def test_a_quota_is_named_as_the_cause():
    assert "cgroup allows 0.5 CPUs" in cpu_use(0.5, 0.5, 1, 0.5).complaint


def test_a_library_that_runs_on_one_thread_is_no_disturbance():
    use = cpu_use(0.5, 0.001, 2, None)
    assert (use.complaint, use.threads, use.share) == ("", 1, 1.0)
    assert use.note == "the library used 1 of 2 threads"


def test_a_full_share_needs_no_words():
    assert cpu_use(0.97, 0.02, 2, None) == (0.97, 2, "", "")
    assert cpu_use(None, None, None, None) == (None, None, "", "")


def test_fp16_sums_that_did_not_happen_are_said():
    assert "FP32" in accumulation_note("fp16_acc16", 2.1e-4)
    assert accumulation_note("fp16_acc16", 5e-3) == ""
    assert accumulation_note("fp16", 2.1e-4) == ""


class OutOfMemoryError(RuntimeError):
    pass


class AcceleratorError(RuntimeError):
    pass


CUBLAS = "CUDA error: CUBLAS_STATUS_{} when calling `cublasGemmEx(handle, ...)`"
ALLOCATOR = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 9 bytes"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (RuntimeError(CUBLAS.format("ALLOC_FAILED")), "memory"),
        (RuntimeError(ALLOCATOR), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device"),
        (RuntimeError("CUDA error: device-side assert triggered"), "device"),
        (RuntimeError("CUDA error: unspecified launch failure"), "device"),
        (RuntimeError(CUBLAS.format("EXECUTION_FAILED")), "device"),
        (AcceleratorError("something new"), "device"),
        (RuntimeError(CUBLAS.format("NOT_SUPPORTED")), "library"),
        (RuntimeError("CUDA error: no kernel image is available for execution"), "library"),
        (NotImplementedError("Could not run 'aten::_scaled_mm'"), "library"),
        (TypeError("unexpected keyword"), "library"),
    ],
)
def test_failures_are_sorted(error, kind):
    assert kind_of_failure(error) == kind


def test_long_messages_are_cut_after_a_sentence():
    message = "Could not run it. " + "This could be because " * 20
    assert in_one_line(RuntimeError(message + "\nsecond line")) == "Could not run it"
    assert in_one_line(RuntimeError()) == "RuntimeError"
    assert len(in_one_line(RuntimeError("x" * 900))) == 200

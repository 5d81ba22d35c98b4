"""What fewer bits gain and cost: speed-up over FP32, and the error against FP64 of FP64 inputs.

The error includes the rounding of the inputs, as a network's does. INT8 and FP8 get one scale a
matrix, or one a row of either side (a token, an output channel), from the largest magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .. import verdict
from ..errors import UnsupportedError
from ..precisions import ERROR_LIMITS, Fp8Gemm, Gemm, Operands, all_gemms
from .context import Context, judged, relative_error
from .layout import worst
from .products import Product, largest_square
from .sizing import call_limit

NAME = "quantisation"
SECONDS = 4.0
OPT_IN = False

KEYS = ("fp32", "tf32", "fp16", "fp16_acc16", "bf16", "int8", "fp8")
LARGEST = {"int8": 127.0, "fp8": 448.0}
"""The largest magnitude of each scaled type: INT8 symmetric, and E4M3."""
M, N, K = 256, 256, 512
"""Shape for the errors: a sum of some length, and rows that every FP8 kernel accepts."""
OUTLIER_EVERY, OUTLIER_TIMES = 128, 20.0
"""Every 128th input feature 20 times as large: activations of language models from some 6.7 billion
parameters on have such features (Dettmers et al. 2022, LLM.int8())."""
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
WINDOW_SECONDS = 0.1
LIMITS = {**ERROR_LIMITS, "int8": 4e-2, "fp8": 6e-2}
"""With inputs rounded. INT8 in steps of 4.5/127 standard deviations leaves 1.4e-2, FP8 with 4
significant bits 3.7e-2: both sides rounded uniformly."""
LIBRARY_ERRORS = (RuntimeError, TypeError, AttributeError, ValueError)


class Inputs(NamedTuple):
    """FP64 operands, the right side as (N, K) rows, and their product."""

    a: Any
    b_rows: Any
    product: Any


def make_inputs(place: Any, *, outliers: bool = False) -> Inputs:
    """Random normal operands; with outliers some features of `a` are much larger."""
    a, b_rows = (torch.randn(rows, K, dtype=torch.float64, device=place) for rows in (M, N))
    if outliers:
        a[:, ::OUTLIER_EVERY] *= OUTLIER_TIMES
    return Inputs(a, b_rows, a @ b_rows.t())


class RowScaledFp8(Fp8Gemm):
    """FP8 with a scale for each row of both sides: another kernel than with one a matrix."""

    def operands(self, a: Any, b_rows: Any) -> Operands:
        """Put a set together with scales of 1."""
        scales = (
            torch.ones(a.shape[0], 1, device=a.device),
            torch.ones(1, b_rows.shape[0], device=a.device),
        )
        return super().operands(a, b_rows)._replace(scales=scales)


def scale_of(rows: Any, largest: float, *, per_row: bool) -> Any:
    """Largest magnitude of a matrix, or of each row as (rows, 1), over the type's `largest`."""
    magnitudes = rows.abs()
    peak = magnitudes.amax(1, keepdim=True) if per_row else magnitudes.amax()
    return peak.clamp(min=torch.finfo(torch.float32).tiny) / largest


def quantised(rows: Any, key: str, scale: Any) -> Any:
    """Rows divided by their scale and rounded to the nearest number of the type."""
    scaled = (rows / scale).clamp(-LARGEST[key], LARGEST[key])
    if key == "int8":
        return scaled.round().to(torch.int8)
    return scaled.to(torch.float32).to(torch.float8_e4m3fn)


def multiply(gemm: Gemm, inputs: Inputs, *, per_row: bool = False) -> Any:
    """The product of rounded inputs by the precision's own kernel, as FP64 numbers."""
    sides = (inputs.a, inputs.b_rows)
    if gemm.key not in LARGEST:
        operands = gemm.operands(*(rows.to(gemm.dtype) for rows in sides))
        return gemm.run(operands).to(torch.float64)
    scales = [scale_of(rows, LARGEST[gemm.key], per_row=per_row) for rows in sides]
    operands = gemm.operands(
        *(quantised(rows, gemm.key, scale) for rows, scale in zip(sides, scales))
    )
    scale_a, scale_b = scales[0], scales[1].t()
    if gemm.key == "int8":
        return gemm.run(operands).to(torch.float64) * scale_a * scale_b
    kernel_scales = tuple(scale.to(torch.float32).contiguous() for scale in (scale_a, scale_b))
    return gemm.run(operands._replace(scales=kernel_scales)).to(torch.float64)


class _Table:
    """Values by name, or why there is none."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.labels: dict[str, str] = {}
        self.unavailable: dict[str, str] = {}
        self.checks: list[verdict.Check] = []
        self.invalid_reason = ""

    def fill(self, names: Sequence[str], measure: Callable[[], Sequence[float]]) -> None:
        """Measure values; if this device or this library refuses, keep the reason."""
        try:
            self.values.update(zip(names, measure()))
        except UnsupportedError as refusal:
            reason = str(refusal)
        except LIBRARY_ERRORS as error:
            if verdict.kind_of_failure(error) != "library":
                raise
            reason = verdict.in_one_line(error)
        else:
            return
        self.unavailable.update(dict.fromkeys(names, reason))


class _Probe:
    def __init__(self, bench: Context) -> None:
        self._bench = bench
        self._plain = make_inputs(bench.place)
        self._outliers = make_inputs(bench.place, outliers=True)
        self._fp32 = all_gemms()["fp32"]
        self._fp32_size: int | None = None
        self.table = _Table()

    def measure(self, key: str) -> None:
        """All values of one precision."""
        table, gemm = self.table, all_gemms()[key]
        emulation = self._bench.device.emulation(gemm)
        if emulation is not None:
            table.labels[f"emulated_{key}"] = emulation
        error, outliers = f"error_{key}_ratio", f"error_{key}_outliers_ratio"
        if key not in LARGEST:
            table.fill((error, outliers), lambda: self._errors(gemm, outliers=True))
        else:
            table.fill((error,), lambda: self._errors(gemm))
        if key != "fp32":
            table.fill((f"speedup_{key}_ratio",), lambda: [self._speedup(gemm, key)])
        if key in LARGEST:
            rows = RowScaledFp8() if key == "fp8" else gemm
            table.fill(
                (f"error_{key}_per_row_ratio", outliers),
                lambda: self._errors(rows, per_row=True, outliers=True),
            )
            if rows is not gemm:
                name = f"{key}_per_row"
                table.fill((f"speedup_{name}_ratio",), lambda: [self._speedup(rows, name)])

    def _errors(self, gemm: Gemm, *, per_row: bool = False, outliers: bool = False) -> list[float]:
        self._require(gemm)
        errors = []
        for inputs in (self._plain, self._outliers) if outliers else (self._plain,):
            self._bench.checkpoint()
            with gemm.mode():
                result = multiply(gemm, inputs, per_row=per_row)
            errors.append(relative_error(result, inputs.product))
        if gemm.key == "fp32" and verdict.products_of(errors[0]) == "tf32":
            self.table.invalid_reason = (
                "FP32 ran with TF32 products: see NVIDIA_TF32_OVERRIDE in the environment"
            )
        else:
            self.table.checks.append(verdict.Check(errors[0], LIMITS[gemm.key]))
        return errors

    def _speedup(self, gemm: Gemm, name: str) -> float:
        """FP32's seconds over the precision's, for the same shape, in turns."""
        self._require(gemm)
        size = min(self._largest(gemm), self._reference_size())
        shape = (size, size, size)
        self.table.labels[f"shape_{name}"] = f"N = {size}"
        fp32, other = (Product(self._bench, one, shape) for one in (self._fp32, gemm))
        times = self._bench.compare(
            {"fp32": _in_mode(self._fp32, fp32), name: _in_mode(gemm, other)}, WINDOW_SECONDS
        )
        self.table.checks.append(other.check())
        return times["fp32"].median / times[name].median

    def _largest(self, gemm: Gemm) -> int:
        with gemm.mode():
            return largest_square(self._bench, gemm, SIZES, call_limit(self._bench))

    def _reference_size(self) -> int:
        if self._fp32_size is None:
            self._fp32_size = self._largest(self._fp32)
        return self._fp32_size

    def _require(self, gemm: Gemm) -> None:
        refusal = gemm.refusal(self._bench.device.facts)
        if refusal is not None:
            raise UnsupportedError(refusal)


def _in_mode(gemm: Gemm, product: Product) -> Callable[[], Any]:
    def run_call() -> Any:
        with gemm.mode():
            return product.run()

    return run_call


def run(bench: Context) -> dict[str, Any]:
    """Speed-ups over IEEE FP32 and relative errors against FP64, by precision."""
    probe = _Probe(bench)
    for key in KEYS:
        probe.measure(key)
    table = probe.table
    check = worst(table.checks)
    return {
        **judged(check.error, check.limit),
        "values": table.values,
        "labels": table.labels,
        "unavailable": table.unavailable,
        "valid": not table.invalid_reason,
        "invalid_reason": table.invalid_reason,
        "method": (
            f"errors: relative Frobenius norm against FP64 of random normal FP64 inputs, {M} x {N} "
            f"x {K}, rounding of the inputs included; INT8 and FP8 scaled by the largest magnitude "
            "of a matrix, per_row of each row; outliers: every "
            f"{OUTLIER_EVERY}th input feature {OUTLIER_TIMES:g} times as large, scaled per row; "
            "speed-ups: the product alone over IEEE FP32, N x N x N, right side column-major, "
            f"quantising not timed; taking turns, median of calls {bench.device.timing_words}"
        ),
    }

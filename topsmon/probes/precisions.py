"""One class a kind of GEMM: the right call of torch 2.4 and newer, its operands and its limits.

Operands are random normal numbers (INT8: the whole range): constants and small integers switch
fewer transistors, draw less power and so run at a higher clock than real work. The right side is
always the transposed view of a contiguous (N, K) matrix: FP8 and FP4 accept nothing else on a GPU,
and INT8 is several times slower otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch


class DeviceFacts(NamedTuple):
    """What decides whether a precision can run. `capability` is (major, minor), None on a CPU."""

    kind: str
    name: str
    capability: tuple[int, int] | None = None


class Operands(NamedTuple):
    """One set: a (M, K), b (K, N) as a view of contiguous (N, K), out (M, N) or None at first.

    `scales` belong to a and b where the call wants them.
    """

    a: Any
    b: Any
    out: Any
    scales: tuple[Any, ...] = ()


ERROR_LIMITS = {
    "fp64": 1e-12,
    "fp32": 1e-5,
    "tf32": 3e-3,
    "fp16": 2e-3,
    "fp16_acc16": 3e-2,
    "bf16": 1e-2,
    "fp8": 1e-2,
    "int8": 0.0,
    "fp4": 1e-2,
}
"""Relative Frobenius error beyond which a result is wrong. Rounding alone stays well below: half a
unit in the last place of the result, times the growth of K additions in the accumulator."""


class Gemm:
    """Plain `torch.mm` in one type; the base of the others."""

    call = "torch.mm"
    element_bytes = 4.0
    out_bytes = 4.0

    def __init__(self, key: str, dtype: Any) -> None:
        self.key = key
        self.dtype = dtype
        self.element_bytes = self.out_bytes = float(torch.empty((), dtype=dtype).element_size())

    @property
    def error_limit(self) -> float:
        """Relative error beyond which the result is wrong."""
        return ERROR_LIMITS[self.key]

    def refusal(self, facts: DeviceFacts) -> str | None:  # noqa: ARG002 - others need it
        """Why the precision cannot run there, None if it can be tried."""
        return None

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        """Switch the library to this precision and back."""
        yield

    def random_rows(self, rows: int, columns: int, device: Any) -> Any:
        """Random rows of an operand as `columns` elements each."""
        exact = torch.float64 if self.dtype == torch.float64 else torch.float32
        return torch.randn(rows, columns, device=device, dtype=exact).to(self.dtype)

    def empty_rows(self, rows: int, columns: int, device: Any) -> Any:
        """Room for an operand's rows."""
        return torch.empty(rows, columns, device=device, dtype=self.dtype)

    def out_for(self, rows: int, columns: int, device: Any) -> Any:
        """Room for the result, None where the call cannot take it."""
        return torch.empty(rows, columns, device=device, dtype=self.dtype)

    def operands(self, a: Any, b_rows: Any) -> Operands:
        """Put a set together; `b_rows` is the contiguous (N, K) matrix."""
        out = self.out_for(a.shape[0], b_rows.shape[0], a.device)
        return Operands(a, b_rows.t(), out)

    def run(self, operands: Operands) -> Any:
        """Multiply once; returns the result."""
        return torch.mm(operands.a, operands.b, out=operands.out)

    def exact(self, rows: Any) -> Any:
        """Rows of an operand as the FP64 numbers that they stand for."""
        return rows.to(torch.float64)


class Fp32Gemm(Gemm):
    """FP32 inputs, with IEEE products or with those of TF32.

    The switch is set through one API alone: from torch 2.9 on, reading the old one after the new
    one was set raises "mix of the legacy and new APIs".
    """

    def __init__(self, key: str) -> None:
        super().__init__(key, torch.float32)
        self._tf32 = key == "tf32"

    def refusal(self, facts: DeviceFacts) -> str | None:
        """Why the precision cannot run there, None if it can be tried."""
        if not self._tf32:
            return None
        if facts.capability is None:
            return "TF32 is a type of GPU matrix units: a CPU has none"
        if facts.capability < (8, 0):
            return f"TF32 needs compute capability 8.0: {facts.name} has {_dotted(facts)}"
        return None

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        """Switch the library to this precision and back."""
        matmul = torch.backends.cuda.matmul
        new = hasattr(matmul, "fp32_precision")
        attribute = "fp32_precision" if new else "allow_tf32"
        before = getattr(matmul, attribute)
        setattr(matmul, attribute, ("ieee", "tf32")[self._tf32] if new else self._tf32)
        try:
            yield
        finally:
            setattr(matmul, attribute, before)


class Fp16Gemm(Gemm):
    """FP16 inputs with sums in FP32, or in FP16 where the library may use them."""

    def __init__(self, key: str) -> None:
        super().__init__(key, torch.float16)
        self._short_sums = key == "fp16_acc16"

    def refusal(self, facts: DeviceFacts) -> str | None:
        """Why the precision cannot run there, None if it can be tried."""
        if not self._short_sums:
            return None
        if facts.capability is None:
            return "FP16 accumulation is a mode of GPU matrix units: a CPU has none"
        if not hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation"):
            return f"FP16 accumulation needs torch 2.7: this is {torch.__version__}"
        return None

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        """Switch the library to this precision and back."""
        matmul = torch.backends.cuda.matmul
        if not hasattr(matmul, "allow_fp16_accumulation"):
            yield
            return
        before = matmul.allow_fp16_accumulation
        matmul.allow_fp16_accumulation = self._short_sums
        try:
            yield
        finally:
            matmul.allow_fp16_accumulation = before


class Int8Gemm(Gemm):
    """INT8 inputs, INT32 sums. `torch.mm` itself would wrap around in INT8."""

    call = "torch._int_mm"

    def __init__(self) -> None:
        super().__init__("int8", torch.int8)
        self.out_bytes = 4.0

    def random_rows(self, rows: int, columns: int, device: Any) -> Any:
        """Random rows of an operand, `columns` elements each."""
        return torch.randint(-128, 128, (rows, columns), device=device, dtype=torch.int8)

    def out_for(self, rows: int, columns: int, device: Any) -> Any:
        """Room for the result, None where the call cannot take it."""
        return torch.empty(rows, columns, device=device, dtype=torch.int32)

    def run(self, operands: Operands) -> Any:
        """Multiply once; returns the result."""
        return torch._int_mm(operands.a, operands.b, out=operands.out)  # noqa: SLF001 - no other


class Fp8Gemm(Gemm):
    """FP8 E4M3 inputs with one scale a matrix, result in BF16.

    Up to torch 2.4 the call returns a pair and takes no single `out`.
    """

    call = "torch._scaled_mm"

    def __init__(self) -> None:
        super().__init__("fp8", torch.float8_e4m3fn)
        self.out_bytes = 2.0

    def refusal(self, facts: DeviceFacts) -> str | None:
        """Why the precision cannot run there, None if it can be tried."""
        if facts.capability is not None and facts.capability < (8, 9):
            return f"FP8 needs compute capability 8.9: {facts.name} has {_dotted(facts)}"
        return None

    def out_for(self, rows: int, columns: int, device: Any) -> Any:
        """Room for the result, None where the call cannot take it."""
        if torch_version() < (2, 5):
            return None
        return torch.empty(rows, columns, device=device, dtype=torch.bfloat16)

    def operands(self, a: Any, b_rows: Any) -> Operands:
        """Put a set together; `b_rows` is the contiguous (N, K) matrix."""
        one = torch.ones((), device=a.device, dtype=torch.float32)
        return super().operands(a, b_rows)._replace(scales=(one, one))

    def run(self, operands: Operands) -> Any:
        """Multiply once; returns the result."""
        keywords: dict[str, Any] = {
            "scale_a": operands.scales[0],
            "scale_b": operands.scales[1],
            "out_dtype": torch.bfloat16,
            "use_fast_accum": True,
        }
        if operands.out is not None:
            keywords["out"] = operands.out
        result = torch._scaled_mm(operands.a, operands.b, **keywords)  # noqa: SLF001 - no other
        return result[0] if isinstance(result, tuple) else result


FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the three low bits of an E2M1 number stand for; the fourth is the sign."""
FP4_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


class Fp4Gemm(Gemm):
    """NVFP4: E2M1 numbers, two a byte, with an E4M3 scale for every 16.

    All scales are 1, so that their swizzled order cannot matter, and both sides pair their numbers
    alike, so that neither can the order of the two halves of a byte.
    """

    call = "torch.nn.functional.scaled_mm"

    def __init__(self) -> None:
        super().__init__("fp4", torch.uint8)
        self.element_bytes = 0.5 + 1 / 16
        self.out_bytes = 2.0

    def refusal(self, facts: DeviceFacts) -> str | None:
        """Why the precision cannot run there, None if it can be tried."""
        if facts.capability is None:
            return "NVFP4 is a type of GPU matrix units: a CPU has none"
        if facts.capability < (10, 0):
            return f"NVFP4 needs compute capability 10.0: {facts.name} has {_dotted(facts)}"
        functional = torch.nn.functional
        if not (hasattr(functional, "scaled_mm") and hasattr(torch, "float4_e2m1fn_x2")):
            return f"NVFP4 needs a newer torch with scaled_mm: this is {torch.__version__}"
        return None

    def random_rows(self, rows: int, columns: int, device: Any) -> Any:
        """Random rows of an operand, `columns` elements each."""
        codes = fp4_codes(torch.randn(rows, columns, device=device))
        return codes[:, 0::2] | codes[:, 1::2] << 4

    def empty_rows(self, rows: int, columns: int, device: Any) -> Any:
        """Room for an operand's rows."""
        return torch.empty(rows, columns // 2, device=device, dtype=torch.uint8)

    def operands(self, a: Any, b_rows: Any) -> Operands:
        """Put a set together; `b_rows` is the contiguous (N, K) matrix."""
        scales = tuple(_unit_scales(matrix) for matrix in (a, b_rows))
        pairs = torch.float4_e2m1fn_x2
        return Operands(a.view(pairs), b_rows.view(pairs).t(), None, scales)

    def run(self, operands: Operands) -> Any:
        """Multiply once; returns the result."""
        functional = torch.nn.functional
        recipe = functional.ScalingType.BlockWise1x16
        swizzle = functional.SwizzleType.SWIZZLE_32_4_4
        return functional.scaled_mm(
            operands.a,
            operands.b,
            operands.scales[0],
            recipe,
            operands.scales[1],
            recipe,
            swizzle_a=swizzle,
            swizzle_b=swizzle,
            output_dtype=torch.bfloat16,
        )

    def exact(self, rows: Any) -> Any:
        """Rows of an operand as the FP64 numbers that they stand for."""
        packed = rows.view(torch.uint8)
        values = torch.tensor(
            [*FP4_MAGNITUDES, *(-value for value in FP4_MAGNITUDES)],
            device=packed.device,
            dtype=torch.float64,
        )
        halves = torch.stack((packed & 15, packed >> 4), dim=-1)
        return values[halves.long()].flatten(1)


def fp4_codes(values: Any) -> Any:
    """The E2M1 codes nearest to the values, as uint8 0..15."""
    boundaries = torch.tensor(FP4_MIDDLES, device=values.device)
    magnitudes = torch.bucketize(values.abs(), boundaries)
    return (magnitudes + 8 * (values < 0)).to(torch.uint8)


def _unit_scales(packed: Any) -> Any:
    """Scales of 1 for a packed matrix: rows padded to 128, one for 16 numbers padded to 4."""
    rows, numbers = packed.shape[0], packed.shape[1] * 2
    count = -(-rows // 128) * 128 * (-(-(numbers // 16) // 4) * 4)
    return torch.ones(count, device=packed.device).to(torch.float8_e4m3fn)


def all_gemms() -> dict[str, Gemm]:
    """Every precision that is known, by key."""
    gemms = (
        Gemm("fp64", torch.float64),
        Fp32Gemm("fp32"),
        Fp32Gemm("tf32"),
        Fp16Gemm("fp16"),
        Fp16Gemm("fp16_acc16"),
        Gemm("bf16", torch.bfloat16),
        Fp8Gemm(),
        Int8Gemm(),
        Fp4Gemm(),
    )
    return {gemm.key: gemm for gemm in gemms}


def torch_version() -> tuple[int, int]:
    """(2, 13) of "2.13.0+cpu"."""
    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


def _dotted(facts: DeviceFacts) -> str:
    return ".".join(str(part) for part in facts.capability or ())

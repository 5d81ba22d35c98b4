"""FLOPs of matrix products and convolutions, and of their gradients.

The keys of `FORMULAS` are torch's names of the operations without their overload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .work import Arguments, Formula, Gradient, Work, per_multiply_add, product


def two_factors(flops: int, left: Any, right: Any, out: Any, other: int = 0) -> Work:
    """Work of a product: each factor's gradient costs as many FLOPs as the product itself.

    For C = A B: dA = dC B^T and dB = A^T dC, all three of the same three dimensions.
    """
    gradients = (
        Gradient((left,), flops, moved=(out, right, left)),
        Gradient((right,), flops, moved=(out, left, right)),
    )
    return Work(flops, other, gradients)


def _require_same_type(left: Any, right: Any) -> None:
    """Raise what torch raises on real tensors but not on shapes alone."""
    if left.dtype != right.dtype:
        raise RuntimeError(f"operands must have the same dtype: {left.dtype}, {right.dtype}")


def _matrix_product(left: Any, right: Any, out: Any, other: int = 0) -> Work:
    """(..., M, K) times (..., K, N): M*K*N multiply-adds for each matrix of the batch."""
    _require_same_type(left, right)
    flops = per_multiply_add(left) * int(left.numel()) * int(right.shape[-1])
    return two_factors(flops, left, right, out, other)


def _mm(arguments: Arguments, out: Any) -> Work:
    return _matrix_product(arguments[0], arguments[1], out)


def _addmm(arguments: Arguments, out: Any) -> Work:
    return _matrix_product(arguments[1], arguments[2], out, other=int(out.numel()))


def _addmm_activation(arguments: Arguments, out: Any) -> Work:
    return _matrix_product(arguments[1], arguments[2], out, other=2 * int(out.numel()))


def _mv(arguments: Arguments, out: Any) -> Work:
    matrix, vector = arguments[0], arguments[1]
    return two_factors(per_multiply_add(matrix) * int(matrix.numel()), matrix, vector, out)


def _addmv(arguments: Arguments, out: Any) -> Work:
    matrix, vector = arguments[1], arguments[2]
    flops = per_multiply_add(matrix) * int(matrix.numel())
    return two_factors(flops, matrix, vector, out, other=int(out.numel()))


def _scaled_mm(arguments: Arguments, out: Any) -> Work:
    """As `mm`; two FP4 values share one element of a packed operand."""
    left, right = arguments[0], arguments[1]
    packed = 2 if "float4" in str(left.dtype) else 1
    return two_factors(2 * packed * int(left.numel()) * int(right.shape[-1]), left, right, out)


def _grouped_mm(arguments: Arguments, out: Any) -> Work:
    """Products of groups of rows (or columns) with one matrix a group.

    With a 2-D left operand the groups share out its rows or its inner dimension, so that each of
    its elements meets the columns once; 3-D by 3-D is `bmm`; 3-D by 2-D gives each matrix a share
    of the columns.
    """
    left, right = arguments[0], arguments[1]
    one_of_group = left.dim() == 3 and right.dim() == 2
    elements = product(left.shape[1:]) if one_of_group else int(left.numel())
    return two_factors(2 * elements * int(right.shape[-1]), left, right, out)


def _packed_weight(arguments: Arguments, out: Any) -> Work:
    """A linear layer whose quantised weight is packed: its columns are read off the result."""
    return Work(2 * int(arguments[0].numel()) * int(out.shape[-1]))


def convolution_multiply_adds(
    image: Sequence[int], weight: Sequence[int], result: Sequence[int], *, transposed: bool
) -> int:
    """Multiply-adds of a convolution from its shapes, for any rank, groups, stride and dilation.

    A weight is (C_out, C_in / groups, kernel...): an output point takes one multiply-add for each
    element of its channel's kernel. Transposed it is (C_in, C_out / groups, kernel...) and each
    *input* point meets its channel's kernel; counting output points is stride^rank too high.
    """
    return product(image if transposed else result) * product(weight[1:])


def _convolution(arguments: Arguments, out: Any) -> Work:
    image, weight, bias = arguments[0], arguments[1], arguments[2]
    _require_same_type(image, weight)
    macs = convolution_multiply_adds(
        image.shape, weight.shape, out.shape, transposed=bool(arguments.get("transposed"))
    )
    bias_additions = 0 if bias is None else int(out.numel())
    return two_factors(per_multiply_add(image) * macs, image, weight, out, bias_additions)


def _convolution_backward(arguments: Arguments, _out: Any) -> Work:
    """Gradients of a convolution as an operation of its own: a model that differentiates."""
    incoming, image, weight = arguments[0], arguments[1], arguments[2]
    mask = arguments.get("output_mask")
    macs = convolution_multiply_adds(
        image.shape, weight.shape, incoming.shape, transposed=bool(arguments.get("transposed"))
    )
    products = int(mask[0]) + int(mask[1])
    return Work(per_multiply_add(image) * macs * products, int(incoming.numel()) if mask[2] else 0)


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_int_mm"), _mm),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addbmm"), _addmm),
    "aten::_addmm_activation": _addmm_activation,
    **dict.fromkeys(("aten::mv", "aten::dot", "aten::vdot"), _mv),
    "aten::addmv": _addmv,
    **dict.fromkeys(("aten::_scaled_mm", "aten::_scaled_mm_v2"), _scaled_mm),
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm"), _grouped_mm),
    **dict.fromkeys(
        (
            "aten::_weight_int8pack_mm",
            "aten::_weight_int4pack_mm",
            "aten::_weight_int4pack_mm_for_cpu",
            "aten::_dyn_quant_matmul_4bit",
            "quantized::linear",
            "quantized::linear_relu",
            "quantized::linear_dynamic",
            "quantized::linear_relu_dynamic",
            "quantized::linear_dynamic_fp16",
        ),
        _packed_weight,
    ),
    **dict.fromkeys(
        ("aten::convolution", "aten::convolution_overrideable", "aten::_convolution"), _convolution
    ),
    **dict.fromkeys(
        ("aten::convolution_backward", "aten::convolution_backward_overrideable"),
        _convolution_backward,
    ),
}

"""Operations that are no products: what computes counts as `other`, what only moves data as 0.

One FLOP for each element and operation: of the result for element-wise operations, of the operand
for reductions. Sorting, random numbers and conversions of type are not counted. The backward pass
counts as many once more, and reads the incoming gradient and each operand and writes the operand's.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .products import two_factors
from .work import Arguments, Formula, Gradient, Part, Work, product, tensors

STATISTICS, NORMALISE, AFFINE = 3, 2, 2
"""FLOPs an element of a normalisation: mean 1 and variance 2; subtract, divide; scale, shift."""


def _names(words: str) -> tuple[str, ...]:
    return tuple("aten::" + word for word in words.split())


FREE = frozenset(
    (
        *_names(
            "_unsafe_view unsafe_split unsafe_split_with_sizes lift detach_ set_ resize_"
            " resize_as_ squeeze_ unsqueeze_ t_ transpose_ as_strided_ is_same_size sym_size"
            " sym_numel sym_stride _local_scalar_dense empty empty_like empty_strided"
            " empty_permuted new_empty new_empty_strided _assert_async _assert_scalar"
            " _assert_tensor_metadata _functional_assert_async _fused_sdp_choice record_stream"
            " sym_constrain_range sym_constrain_range_for_size _linalg_check_errors"
        ),
        "prim::device",
        "prim::layout",
    )
)
"""Operations that touch no element: views not marked as such, allocations, questions."""

WRITTEN = frozenset(
    _names(
        "zeros zeros_like zero zero_ ones ones_like full full_like fill fill_ new_zeros new_ones"
        " new_full arange linspace logspace eye scalar_tensor tril_indices triu_indices rand"
        " rand_like randn randn_like randint randint_like randperm bernoulli bernoulli_ uniform"
        " uniform_ normal normal_ exponential_ random_ log_normal_ cauchy_ geometric_ hann_window"
        " hamming_window"
    )
)
"""Operations that only write their result."""

COPIES = frozenset(
    (
        *_names(
            "clone _to_copy cat stack copy constant_pad_nd reflection_pad1d reflection_pad2d"
            " reflection_pad3d replication_pad1d replication_pad2d replication_pad3d roll flip"
            " rot90 repeat repeat_interleave tril triu tril_ triu_ im2col col2im pixel_shuffle"
            " pixel_unshuffle channel_shuffle select_scatter slice_scatter diagonal_scatter"
            " as_strided_scatter diag_embed block_diag sort topk kthvalue median nanmedian mode"
            " unique_consecutive unique_dim _unique2 nonzero nonzero_static bincount searchsorted"
            " bucketize masked_select masked_scatter masked_scatter_ split_copy"
            " split_with_sizes_copy unbind_copy slice_copy permute_copy transpose_copy expand_copy"
            " view_copy lift_fresh_copy upsample_nearest1d upsample_nearest2d upsample_nearest3d"
            " _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"
            " max_unpool2d max_unpool3d _pack_padded_sequence multinomial cummax cummin complex"
            " quantize_per_tensor quantize_per_channel dequantize int_repr"
        ),
    )
)
"""Operations that read and write elements without arithmetic."""

GATHERS = frozenset(_names("embedding index index_select gather take _unsafe_index"))
"""Operations that read as much as their result has, from where their indices say."""

SCATTERS = frozenset(
    _names(
        "index_add index_add_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_put"
        " index_put_ _index_put_impl_ _unsafe_index_put scatter scatter_ index_copy index_copy_"
        " index_fill index_fill_ put put_ index_reduce index_reduce_"
    )
)
"""Operations that write, and most of them add, to where their indices say."""

POINTWISE = frozenset(
    _names(
        "addr addr_ rsub floor_divide floor_divide_ _prelu_kernel polar log_sigmoid_forward"
        " binary_cross_entropy_with_logits soft_margin_loss isin _add_relu _add_relu_ copysign_"
        " _masked_scale hardswish hardswish_"
    )
)
"""Element-wise operations that torch does not tag as such."""

PER_OPERAND: dict[str, int] = {
    **dict.fromkeys(
        _names(
            "sum nansum mean amax amin aminmax max min prod cumsum cumsum_ cumprod cumprod_"
            " logcumsumexp all any argmax argmin trace count_nonzero segment_reduce"
            " _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d"
        ),
        1,
    ),
    **dict.fromkeys(
        _names(
            "norm linalg_vector_norm nll_loss_forward nll_loss2d_forward _weight_norm_interface"
            " native_dropout"
        ),
        2,
    ),
    **dict.fromkeys(_names("var std var_mean std_mean mse_loss dist glu"), 3),
    "aten::_fused_rms_norm": 4,
    **dict.fromkeys(
        _names(
            "_softmax _log_softmax _safe_softmax _masked_softmax logsumexp huber_loss"
            " smooth_l1_loss binary_cross_entropy"
        ),
        5,
    ),
}
"""FLOPs an element of the operand. Softmax: maximum, subtract, exponential, sum, divide."""

PER_RESULT: dict[str, int] = {
    "aten::upsample_linear1d": 4,
    **dict.fromkeys(
        _names("upsample_bilinear2d _upsample_bilinear2d_aa grid_sampler_2d affine_grid_generator"),
        8,
    ),
    **dict.fromkeys(_names("upsample_trilinear3d grid_sampler_3d"), 16),
    **dict.fromkeys(_names("upsample_bicubic2d _upsample_bicubic2d_aa"), 32),
}
"""FLOPs an element of the result: a multiplication and an addition for each neighbour."""


def _first(result: Any) -> Any:
    return next(tensors(result), None)


def _count(tensor: Any) -> int:
    return 0 if tensor is None else int(tensor.numel())


def _differentiable(arguments: Arguments) -> tuple[Any, ...]:
    return tuple(item for item in arguments.read() if item.is_floating_point() or item.is_complex())


def _passes(
    arguments: Arguments, out: Any, other: int, moved: tuple[Any, ...] | None = None
) -> Work:
    """Work of an operation with `other` FLOPs whose backward pass does as many again."""
    operands = _differentiable(arguments)
    incoming = tuple(tensors(_first(out)))
    reads = 2 if other else 1
    gradients = [Gradient(operands, other=other, moved=incoming)]
    gradients += [Gradient((operand,), moved=(operand,) * reads) for operand in operands]
    return Work(other=other, gradients=tuple(gradients), moved=moved)


def _free(_arguments: Arguments, _out: Any) -> Work:
    return Work(moved=())


def _written(_arguments: Arguments, out: Any) -> Work:
    return Work(moved=tuple(tensors(out)))


def _copy(arguments: Arguments, out: Any) -> Work:
    return _passes(arguments, out, 0)


def _overwrite(arguments: Arguments, out: Any) -> Work:
    """`copy_`: the old values are not read."""
    return _passes(arguments, out, 0, moved=(arguments[1], arguments[0]))


def _gather(arguments: Arguments, out: Any) -> Work:
    table = arguments[0]
    indices = tuple(item for item in arguments.read() if item is not table)
    gradient = Gradient((table,), other=_count(out), moved=(*indices, out, table))
    moved = (*indices, Part(table, _count(out)), out)
    return Work(gradients=(gradient,), moved=moved)


def _scatter(arguments: Arguments, out: Any) -> Work:
    """The last operand goes to where the indices say; the result is a copy unless in place."""
    target, *rest = arguments.read()
    source = rest[-1]
    copied = () if out is target else (target, out)
    moved = (*copied, *rest, Part(target, _count(source)), Part(target, _count(source)))
    return _passes(arguments, out, _count(source), moved)


def _embedding_bag(arguments: Arguments, out: Any) -> Work:
    table, indices, offsets = arguments[0], arguments[1], arguments[2]
    rows = _count(indices) * int(table.shape[-1])
    gradient = Gradient((table,), other=rows, moved=(indices, out[0], table))
    return Work(0, rows, (gradient,), (indices, offsets, Part(table, rows), out[0]))


def _element_wise(arguments: Arguments, out: Any) -> Work:
    return _passes(arguments, out, _count(_first(out)))


def _normalisation(arguments: Arguments, out: Any) -> Work:
    """Layer, group and batch norm; with stored statistics these are not computed."""
    batch = arguments.get("running_mean") is not None
    training = arguments.get("training")
    computes = not batch or bool(training)
    per_element = NORMALISE + (STATISTICS if computes else 0)
    per_element += AFFINE if arguments.get("weight") is not None else 0
    return _passes(arguments, out, per_element * _count(arguments[0]))


def _pool(arguments: Arguments, out: Any) -> Work:
    """Each result is taken over its window."""
    window = [int(size) for size in arguments.get("kernel_size")]
    dimensions = 3 if len(window) == 3 or arguments[0].dim() == 5 else 2
    area = window[0] ** dimensions if len(window) == 1 else product(window)
    return _passes(arguments, out, area * _count(_first(out)))


def _fourier(arguments: Arguments, out: Any) -> Work:
    """5 N log2 N for complex data, half of it where one side is real (benchFFT's convention)."""
    operand = arguments[0]
    real = next((side for side in (operand, out) if not side.is_complex()), None)
    data = operand if real is None else real
    length = product(data.shape[dimension] for dimension in arguments.get("dim"))
    per_element = (5.0 if real is None else 2.5) * math.log2(max(length, 1))
    return _passes(arguments, out, round(per_element * _count(data)))


def _distances(arguments: Arguments, out: Any) -> Work:
    """All pairs: subtract, absolute power, add, for each coordinate."""
    return _passes(arguments, out, 3 * _count(out) * int(arguments[0].shape[-1]))


def _euclidean_distances(arguments: Arguments, out: Any) -> Work:
    """All pairs by |x|^2 + |y|^2 - 2 x.y, a matrix product."""
    left, right = arguments[0], arguments[1]
    norms = 2 * (_count(left) + _count(right))
    flops = 2 * _count(out) * int(left.shape[-1])
    return two_factors(flops, left, right, out, other=norms + 4 * _count(out))


SPECIAL: dict[str, Formula] = {
    **dict.fromkeys(FREE, _free),
    **dict.fromkeys(WRITTEN, _written),
    **dict.fromkeys(COPIES, _copy),
    "aten::copy_": _overwrite,
    **dict.fromkeys(GATHERS, _gather),
    **dict.fromkeys(SCATTERS, _scatter),
    **dict.fromkeys(POINTWISE, _element_wise),
    **dict.fromkeys(("aten::_embedding_bag", "aten::_embedding_bag_forward_only"), _embedding_bag),
    **dict.fromkeys(
        _names(
            "native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm"
            " _native_batch_norm_legit _native_batch_norm_legit_no_training"
        ),
        _normalisation,
    ),
    **dict.fromkeys(
        _names("max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d"), _pool
    ),
    **dict.fromkeys(_names("_fft_c2c _fft_r2c _fft_c2r"), _fourier),
    "aten::_cdist_forward": _distances,
    "aten::_euclidean_dist": _euclidean_distances,
}


def _per_operand(each: int) -> Formula:
    return lambda arguments, out: _passes(arguments, out, each * _count(arguments[0]))


def _per_result(each: int) -> Formula:
    return lambda arguments, out: _passes(arguments, out, each * _count(_first(out)))


def _is_view(operation: Any) -> bool:
    """True where the first result shares its operand's memory and is not written."""
    results = operation._schema.returns  # noqa: SLF001  torch gives the schema no public name
    alias = results[0].alias_info if results else None
    return alias is not None and not alias.is_write


def _is_element_wise(name: str, operation: Any) -> bool:
    """True by torch's tag; in-place forms go by the form that makes a new tensor."""
    if torch.Tag.pointwise in operation.tags:
        return True
    namespace, _, word = name.partition("::")
    if namespace != "aten" or not word.endswith("_"):
        return False
    plain = getattr(torch.ops.aten, word.rstrip("_"), None)
    return plain is not None and any(
        torch.Tag.pointwise in getattr(plain, overload).tags for overload in plain.overloads()
    )


def find(name: str, operation: Any) -> Formula | None:
    """Return the formula of an operation that is no product, None where there is none."""
    if name in SPECIAL:
        return SPECIAL[name]
    if name in PER_OPERAND:
        return _per_operand(PER_OPERAND[name])
    if name in PER_RESULT:
        return _per_result(PER_RESULT[name])
    if _is_view(operation):
        return _free
    if _is_element_wise(name, operation):
        return _element_wise
    return None

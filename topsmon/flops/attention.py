"""FLOPs of scaled dot-product attention, fused, and of its backward pass.

Forward: Q K^T and P V. Backward: dV = P^T dO, dP = dO V^T, dQ = dS K, dK = dS^T Q. A flash kernel
computes Q K^T once more in its backward pass; that is recomputation and not counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .work import Arguments, Formula, Gradient, Work, product

SOFTMAX_PER_SCORE = 5
"""Maximum, subtraction, exponential, sum and division of each score."""
EFFICIENT_CAUSAL_MASKS = (1, 2)


class _Size(NamedTuple):
    """FLOPs of a product over the head size of keys and of one over that of values, and scores.

    `masked` of the `scores` are above the diagonal, aligned to the upper left as torch does it.
    """

    keys: int
    values: int
    scores: int
    masked: int


def _size(query: Any, key: Any, value: Any, *, heads_first: bool) -> _Size:
    """Read the sizes of (B, H, S, D) operands, or of (B, S, H, D) ones.

    Grouped queries: each query head meets one key head, whatever the number of key heads.
    """
    sequence = -2 if heads_first else -3
    queries, keys = int(query.shape[sequence]), int(key.shape[sequence])
    maps = product(query.shape[:-1]) // max(queries, 1)
    square = min(queries, keys)
    visible = square * (square + 1) // 2 + (queries - square) * keys
    scores = maps * queries * keys
    return _Size(
        keys=2 * scores * int(query.shape[-1]),
        values=2 * scores * int(value.shape[-1]),
        scores=scores,
        masked=scores - maps * visible,
    )


def _forward(arguments: Arguments, out: Any, *, heads_first: bool) -> Work:
    causal = bool(arguments.get("is_causal")) or (
        arguments.get("custom_mask_type") in EFFICIENT_CAUSAL_MASKS
    )
    operands = (arguments[0], arguments[1], arguments[2])
    return attention(operands, out[0], heads_first=heads_first, causal=causal)


def attention(
    operands: tuple[Any, Any, Any], result: Any, *, heads_first: bool = True, causal: bool = False
) -> Work:
    """Work of softmax(Q K^T) V and of its four gradients' products."""
    query, key, value = operands
    size = _size(query, key, value, heads_first=heads_first)
    softmax = SOFTMAX_PER_SCORE * size.scores
    gradients = (
        Gradient((query, key, value), other=softmax, moved=(query, key, value, result, result)),
        Gradient((value,), size.values, moved=(value,)),
        Gradient((query, key), size.values),
        Gradient((query,), size.keys, moved=(query,)),
        Gradient((key,), size.keys, moved=(key,)),
    )
    flops = size.keys + size.values
    masked = flops // size.scores * size.masked if causal and size.scores else 0
    return Work(flops, softmax, gradients, causal_flops=masked)


def _heads_first(arguments: Arguments, out: Any) -> Work:
    return _forward(arguments, out, heads_first=True)


def _sequence_first(arguments: Arguments, out: Any) -> Work:
    _refuse_packed(arguments)
    return _forward(arguments, out, heads_first=False)


def _refuse_packed(arguments: Arguments) -> None:
    """Packed sequences of different lengths: the lengths are values, not shapes."""
    for name in ("cum_seq_q", "cu_seqlens_q"):
        if arguments.get(name) is not None:
            raise ValueError("packed sequences of different lengths")


def _backward(arguments: Arguments, *, heads_first: bool) -> Work:
    size = _size(arguments[1], arguments[2], arguments[3], heads_first=heads_first)
    return Work(2 * (size.keys + size.values), SOFTMAX_PER_SCORE * size.scores)


def _heads_first_backward(arguments: Arguments, _out: Any) -> Work:
    return _backward(arguments, heads_first=True)


def _sequence_first_backward(arguments: Arguments, _out: Any) -> Work:
    _refuse_packed(arguments)
    return _backward(arguments, heads_first=False)


_FUSED = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
)

FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(_FUSED, _heads_first),
    "aten::_scaled_dot_product_attention_math_for_mps": _heads_first,
    **dict.fromkeys((name + "_backward" for name in _FUSED), _heads_first_backward),
    **dict.fromkeys(
        ("aten::_flash_attention_forward", "aten::_efficient_attention_forward"), _sequence_first
    ),
    **dict.fromkeys(
        ("aten::_flash_attention_backward", "aten::_efficient_attention_backward"),
        _sequence_first_backward,
    ),
}

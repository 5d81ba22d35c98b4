"""FLOPs of recurrent layers that torch runs as one operation, and of fused cells.

A layer multiplies its input weights (G*H, I) and its hidden weights (G*H, H) with each step of each
sequence; G is 4 for LSTM, 3 for GRU, 1 for a plain RNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .work import Arguments, Formula, Gradient, Work

OTHER_PER_UNIT = {0: 4, 1: 4, 2: 21, 3: 16}
"""Additions, activations and products of one hidden unit in one step, with biases, by torch's mode.

RNN: 2 biases, 1 addition, 1 activation. LSTM: for 4 gates 2 biases, 1 addition, 1 activation, then
c = f c + i g (3), tanh, h = o tanh(c). GRU: 3 x 2 biases, 2 x (addition, sigmoid), then r * hidden,
addition, tanh, and h = n + z (h - n) (3).
"""


def _layers(sequence: Any, weights: Sequence[Any], directions: int, other: int, out: Any) -> Work:
    """Work of layers over steps times sequences, padded or packed.

    `weights` are the input and hidden weights of each direction of each layer, in turn. A hidden
    state's gradient is needed by whatever precedes it in time, and so is an upper layer's input's.
    """
    tokens = int(sequence.numel()) // max(int(sequence.shape[-1]), 1)
    everything = (sequence, *weights)
    gradients = [Gradient(everything, other=other, moved=(*everything, out, out))]
    for index, weight in enumerate(weights):
        flops = 2 * tokens * int(weight.numel())
        into_sequence = index % 2 == 0 and index < 2 * directions
        gradients.append(Gradient((weight,), flops, moved=(weight,)))
        gradients.append(Gradient((sequence,) if into_sequence else everything, flops))
    products = sum(2 * tokens * int(weight.numel()) for weight in weights)
    return Work(products, other, tuple(gradients))


def _other(arguments: Arguments, passes: int) -> int:
    """Element-wise FLOPs of `passes` directions of layers."""
    sequence = arguments[0]
    steps = int(sequence.numel()) // max(int(sequence.shape[-1]), 1)
    units = steps * int(arguments.get("hidden_size")) * passes
    return OTHER_PER_UNIT[arguments.get("mode")] * units


def _mkldnn(arguments: Arguments, out: Any) -> Work:
    """One direction of one LSTM layer on a CPU."""
    weights = (arguments[1], arguments[2])
    return _layers(arguments[0], weights, 1, _other(arguments, 1), out[0])


def _cudnn(arguments: Arguments, out: Any) -> Work:
    """All layers and directions of a recurrent module on a GPU."""
    if arguments.get("proj_size"):
        raise ValueError("an LSTM with projections")
    weights = [item for item in arguments[1] if item.dim() == 2]
    directions = 2 if arguments.get("bidirectional") else 1
    other = _other(arguments, len(weights) // 2)
    return _layers(arguments[0], weights, directions, other, out[0])


def _cell(arguments: Arguments, _out: Any, *, gates: int, mode: int) -> Work:
    """What follows the two products of a cell: the products are operations of their own."""
    units = int(arguments[0].numel()) // gates
    other = OTHER_PER_UNIT[mode] * units
    operands = tuple(arguments.read())
    return Work(other=other, gradients=(Gradient(operands, other=other, moved=2 * operands),))


def _lstm_cell(arguments: Arguments, out: Any) -> Work:
    return _cell(arguments, out, gates=4, mode=2)


def _gru_cell(arguments: Arguments, out: Any) -> Work:
    return _cell(arguments, out, gates=3, mode=3)


FORMULAS: dict[str, Formula] = {
    "aten::mkldnn_rnn_layer": _mkldnn,
    "aten::_cudnn_rnn": _cudnn,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_gru_cell": _gru_cell,
}

"""A 3x3 convolution of 64 to 128 channels, padding 1: what convolutional networks mostly do."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..precisions import Gemm
from .context import Context, judged, per_second, relative_error
from .products import main_precision, precision
from .sizing import largest

NAME = "convolution"
SECONDS = 1.2
OPT_IN = False

KERNEL = 3
CHECKED_POSITIONS = 64
WINDOW_SECONDS = 0.3


class Shape(NamedTuple):
    """N x Cin x side x side by Cout x Cin/groups x 3 x 3; padding 1 keeps the side."""

    batch: int
    channels_in: int
    channels_out: int
    side: int
    element_bytes: float
    groups: int = 1

    @property
    def outputs(self) -> int:
        """Numbers in the result."""
        return self.batch * self.channels_out * self.side**2

    @property
    def flops(self) -> float:
        """2 * N * OH * OW * Cout * Cin/groups * kh * kw: a multiply-add is two.

        Taps on the padding count, as everywhere; a bias would add one per output.
        """
        return 2.0 * self.outputs * (self.channels_in // self.groups) * KERNEL**2

    @property
    def bytes_moved(self) -> float:
        """Input, weight and result, each moved once."""
        inputs = self.batch * self.channels_in * self.side**2
        weights = self.channels_out * (self.channels_in // self.groups) * KERNEL**2
        return (inputs + weights + self.outputs) * self.element_bytes

    @property
    def work(self) -> float:
        """What a call has to do: its FLOPs."""
        return self.flops

    @property
    def needed_bytes(self) -> float:
        """Two results live at a time, and the library copies operands to its own layout."""
        return 3 * self.bytes_moved

    def words(self) -> str:
        """As "32x64x224x224 by 128x64x3x3"."""
        inputs = f"{self.batch}x{self.channels_in}x{self.side}x{self.side}"
        weights = f"{self.channels_out}x{self.channels_in // self.groups}x{KERNEL}x{KERNEL}"
        return f"{inputs} by {weights}"


SIZES = ((1, 14), (1, 28), (1, 56), (1, 112), (1, 224), (4, 224), (32, 224))
"""Batch and side; a device too slow for the last takes a smaller one."""


def shapes(gemm: Gemm) -> list[Shape]:
    """The sizes of the probe in a precision."""
    return [Shape(batch, 64, 128, side, gemm.element_bytes) for batch, side in SIZES]


class Convolution:
    """Operands in one memory format, and the latest result."""

    def __init__(self, bench: Context, gemm: Gemm, shape: Shape, memory_format: Any) -> None:
        batch, channels, side = shape.batch, shape.channels_in, shape.side
        inputs = bench.random(batch, channels, side, side, dtype=gemm.dtype)
        weight = bench.random(
            shape.channels_out, channels // shape.groups, KERNEL, KERNEL, dtype=gemm.dtype
        )
        self.shape = shape
        self.inputs = inputs.contiguous(memory_format=memory_format)
        self.weight = weight.contiguous(memory_format=memory_format)
        self.result: Any = None

    def run(self) -> Any:
        """Convolve once; returns the result."""
        self.result = torch.nn.functional.conv2d(
            self.inputs, self.weight, padding=KERNEL // 2, groups=self.shape.groups
        )
        return self.result

    def error(self) -> float:
        """Relative error of the result at random places and two corners, all channels.

        The reference multiplies and adds the taps one by one in FP64: no convolution, no GEMM.
        """
        batch, side = self.shape.batch, self.shape.side
        places = torch.stack(
            [torch.randint(0, limit, (CHECKED_POSITIONS,)) for limit in (batch, side, side)], dim=1
        ).tolist()
        places += [[0, 0, 0], [batch - 1, side - 1, side - 1]]
        expected = torch.stack([self._exact(*place) for place in places])
        got = torch.stack([self.result[n, :, y, x] for n, y, x in places])
        return relative_error(got, expected)

    def _exact(self, n: int, y: int, x: int) -> Any:
        groups, side = self.shape.groups, self.shape.side
        weight = self.weight.to(torch.float64).unflatten(0, (groups, -1))
        patch = torch.zeros(
            self.shape.channels_in, KERNEL, KERNEL, dtype=torch.float64, device=weight.device
        )
        top, left = y - KERNEL // 2, x - KERNEL // 2
        rows = range(max(top, 0), min(top + KERNEL, side))
        columns = range(max(left, 0), min(left + KERNEL, side))
        patch[:, rows.start - top : rows.stop - top, columns.start - left : columns.stop - left] = (
            self.inputs[n, :, rows.start : rows.stop, columns.start : columns.stop]
        )
        return (weight * patch.unflatten(0, (groups, 1, -1))).sum((2, 3, 4)).flatten()


def run(bench: Context) -> dict[str, Any]:
    """Operations/s of the forward pass, and its place on the roofline."""
    key = main_precision(bench)
    with precision(bench, key) as gemm:
        convolution = largest(
            bench,
            shapes(gemm),
            lambda shape: Convolution(bench, gemm, shape, torch.channels_last),
        )
        times = bench.measure(convolution.run, WINDOW_SECONDS)
        error = convolution.error()
    shape = convolution.shape
    return {
        **judged(error, gemm.error_limit),
        "values": {
            **per_second("rate_ops", shape.flops, times),
            "intensity_flops_per_byte": shape.flops / shape.bytes_moved,
            "seconds": times.median,
            "flops": shape.flops,
            "bytes": shape.bytes_moved,
        },
        "labels": {"precision": key, "shape": shape.words()},
        "method": (
            "torch.nn.functional.conv2d, channels_last, no bias; FLOPs = 2 x N x OH x OW x Cout x "
            "Cin x 3 x 3, bytes = input, weight and result once; a library that saves "
            "multiplications (Winograd) does fewer than are counted; median of calls "
            f"{bench.device.timing_words}"
        ),
    }

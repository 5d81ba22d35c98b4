"""Scaled dot-product attention: what the prefill and decode probes share."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from .. import timing
from ..precisions import Gemm
from .context import Context, relative_error

CHECKED_MAPS = 4
CHECKED_QUERIES = 8


class Shape(NamedTuple):
    """`queries` positions attend to `keys` positions, in batch x heads maps; no grouped heads."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    element_bytes: float

    @property
    def flops(self) -> float:
        """4 * B * H * Sq * Sk * D: Q K^T and P V, a multiply-add is two; no softmax."""
        return 4.0 * self.batch * self.heads * self.queries * self.keys * self.head_size

    @property
    def causal_flops(self) -> float:
        """2 * B * H * S * (S + 1) * D: of S positions the first sees one, the last all."""
        return self.flops * (self.queries + 1) / (2 * self.queries)

    @property
    def cache_bytes(self) -> float:
        """Keys and values: 2 * B * H * Sk * D numbers."""
        return 2 * self.batch * self.heads * self.keys * self.head_size * self.element_bytes

    @property
    def bytes_moved(self) -> float:
        """Queries, keys, values and result, each moved once; the scores never leave the chip."""
        ends = 2 * self.batch * self.heads * self.queries * self.head_size * self.element_bytes
        return self.cache_bytes + ends

    @property
    def work(self) -> float:
        """What a call has to do: its FLOPs."""
        return self.flops

    @property
    def needed_bytes(self) -> float:
        """Operands, two results, and keys and values of one map in FP64 for the check."""
        return 1.5 * self.bytes_moved + 4 * 8 * self.keys * self.head_size

    def words(self) -> str:
        """As "batch 1, 8 heads of 64, 1 query over 4096 keys"."""
        return (
            f"batch {self.batch}, {self.heads} heads of {self.head_size}, {self.queries} "
            f"quer{'y' if self.queries == 1 else 'ies'} over {self.keys} keys"
        )


class Attention:
    """Random operands, and the latest result."""

    def __init__(self, bench: Context, gemm: Gemm, shape: Shape) -> None:
        def make(positions: int) -> Any:
            return bench.random(
                shape.batch, shape.heads, positions, shape.head_size, dtype=gemm.dtype
            )

        self.shape = shape
        self.query, self.key, self.value = make(shape.queries), make(shape.keys), make(shape.keys)
        self.result: Any = None

    def run(self) -> Any:
        """Attend once; returns the result."""
        return self._attend(causal=False)

    def run_causal(self) -> Any:
        """Attend once, each position to itself and those before it."""
        return self._attend(causal=True)

    def _attend(self, *, causal: bool) -> Any:
        self.result = torch.nn.functional.scaled_dot_product_attention(
            self.query, self.key, self.value, is_causal=causal
        )
        return self.result

    def error(self, *, causal: bool = False) -> float:
        """Relative error of the latest result in some maps and queries, against a plain softmax.

        Scores, exponentials, their sum and the weighted values, one after the other in FP64.
        """
        shape = self.shape
        got, expected = [], []
        for _ in range(CHECKED_MAPS):
            b, h = (int(torch.randint(0, limit, ())) for limit in (shape.batch, shape.heads))
            rows = torch.randint(0, shape.queries, (CHECKED_QUERIES,), device=self.query.device)
            query = self.query[b, h][rows].to(torch.float64)
            key, value = (operand[b, h].to(torch.float64) for operand in (self.key, self.value))
            scores = query @ key.t() / math.sqrt(shape.head_size)
            if causal:
                later = torch.arange(shape.keys, device=rows.device) > rows.unsqueeze(1)
                scores = scores.masked_fill(later, -math.inf)
            weights = (scores - scores.amax(1, keepdim=True)).exp()
            expected.append(weights @ value / weights.sum(1, keepdim=True))
            got.append(self.result[b, h][rows])
        return relative_error(torch.stack(got), torch.stack(expected))


def measured(shape: Shape, times: timing.Spread) -> dict[str, float]:
    """The values that both probes have."""
    return {
        "rate_ops_per_second": shape.flops / times.median,
        "bytes_per_second": shape.bytes_moved / times.median,
        "intensity_flops_per_byte": shape.flops / shape.bytes_moved,
        "seconds": times.median,
        "flops": shape.flops,
        "bytes": shape.bytes_moved,
    }

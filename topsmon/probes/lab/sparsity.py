"""2:4 structured sparsity: a weight with two zeros in every four against the same one dense."""

from __future__ import annotations

from typing import Any

import torch

from .. import gemm as gemms
from .. import schedule
from ..errors import UnsupportedError
from ..precisions import DeviceFacts, Operands
from .context import Context, judged, per_second
from .products import largest_square, precision
from .sizing import call_limit

NAME = "sparsity"
SECONDS = 1.5
OPT_IN = False

KEY = "fp16"
SIZES = (512, 1024, 2048, 4096, 8192)
WINDOW_SECONDS = 0.2


def refusal(facts: DeviceFacts) -> str | None:
    """Why there is no 2:4 sparsity on a device; None if it can be tried."""
    if facts.capability is None:
        return "2:4 sparsity is a mode of GPU matrix units: a CPU has none"
    if facts.capability < (8, 0):
        major, minor = facts.capability
        return f"2:4 sparsity needs compute capability 8.0: {facts.name} has {major}.{minor}"
    if not hasattr(torch.sparse, "to_sparse_semi_structured"):
        return f"2:4 sparsity needs a newer torch: this is {torch.__version__}"
    return None


def pruned(rows: Any) -> Any:
    """A matrix with the two smaller magnitudes of every four in a row set to zero."""
    fours = rows.unflatten(1, (-1, 4))
    kept = fours.abs().topk(2, dim=-1).indices
    mask = torch.zeros_like(fours, dtype=torch.bool).scatter_(-1, kept, value=True)
    return torch.where(mask, fours, torch.zeros_like(fours)).flatten(1)


def run(bench: Context) -> dict[str, Any]:
    """Seconds dense and sparse, and the rate that a dense product would need to keep up."""
    reason = refusal(bench.device.facts)
    if reason is not None:
        raise UnsupportedError(reason)
    with precision(bench, KEY) as gemm:
        size = largest_square(bench, gemm, SIZES, call_limit(bench))
        shape = (size, size, size)
        operands = gemms.make_operands(gemm, shape, bench.place, bench.checkpoint)
        weight, right = pruned(operands.a), operands.b
        sparse = torch.sparse.to_sparse_semi_structured(weight)
        dense_operands = Operands(weight, right, operands.out)
        times = bench.compare(
            {
                "dense": lambda: gemm.run(dense_operands),
                "sparse": lambda: torch.mm(sparse, right),
            },
            WINDOW_SECONDS,
        )
        check = gemms.check(gemm, dense_operands, torch.mm(sparse, right), bench.checkpoint)
    operations = schedule.operations(shape)
    return {
        **judged(check.error, check.limit),
        "values": {
            **per_second("rate_ops", operations, times["sparse"]),
            "dense_rate_ops_per_second": operations / times["dense"].median,
            "dense_seconds": times["dense"].median,
            "sparse_seconds": times["sparse"].median,
            "speedup_ratio": times["dense"].median / times["sparse"].median,
        },
        "labels": {
            "precision": KEY,
            "shape": f"N = {size}",
            "library": str(getattr(sparse, "BACKEND", "unknown")),
        },
        "method": (
            "torch.sparse.to_sparse_semi_structured of a weight pruned by magnitude, times a dense "
            "column-major matrix, against torch.mm of the same weight; the rate counts the FLOPs "
            "of the dense product, 2 x N x N x N: its ceiling is the sparse one; taking turns, "
            f"median of calls {bench.device.timing_words}"
        ),
    }

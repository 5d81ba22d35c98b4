"""Operands of a GEMM, sets of them beyond the cache, and the check of its result against FP64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .precisions import Gemm, Operands
from .schedule import Shape
from .verdict import Check

CHUNK_ELEMENTS = 1 << 20
"""Numbers made or converted between two chances to stop: some ms on one CPU core."""
CHECKED_ROWS = 32
SPOT_ROWS, SPOT_COLUMNS = 8, 16
CHECK_BYTES = 8 * 8 * CHUNK_ELEMENTS
"""Memory that making operands and checking results needs for a while, at most."""
MAX_SETS = 8


def set_bytes(gemm: Gemm, shape: Shape) -> float:
    """Memory of one set of operands with its result."""
    m, n, k = shape
    return (m * k + n * k) * gemm.element_bytes + m * n * gemm.out_bytes


def needed_bytes(gemm: Gemm, shape: Shape) -> float:
    """Memory of one burst at the least: a set, and what making and checking it takes."""
    return set_bytes(gemm, shape) + min(float(CHECK_BYTES), 64.0 * shape[1] * shape[2])


def count_sets(bytes_of_set: float, cache_bytes: float, budget_bytes: float) -> int:
    """Sets of operands to take in turn, so that together they exceed twice the cache.

    A large GEMM needs one. On a CPU `cache_bytes` is 0: GEMM libraries copy blocks of the operands
    into the caches and use each number hundreds of times from there, whoever held it before.
    """
    wanted = math.floor(2 * cache_bytes / bytes_of_set) + 1
    return max(1, min(wanted, MAX_SETS, int(budget_bytes // bytes_of_set)))


def make_rows(
    gemm: Gemm, rows: int, columns: int, device: Any, checkpoint: Callable[[], None]
) -> Any:
    """A random contiguous matrix, filled piece by piece so that a stop need not wait for it."""
    matrix = gemm.empty_rows(rows, columns, device)
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        checkpoint()
        piece = gemm.random_rows(min(step, rows - start), columns, device)
        matrix[start : start + step].copy_(piece)
    return matrix


def make_operands(
    gemm: Gemm, shape: Shape, device: Any, checkpoint: Callable[[], None] = lambda: None
) -> Operands:
    """One set of random operands with the right side column-major."""
    m, n, k = shape
    a = make_rows(gemm, m, k, device, checkpoint)
    b_rows = make_rows(gemm, n, k, device, checkpoint)
    return gemm.operands(a, b_rows)


def check(
    gemm: Gemm,
    operands: Operands,
    result: Any,
    checkpoint: Callable[[], None] = lambda: None,
) -> Check:
    """Hold random rows of a result against FP64.

    Two references: whole rows multiplied on the device in FP64, and a few elements multiplied and
    added up one by one on the CPU, so that no GEMM is its own judge. The larger error counts.
    """
    m, n = result.shape
    rows = torch.randperm(m)[:CHECKED_ROWS]
    a = gemm.exact(_take(operands.a, rows))
    b_rows = operands.b.t()
    got = result[rows.to(result.device)].to(torch.float64)
    k = a.shape[1]
    step = max(1, CHUNK_ELEMENTS // k)
    wrong = norm = 0.0
    for start in range(0, n, step):
        checkpoint()
        expected = a @ gemm.exact(b_rows[start : start + step]).t()
        wrong += float((got[:, start : start + step] - expected).square().sum())
        norm += float(expected.square().sum())
    columns = torch.randperm(n)[:SPOT_COLUMNS]
    spot_a = a[:SPOT_ROWS].cpu()
    spot_b = gemm.exact(_take(b_rows, columns)).cpu()
    expected = (spot_a.unsqueeze(1) * spot_b.unsqueeze(0)).sum(-1)
    spot = got[:SPOT_ROWS].cpu()[:, columns] - expected
    errors = (
        math.sqrt(wrong / norm) if norm else math.inf,
        math.sqrt(float(spot.square().sum()) / float(expected.square().sum())),
    )
    finite = all(math.isfinite(error) for error in errors)
    error = max(errors) if finite else math.nan
    return Check(error, gemm.error_limit)


def _take(matrix: Any, rows: Any) -> Any:
    """Some rows of a matrix, also of types that torch cannot index."""
    if matrix.element_size() == 1:
        taken = matrix.view(torch.uint8)[rows.to(matrix.device)]
        return taken.view(matrix.dtype)
    return matrix[rows.to(matrix.device)]

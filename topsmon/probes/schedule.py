"""Which precision and which shape comes next: order, size limits, remarks. All of it pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

ORDER = ("fp32", "fp64", "bf16", "fp16", "tf32", "int8", "fp8", "fp16_acc16", "fp4")
"""Of the first round: the precisions that everybody asks for come first."""

Shape = tuple[int, int, int]
"""M, N, K of (M x K) @ (K x N)."""

GPU_SHAPES: tuple[Shape, ...] = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (1024, 4096, 2048),
    (1024, 10240, 5120),
    (2048, 2048, 13312),
    (4096, 4096, 4096),
    (1792, 16128, 3072),
    (8192, 8192, 8192),
)
"""The rectangles are the best shapes published for A100, H100 and B200 boards (ml-engineering,
compute/accelerator); the small squares serve devices on which those take too long."""

CPU_SHAPES: tuple[Shape, ...] = (
    (64, 64, 64),
    (128, 128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (256, 1024, 1024),
    (768, 768, 768),
    (1024, 1024, 1024),
    (512, 2048, 2048),
    (1536, 1536, 1536),
    (2048, 2048, 2048),
    (3072, 3072, 3072),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)

SHAPES_PER_PRECISION = 5
EXPLORE_LARGEST = 2048


def operations(shape: Shape) -> float:
    """Operations of one GEMM: a multiply-add counts as two, 2*M*N*K."""
    m, n, k = shape
    return 2.0 * m * n * k


def choose_shapes(
    candidates: Sequence[Shape],
    rate: float,
    limit_seconds: float,
    budget_bytes: float,
    bytes_of: Callable[[Shape], float],
) -> list[Shape]:
    """The largest few shapes, smallest first, whose call at `rate` ops/s stays within the limits.

    If every call would take too long, the smallest one is all there is; without memory for even
    that, nothing.
    """
    affordable = [shape for shape in candidates if bytes_of(shape) <= budget_bytes]
    affordable.sort(key=operations)
    fitting = [shape for shape in affordable if operations(shape) <= rate * limit_seconds]
    return (fitting or affordable[:1])[-SHAPES_PER_PRECISION:]


class Explored(NamedTuple):
    """What is known of a precision's speed: the best rate in ops/s, the largest size tried.

    With a rate of 0, the size to begin with.
    """

    rate: float
    size: int


def pick(shapes: Sequence[Shape], turn: int, rates: Mapping[Shape, float]) -> Shape:
    """The shape of a turn: those never measured first, then the best every other time.

    The best one tells soonest that a device has slowed down; the others may become the best.
    """
    following = shapes[turn % len(shapes)]
    new = [shape for shape in (following, *shapes) if shape not in rates]
    if new:
        return new[0]
    if turn % 2:
        return max(shapes, key=rates.__getitem__)
    return shapes[turn // 2 % len(shapes)]


def explore(
    seconds_of: Callable[[Shape], float],
    limit_seconds: float,
    budget_bytes: float,
    bytes_of: Callable[[Shape], float],
    known: Explored,
) -> Explored:
    """Find a device's rough rate with calls that grow while the next is sure to be short.

    The next size is tried only if half of `limit_seconds` would do at the best rate so far: a call
    cannot be interrupted, and some library paths take seconds for 1024 x 1024. `known` is where an
    earlier exploration ended.
    """
    rate, size = known
    while True:
        shape = (size, size, size)
        rate = max(rate, operations(shape) / max(seconds_of(shape), 1e-9))
        larger = (2 * size, 2 * size, 2 * size)
        too_long = operations(larger) > rate * limit_seconds / 2
        if 2 * size > EXPLORE_LARGEST or too_long or bytes_of(larger) > budget_bytes:
            return Explored(rate, size)
        size *= 2


def remark(shape: Shape) -> str:
    """Say what is wrong with a shape that hardware does not like; "" for a good one."""
    odd = [size for size in shape if size % 64]
    if not odd:
        return ""
    named = "x".join(str(size) for size in shape)
    worst = "an odd size" if any(size % 2 for size in odd) else "no multiple of 64"
    return f"{named} has {worst}: matrix units want multiples of 64 and can lose half their rate"


class Schedule:
    """Precisions in turn: first those never measured, then the one measured longest ago."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key for key in ORDER if key in keys]
        self._rounds = dict.fromkeys(self._keys, 0)
        self._last_turn = dict.fromkeys(self._keys, -1)
        self._turn = 0

    def following(self, chosen: Sequence[str] | None) -> str | None:
        """The precision whose turn it is among the chosen ones (None: all); None without any."""
        keys = [key for key in self._keys if chosen is None or key in chosen]
        return min(keys, key=self._last_turn.__getitem__, default=None)

    def rounds(self, key: str) -> int:
        """How often a precision was measured."""
        return self._rounds[key]

    def first_round(self, chosen: Sequence[str] | None) -> bool:
        """True while some chosen precision has not had its first turn."""
        keys = [key for key in self._keys if chosen is None or key in chosen]
        return any(self._last_turn[key] < 0 for key in keys)

    def measured(self, key: str) -> None:
        """Count a turn of a precision."""
        self._turn += 1
        self._rounds[key] += 1
        self._last_turn[key] = self._turn

    def passed_over(self, key: str) -> None:
        """A turn that gave no number, for want of memory: the others go first, then try again."""
        self._turn += 1
        self._last_turn[key] = self._turn

    def drop(self, key: str) -> None:
        """Leave a precision out for good: this device cannot run it."""
        self._keys.remove(key)

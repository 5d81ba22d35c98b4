"""A counted model as read from the counter's document, held against a device's ceilings.

The counter runs in another process, see `topsmon.flops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from topsmon.report.bounds import BYTES_PER_VALUE, Peak, bound

SCHEMA = 1
PRECISION_OF = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
}


@dataclass(frozen=True)
class Times:
    """Least seconds of work done in turn, by what bounds each part.

    `unknown` is the computing time of parts whose memory time is not known.
    """

    compute: float = 0.0
    memory: float = 0.0
    unknown: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(
            self.compute + other.compute, self.memory + other.memory, self.unknown + other.unknown
        )

    @property
    def seconds(self) -> float:
        """Time of all parts."""
        return self.compute + self.memory + self.unknown

    @property
    def by(self) -> Literal["compute", "memory"] | None:
        """What bounds the larger part; None where that is not known or there is no work."""
        if self.unknown or not self.seconds:
            return None
        return "compute" if self.compute >= self.memory else "memory"


class Tally(msgspec.Struct, frozen=True):
    """FLOPs of products, of all else, and bytes = floating values at their sizes + other bytes."""

    flops: int
    macs: int
    other_flops: int
    bytes: int
    float_elements: int
    other_bytes: int

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )

    @property
    def operations(self) -> int:
        """All FLOPs."""
        return self.flops + self.other_flops

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte, None where nothing is moved."""
        return self.operations / self.bytes if self.bytes else None

    def bytes_at(self, precision: str) -> float:
        """Bytes if every floating value were held at this precision."""
        return self.float_elements * BYTES_PER_VALUE[precision] + self.other_bytes

    def times(self, peak: Peak) -> Times:
        """Least time at a precision: each operation once, each byte once."""
        least = bound(peak, self.operations, self.bytes_at(peak.precision))
        if least.by is None:
            return Times(unknown=least.seconds)
        if least.by == "compute":
            return Times(compute=least.seconds)
        return Times(memory=least.seconds)


NOTHING = Tally(0, 0, 0, 0, 0, 0)


class Layer(msgspec.Struct, frozen=True):
    """Own operations of one module."""

    path: str
    kind: str = msgspec.field(name="class")
    calls: int
    parameters: int
    forward: Tally
    backward: Tally


class Total(msgspec.Struct, frozen=True):
    """Sums over the model; parameters that are shared count once."""

    forward: Tally
    backward: Tally
    parameters: int
    trainable_parameters: int


class Uncounted(msgspec.Struct, frozen=True):
    """An operation without a formula, and a layer in which it is used."""

    operation: str
    calls: int
    layer: str


class Input(msgspec.Struct, frozen=True):
    """One tensor that the model was given."""

    name: str | None
    shape: tuple[int, ...]
    dtype: str


class Count(msgspec.Struct, frozen=True):
    """The counter's document."""

    schema: int
    target: str
    torch: str
    python: str
    mode: str
    inputs: tuple[Input, ...]
    real_tensors_because: str
    flops_by_dtype: dict[str, int]
    layers: tuple[Layer, ...]
    total: Total
    uncounted: tuple[Uncounted, ...]
    causal_masked_flops: int


@dataclass(frozen=True)
class Row:
    """A layer, or the sum of the layers under one path. `times` None: there is no ceiling."""

    path: str
    kind: str
    calls: int | None
    parameters: int
    tally: Tally
    times: Times | None


def load(document: bytes) -> Count:
    """Read the counter's document; ValueError says in one line what is wrong with it."""
    try:
        count = msgspec.json.decode(document, type=Count)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the counter wrote no document of counts: {error}") from error
    if count.schema != SCHEMA:
        raise ValueError(f"the counter wrote a document of schema {count.schema}, not {SCHEMA}")
    return count


def default_peak(count: Count, found: Sequence[Peak]) -> Peak | None:
    """The ceiling of the type in which most FLOPs were counted, else the first there is."""
    dtypes = sorted(count.flops_by_dtype, key=lambda dtype: -count.flops_by_dtype[dtype])
    for dtype in dtypes:
        for peak in found:
            if peak.precision == PRECISION_OF.get(dtype):
                return peak
    return found[0] if found else None


def chosen_peak(count: Count, found: Sequence[Peak], precision: str | None) -> Peak | None:
    """The ceiling of a precision by its key; ValueError where the device has none."""
    if precision is None:
        return default_peak(count, found)
    for peak in found:
        if peak.precision == precision:
            return peak
    known = ", ".join(peak.precision for peak in found) or "none"
    raise ValueError(f"this device has no ceiling for {precision}; it has {known}")


def rows(count: Count, peak: Peak | None, *, backward: bool, depth: int | None = None) -> list[Row]:
    """Layers with their least times; with `depth`, summed by that many parts of their paths."""
    single = [_row(layer, peak, backward=backward) for layer in count.layers]
    if depth is None:
        return single
    groups: dict[str, list[Row]] = {}
    for row in single:
        groups.setdefault(".".join(row.path.split(".")[:depth]), []).append(row)
    return [_sum(path, group) for path, group in groups.items()]


def times(passes: Sequence[Tally], peak: Peak) -> Times:
    """Least time of a layer's passes: the backward pass comes after the forward pass of all."""
    return sum((part.times(peak) for part in passes), Times())


def total_times(count: Count, peak: Peak, *, backward: bool) -> Times:
    """Least time of the model's layers one after the other."""
    return sum((times(passes(layer, backward=backward), peak) for layer in count.layers), Times())


def passes(part: Layer | Total, *, backward: bool) -> tuple[Tally, ...]:
    """The forward pass, and the backward pass if asked for."""
    return (part.forward, part.backward) if backward else (part.forward,)


def _row(layer: Layer, peak: Peak | None, *, backward: bool) -> Row:
    parts = passes(layer, backward=backward)
    return Row(
        layer.path,
        layer.kind,
        layer.calls,
        layer.parameters,
        sum(parts, NOTHING),
        None if peak is None else times(parts, peak),
    )


def _sum(path: str, group: Sequence[Row]) -> Row:
    if len(group) == 1 and group[0].path == path:
        return group[0]
    own = next((row for row in group if row.path == path), None)
    known = [row.times for row in group if row.times is not None]
    return Row(
        path,
        "" if own is None else own.kind,
        None if own is None else own.calls,
        sum(row.parameters for row in group),
        sum((row.tally for row in group), NOTHING),
        sum(known, Times()) if known else None,
    )

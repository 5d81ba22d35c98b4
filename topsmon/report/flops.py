"""`topsmon flops`: a counted model as text or JSON, with what bounds it on a device."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from topsmon import __version__, events, units
from topsmon.report.bounds import BYTES_PER_VALUE, Peak, peaks
from topsmon.report.counted import (
    Count,
    Row,
    Tally,
    Times,
    chosen_peak,
    passes,
    rows,
    times,
    total_times,
)

SCHEMA = "topsmon.flops/1"
NARROWEST = 80
SHORTEST_PATH = 16
GAP = "  "
ABOUT_FLOPS = (
    "A multiply and an add are 2 FLOP; a multiply-add (MAC) is one of each, so that figures half as"
    ' large, often called "GFLOPs" too, are MACs. FLOP are those of matrix products, convolutions,'
    " attention and recurrent layers; other are those of bias, activation, normalisation and"
    " softmax, 1 for each element and operation."
)
ABOUT_BACKWARD = (
    "Backward is derived from forward: a product once more for each operand that needs a gradient."
    " Recomputation by activation checkpointing is not counted."
)
ABOUT_BYTES = (
    "Bytes: each operation reads its operands and writes its results once, without fusion or reuse"
    " in a cache."
)
ABOUT_BEST = (
    "Best: the larger of FLOP / ceiling and bytes / bandwidth, layer after layer, with floating"
    " values held at the precision named."
)


class Device(NamedTuple):
    """What the count is held against: a name to show, and its ceilings if any are known."""

    name: str
    ceilings: events.Ceilings | None

    @property
    def problem(self) -> str:
        """Why nothing, or not everything, is known of its bounds; empty if all is."""
        if self.ceilings is None:
            return "no ceiling is known, so bound and best time are N/A"
        if not self.ceilings.rates:
            return self.ceilings.unknown or "no ceiling is known, so bound and best time are N/A"
        if self.ceilings.memory_bandwidth_bytes_per_second is None:
            return (
                "its memory bandwidth is not known (not rated, and not to be measured undisturbed"
                " now; --bandwidth gives it), so bound is N/A and best is the time of computing"
                " alone"
            )
        return ""


def text(
    count: Count,
    device: Device,
    *,
    precision: str | None = None,
    backward: bool = False,
    depth: int | None = None,
    width: int = 100,
    ascii_only: bool = False,
) -> str:
    """Return the count as text of at most `width` columns, layers last but for the legend.

    `precision` (a key of units.PRECISIONS) is that of the layers' bound and best time; ValueError
    where the device has no ceiling for it. `backward` shows forward + backward for each layer,
    `depth` sums them by so many parts of their paths.
    """
    width = max(width, NARROWEST)
    found = peaks(device.ceilings)
    peak = chosen_peak(count, found, precision)
    lines = [*_heading(count, width), "", *_totals(count), *_missing(count, width)]
    lines += ["", *_device(count, device, found, width)]
    table = rows(count, peak, backward=backward, depth=depth)
    sign = "..." if ascii_only else "\N{HORIZONTAL ELLIPSIS}"
    lines += ["", f"Layers, {'forward + backward' if backward else 'forward'}"]
    lines += [*_layers(table, _columns(table, peak, _unit(count)), width, sign), ""]
    for rule in (ABOUT_FLOPS, ABOUT_BACKWARD, ABOUT_BYTES, *((ABOUT_BEST,) if found else ())):
        lines += textwrap.wrap(rule, width)
    result = "\n".join(line.rstrip() for line in lines) + "\n"
    return result.encode("ascii", "replace").decode() if ascii_only else result


def _heading(count: Count, width: int) -> list[str]:
    inputs = ", ".join(
        f"{'' if item.name is None else item.name + '='}"
        f"{'x'.join(map(str, item.shape)) or 'scalar'} {item.dtype}"
        for item in count.inputs
    )
    title = f"{count.target} in {count.mode} mode, input {inputs} (torch {count.torch})"
    lines = textwrap.wrap(units.plain(title), width)
    if count.real_tensors_because:
        lines += textwrap.wrap(
            "Run for real on the CPU with random input, on which its work may depend: "
            + units.plain(count.real_tensors_because),
            width,
        )
    return lines


def _totals(count: Count) -> list[str]:
    """FLOPs, intensity and parameters, forward and forward + backward."""
    forward = count.total.forward
    both = forward + count.total.backward
    unit = _unit(count)
    lines = [f"{'':20}{unit:>10}{'MACs':>10}{'other':>10}{'bytes':>10}{unit + '/B':>10}"]
    for label, tally in (("forward", forward), ("forward + backward", both)):
        cells = (tally.flops, tally.macs, tally.other_flops, tally.bytes)
        lines.append(
            f"{label:20}"
            + "".join(f"{units.si(cell):>10}" for cell in cells)
            + f"{_intensity(tally):>10}"
        )
    parameters, trainable = count.total.parameters, count.total.trainable_parameters
    frozen = "" if trainable == parameters else f", {units.si(trainable)} of them trainable"
    lines.append(f"{'parameters':20}{units.si(parameters):>10}{frozen}")
    kinds = count.flops_by_dtype
    if len(kinds) > 1:
        shares = ", ".join(f"{units.si(flops)} in {dtype}" for dtype, flops in kinds.items())
        lines.append(f"{'forward by type':20}  {shares}")
    if count.causal_masked_flops:
        masked = units.si(count.causal_masked_flops)
        lines.append(f"{'causal attention':20}{masked:>10}  of forward is masked, and counted")
    return lines


def _unit(count: Count) -> str:
    """OP where all products are of integers, else FLOP."""
    kinds = count.flops_by_dtype
    integers = [dtype for dtype in kinds if dtype.startswith(("int", "uint"))]
    return "OP" if kinds and len(integers) == len(kinds) else "FLOP"


def _intensity(tally: Tally) -> str:
    value = tally.intensity
    return units.NOT_AVAILABLE if value is None else units.significant(value)


def _missing(count: Count, width: int) -> list[str]:
    if not count.uncounted:
        return []
    names = ", ".join(
        f"{item.operation} ({item.calls}x, in {item.layer or 'the model'})"
        for item in count.uncounted
    )
    return [
        "",
        *textwrap.wrap(f"LOWER BOUND: not counted are {units.plain(names)}.", width),
    ]


def _device(count: Count, device: Device, found: Sequence[Peak], width: int) -> list[str]:
    """The table of precisions: ceiling, ridge point, and the model's least times."""
    bandwidth = found[0].bytes_per_second if found else None
    memory = f", {units.bandwidth(bandwidth)}" if bandwidth else ""
    problem = f": {device.problem}" if device.problem else ""
    lines = textwrap.wrap(f"Best possible on {units.plain(device.name)}{memory}{problem}", width)
    if not found:
        return lines
    header = ("", "ceiling", f"ridge {_unit(count)}/B", "forward", "bound", "fwd+bwd", "bound")
    cells = [header]
    for peak in found:
        ridge = peak.ridge_ops_per_byte
        forward = total_times(count, peak, backward=False)
        both = total_times(count, peak, backward=True)
        cells.append(
            (
                peak.label,
                units.rate(peak.ops_per_second, peak.precision),
                units.NOT_AVAILABLE if ridge is None else units.significant(ridge),
                units.si(forward.seconds, "s", 3),
                forward.by or units.NOT_AVAILABLE,
                units.si(both.seconds, "s", 3),
                both.by or units.NOT_AVAILABLE,
            )
        )
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines += [
        row[0].ljust(widths[0])
        + "".join("  " + cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True))
        for row in cells
    ]
    return lines


class _Column(NamedTuple):
    """`rank` 0 is always shown, then the lower the sooner, as the width allows."""

    title: str
    cells: tuple[str, ...]
    rank: int
    left: bool = False

    @property
    def size(self) -> int:
        """Characters of the widest cell."""
        return max(len(cell) for cell in (self.title, *self.cells))


def _compact(value: float, unit: str = "", digits: int = 4) -> str:
    """A quantity for a cell, without the space before its prefix."""
    return units.si(value, unit, digits).replace(" ", "")


def _columns(table: Sequence[Row], peak: Peak | None, unit: str) -> list[_Column]:
    missing = units.NOT_AVAILABLE
    tallies, times = [row.tally for row in table], [row.times for row in table]
    bounds = tuple(missing if item is None else item.by or missing for item in times)
    best = tuple(missing if item is None else _compact(item.seconds, "s", 3) for item in times)
    return [
        _Column("class", tuple(units.plain(row.kind) for row in table), 3, left=True),
        _Column("calls", tuple("" if row.calls is None else str(row.calls) for row in table), 2),
        _Column("params", tuple(_compact(row.parameters) for row in table), 0),
        _Column(unit, tuple(_compact(tally.flops) for tally in tallies), 0),
        _Column("MACs", tuple(_compact(tally.macs) for tally in tallies), 1),
        _Column("other", tuple(_compact(tally.other_flops) for tally in tallies), 0),
        _Column("bytes", tuple(_compact(tally.bytes) for tally in tallies), 0),
        _Column(f"{unit}/B", tuple(_intensity(tally) for tally in tallies), 0),
        _Column("bound", bounds, 0),
        _Column("best" if peak is None else f"best {peak.label}", best, 0),
    ]


def _layers(table: Sequence[Row], columns: Sequence[_Column], width: int, sign: str) -> list[str]:
    """Align the columns that fit; the path takes what is left, cut at its beginning."""
    paths = ["layer", *(units.plain(row.path) or "(model)" for row in table)]
    longest = max(len(path) for path in paths)
    shown = [column for column in columns if column.rank == 0]
    for column in sorted((column for column in columns if column.rank), key=lambda item: item.rank):
        taken = sum(len(GAP) + item.size for item in (*shown, column))
        if width - taken >= min(longest, 2 * SHORTEST_PATH):
            shown.append(column)
    shown.sort(key=columns.index)
    taken = sum(len(GAP) + column.size for column in shown)
    room = min(max(width - taken, SHORTEST_PATH), longest)
    return [
        GAP.join([_fit(path, room, sign), *(_cell(column, index) for column in shown)])
        for index, path in enumerate(paths)
    ]


def _cell(column: _Column, index: int) -> str:
    text = (column.title, *column.cells)[index]
    return text.ljust(column.size) if column.left else text.rjust(column.size)


def _fit(path: str, room: int, sign: str) -> str:
    """Cut a path at its beginning: its end tells layers apart."""
    return path.ljust(room) if len(path) <= room else sign + path[len(path) - room + len(sign) :]


def to_json(count: Count, device: Device) -> bytes:
    """Return the counter's document with ceilings, bounds and best times added, as one object.

    Units are in the keys; null is "not known", and `unavailable` says why.
    """
    found = peaks(device.ceilings)
    told: dict[str, Any] = msgspec.to_builtins(count)
    document: dict[str, Any] = {**told, "schema": SCHEMA, "version": __version__}
    both = count.total.forward + count.total.backward
    document["total"]["forward_and_backward"] = msgspec.to_builtins(both)
    document["total"]["flops_per_byte_forward"] = count.total.forward.intensity
    document["total"]["flops_per_byte_forward_and_backward"] = both.intensity
    document["lower_bound"] = bool(count.uncounted)
    document["device"] = {
        "name": device.name,
        "memory_bandwidth_bytes_per_second": found[0].bytes_per_second if found else None,
        "unavailable": device.problem,
        "precisions": [_peak_json(count, peak) for peak in found],
    }
    for layer, entry in zip(count.layers, document["layers"], strict=True):
        entry["flops_per_byte_forward"] = layer.forward.intensity
        entry["best"] = {
            peak.precision: {
                "forward": _times_json(times(passes(layer, backward=False), peak)),
                "forward_and_backward": _times_json(times(passes(layer, backward=True), peak)),
            }
            for peak in found
        }
    return msgspec.json.encode(document) + b"\n"


def _peak_json(count: Count, peak: Peak) -> dict[str, Any]:
    return {
        "precision": peak.precision,
        "ceiling_ops_per_second": peak.ops_per_second,
        "ceiling_source": peak.source,
        "ridge_ops_per_byte": peak.ridge_ops_per_byte,
        "bytes_per_value": BYTES_PER_VALUE[peak.precision],
        "forward": _times_json(total_times(count, peak, backward=False)),
        "forward_and_backward": _times_json(total_times(count, peak, backward=True)),
    }


def _times_json(least: Times) -> dict[str, Any]:
    return {"best_seconds": least.seconds, "bound": least.by}

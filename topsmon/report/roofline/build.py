"""Build a roofline from what is known of a device: ceilings, rates, probes, a counted model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from topsmon import events, units
from topsmon.ceilings.measured import at_top_clock
from topsmon.device_state import DeviceState, PrecisionState
from topsmon.report.bounds import peaks
from topsmon.report.counted import Count, Layer, default_peak
from topsmon.report.roofline.doubts import doubt_notes
from topsmon.report.roofline.model import Bound, Point, Ridge, Roof, Roofline, Slope, Word
from topsmon.report.shown import AT_TOP_CLOCK, TOP_CLOCK

GEMM_BYTES = {
    "fp64": (8.0, 8.0),
    "fp32": (4.0, 4.0),
    "tf32": (4.0, 4.0),
    "fp16": (2.0, 2.0),
    "fp16_acc16": (2.0, 2.0),
    "bf16": (2.0, 2.0),
    "fp8": (1.0, 2.0),
    "int8": (1.0, 4.0),
    "fp4": (0.5 + 1 / 16, 2.0),
}
"""Bytes of one value of the operands and of the result of the GEMM that is measured. FP8 and FP4
give BF16, INT8 gives INT32; FP4 has one byte of scale for every 16 values."""
FIRST_FOR_GPU = ("bf16", "fp16", "fp32")
FIRST_FOR_CPU = ("fp32", "fp64")
INTENSITY, RATE = "intensity_flops_per_byte", "rate_ops_per_second"
MEASURED_MEMORY = (
    ("copy_bytes_per_second", "DRAM copy"),
    ("triad_bytes_per_second", "DRAM triad"),
)
MEASURED_CACHE = (
    ("l2_bytes_per_second", "L2"),
    ("last_level_bytes_per_second", "last-level cache"),
)
CACHE_SERIES = "bytes_per_second_over_bytes"
WORDS: tuple[Word, ...] = ("rated", "held", "measured")


def gemm_intensity(precision: str, shape: tuple[int, int, int]) -> float:
    """Operations a byte of a GEMM of M, N, K: 2MNK / bytes of A, B and C, each moved once.

    For square FP16 or BF16 that is N/3, for FP32 N/6.
    """
    m, n, k = shape
    operand, result = GEMM_BYTES[precision]
    return 2.0 * m * n * k / ((m * k + k * n) * operand + m * n * result)


def build(
    device: DeviceState,
    precisions: Sequence[str] | None = None,
    *,
    focus: str | None = None,
    count: Count | None = None,
    simulated: str | None = None,
) -> Roofline:
    """Return the roofline of a device.

    `precisions` None: all with a ceiling or a rate. `focus` None: the precision of most FLOPs in
    `count`, else the first usual one of this kind of device. ValueError: no such precision.
    """
    for key in (*(precisions or ()), *((focus,) if focus else ())):
        if key not in units.PRECISIONS:
            known = ", ".join(units.PRECISIONS)
            raise ValueError(f"no precision {key!r}: there are {known}")
    wanted = _known(device) if precisions is None else list(precisions)
    focus = focus or _default_focus(device, wanted, count)
    keys = [key for key in units.PRECISIONS if key in wanted or key == focus]
    roofs = tuple(roof for key in keys for roof in _roofs(device, key))
    slopes, memory_notes = _slopes(device)
    line = Roofline(
        device=device.key,
        device_label=device.label,
        device_name=units.plain(device.identity.name, 80),
        focus=focus,
        roofs=roofs,
        slopes=slopes,
        ridges=(),
        points=(),
        notes=(),
        simulated=simulated,
        at_top_clock=at_top_clock(device.ceilings),
    )
    work, work_notes = _work(device, keys)
    points = [_under_roof(line, point) for point in work]
    if count is not None:
        layers, layer_notes = _layers(line, count)
        points += layers
        work_notes += layer_notes
    if line.at_top_clock and any(roof.word == "rated" for roof in roofs):
        work_notes.append(f"{AT_TOP_CLOCK}: at {TOP_CLOCK}.")
    work_notes += doubt_notes([*roofs, *slopes, *points])
    return replace(
        line,
        ridges=tuple(_ridges(line, keys)),
        points=tuple(points),
        notes=(*_compute_notes(device, line), *memory_notes, *work_notes),
    )


def _known(device: DeviceState) -> list[str]:
    return [
        key
        for key in units.PRECISIONS
        if device.ceiling(key) is not None or _usable(device.rates[key]) is not None
    ]


def _default_focus(device: DeviceState, keys: Sequence[str], count: Count | None) -> str:
    if count is not None:
        peak = default_peak(count, peaks(device.ceilings))
        if peak is not None:
            return peak.precision
    order = FIRST_FOR_CPU if device.identity.kind == "cpu" else FIRST_FOR_GPU
    return next((key for key in (*order, *keys) if key in keys), order[0])


def _usable(state: PrecisionState) -> events.RateMeasured | None:
    """The rate to show; none while the latest result is wrong."""
    best = state.best
    if best is None or best.correct is False or not best.rate_ops_per_second:
        return None
    return best


def _roofs(device: DeviceState, key: str) -> list[Roof]:
    precision = units.PRECISIONS[key]
    found: list[Roof] = []

    def add(
        word: Word, rate: float, detail: str, *, low: float | None = None, why: str | None = None
    ) -> None:
        label, unit = precision.label, precision.unit
        roof = Roof(key, label, unit, word, rate, low, why is None, detail, why or "")
        found.append(roof)

    ceiling = device.ceiling(key)
    if ceiling is not None and ceiling.ops_per_second > 0:
        detail = f"{ceiling.origin}: {ceiling.source}"
        low = ceiling.ops_per_second_low
        if low is not None:
            detail = f"range from {units.rate(low, key)}: {ceiling.source}"
        add("rated", ceiling.ops_per_second, detail, low=low)
    best = _usable(device.rates[key])
    if best is None or best.rate_ops_per_second is None:
        return found
    held = device.held_ceiling(key)
    if held is not None and best.held_clock_mhz is not None:
        add("held", held, f"at {best.held_clock_mhz:.0f} MHz, held during the best burst")
    detail = _burst(device.rates[key], best)
    add("measured", best.rate_ops_per_second, detail, why=None if best.valid else _why(best))
    return found


def _burst(state: PrecisionState, result: events.RateMeasured) -> str:
    parts = [f"GEMM {_shape(result.shape)}" if result.shape else "GEMM"]
    parts += [_doubt(result)] if _doubt(result) else []
    if state.is_remembered:
        parts.append("from an earlier session")
    return ", ".join(parts)


def _doubt(result: events.RateMeasured | events.ProbeResult) -> str:
    """Why a number must be read with care, "" for a plain one."""
    if not result.valid:
        return "not valid"
    return "emulated" if result.emulated else ""


def _why(result: events.RateMeasured | events.ProbeResult) -> str:
    """The reason of what is not valid, "" for what is valid."""
    return "" if result.valid else units.plain(result.invalid_reason, 100)


def _shape(shape: tuple[int, int, int]) -> str:
    """M x N x K, the usual cube in short."""
    m, n, k = shape
    return f"{m}³" if m == n == k else f"{m}x{n}x{k}"


class _Memory(NamedTuple):
    slopes: tuple[Slope, ...]
    notes: tuple[str, ...]


def _slopes(device: DeviceState) -> _Memory:
    ceilings = device.ceilings
    rated = ceilings.memory_bandwidth_bytes_per_second if ceilings is not None else None
    source = ceilings.memory_bandwidth_source if ceilings is not None else ""
    slopes: list[Slope] = []
    if rated:
        slopes.append(Slope("DRAM", "memory", "rated", rated, detail=source))
    memory, memory_notes = _measured(device, "memory", MEASURED_MEMORY)
    slopes += memory
    cache, cache_notes = _measured(device, "cache", MEASURED_CACHE)
    slopes += cache or _ladder(device)
    notes = memory_notes + ([] if cache else cache_notes)
    if not rated:
        reason = source.removeprefix("none: ")
        missing = f"No rated memory bandwidth{': ' if reason else ''}{reason}."
        if memory:
            notes.insert(0, f"{missing} The slanted roof is the measured bandwidth alone.")
        else:
            notes.insert(0, f"{missing} None is measured either: there is no slanted roof.")
    return _Memory(tuple(slopes), tuple(notes))


def _measured(
    device: DeviceState, probe: str, wanted: Iterable[tuple[str, str]]
) -> tuple[list[Slope], list[str]]:
    """Measured slopes of one probe, and what it could not measure."""
    result = device.probes.get(probe)
    if result is None:
        return [], []
    if result.correct is False:
        return [], [f"The {probe} probe gave a wrong result: its bandwidths are left out."]
    slopes, notes = [], []
    level: Literal["memory", "cache"] = "cache" if probe == "cache" else "memory"
    for key, name in wanted:
        value = result.values.get(key)
        if value and value > 0:
            doubt, why = _doubt(result), _why(result)
            slope = Slope(name, level, "measured", value, result.valid, doubt, why)
            slopes.append(slope)
        elif key in result.unavailable:
            notes.append(f"{name} not measured: {units.plain(result.unavailable[key], 200)}.")
    return slopes, notes


def _ladder(device: DeviceState) -> list[Slope]:
    """The fastest step of the cache ladder, where no single cache was told apart."""
    result = device.probes.get("cache")
    steps = result.series.get(CACHE_SERIES, ()) if result is not None else ()
    if result is None or result.correct is False or not steps:
        return []
    size, best = max(steps, key=lambda step: step[1])
    if best <= 0:
        return []
    detail = f"fastest step of the ladder, working set {units.binary_bytes(size)}"
    doubt = _doubt(result)
    detail = f"{detail}, {doubt}" if doubt else detail
    return [Slope("cache", "cache", "measured", best, result.valid, detail, _why(result))]


def _work(device: DeviceState, keys: Sequence[str]) -> tuple[list[Point], list[str]]:
    """GEMM bursts and probes as points, and why some are none."""
    points: list[Point] = []
    notes: list[str] = []
    for key in keys:
        state = device.rates[key]
        results = list(state.by_shape.values())
        if not results and state.best is not None:
            results = [state.best]
        for result in results:
            if result.shape is None or not result.rate_ops_per_second or result.correct is False:
                continue
            doubt = _doubt(result)
            points.append(
                Point(
                    label=f"{units.PRECISIONS[key].label} {_shape(result.shape)}",
                    kind="gemm",
                    precision=key,
                    word="measured",
                    ops_per_byte=gemm_intensity(key, result.shape),
                    ops_per_second=result.rate_ops_per_second,
                    trusted=result.valid,
                    detail="from an earlier session" if state.is_remembered else doubt,
                    invalid_reason=_why(result),
                )
            )
    for name, probe in device.probes.items():
        if INTENSITY not in probe.values or RATE not in probe.values:
            continue
        label = units.plain(name, 60).replace("_", " ")
        intensity, rate = probe.values[INTENSITY], probe.values[RATE]
        if probe.correct is False:
            notes.append(f"{label} is left out: its result is wrong.")
        elif not intensity or not rate or intensity < 0 or rate < 0:
            reason = probe.unavailable.get(RATE) or probe.unavailable.get(INTENSITY)
            why = f": {units.plain(reason, 200)}" if reason else ""
            notes.append(f"{label} is left out: not measured{why}.")
        else:
            precision = probe.labels.get("precision")
            known = precision if precision in units.PRECISIONS else None
            points.append(
                Point(
                    label=label,
                    kind="probe",
                    precision=known,
                    word="measured",
                    ops_per_byte=intensity,
                    ops_per_second=rate,
                    trusted=probe.valid,
                    detail=_doubt(probe),
                    invalid_reason=_why(probe),
                )
            )
    return points, notes


def _best_roof(line: Roofline, precision: str | None) -> Roof | None:
    if precision is None:
        return None
    return line.roof(precision, "rated") or line.roof(precision, "measured")


def _under_roof(line: Roofline, point: Point) -> Point:
    """Add what the roof allows; left out where roof or slope is unknown and could be the limit."""
    roof = _best_roof(line, point.precision)
    slope = line.carrier(roof.word) if roof is not None else None
    if roof is None or slope is None:
        return point
    fed = slope.rate(point.ops_per_byte)
    bound: Bound = "memory" if fed < roof.ops_per_second else "compute"
    return replace(
        point,
        roof_ops_per_second=min(fed, roof.ops_per_second),
        bound=bound,
        roof_trusted=roof.trusted and slope.trusted,
        has_ceiling=roof.word == "rated",
    )


def _layers(line: Roofline, count: Count) -> tuple[list[Point], list[str]]:
    """Layers at the best possible rate for them, the most work first, alike ones once."""
    focus = units.PRECISIONS[line.focus]
    roof = _best_roof(line, line.focus)
    if roof is None:
        return [], [f"The layers are left out: there is no {focus.label} roof to put them under."]
    if line.carrier(roof.word) is None:
        return [], ["The layers are left out: without a memory bandwidth their rate is not known."]
    groups: dict[tuple[str, int, float], list[Layer]] = {}
    for layer in count.layers:
        moved = layer.forward.bytes_at(line.focus)
        if layer.forward.operations and moved:
            key = (layer.kind, layer.forward.operations, moved)
            groups.setdefault(key, []).append(layer)
    points = []
    for (kind, operations, moved), alike in sorted(
        groups.items(), key=lambda item: -item[0][1] * len(item[1])
    ):
        name = units.plain(f"{alike[0].path} {kind}".strip(), 80) or "(model)"
        empty = Point(
            label=name if len(alike) == 1 else f"{name} and {len(alike) - 1} alike",
            kind="layer",
            precision=line.focus,
            word="possible",
            ops_per_byte=operations / moved,
            ops_per_second=1.0,
        )
        placed = _under_roof(line, empty)
        assert placed.roof_ops_per_second is not None
        rate, trusted = placed.roof_ops_per_second, placed.roof_trusted
        points.append(replace(placed, ops_per_second=rate, trusted=trusted))
    note = (
        f"Layers of {units.plain(count.target, 80)}, forward, with values held in {focus.label}:"
        " counted, not run; each stands at the best rate possible for it."
    )
    return points, [note] if points else []


def _ridges(line: Roofline, keys: Iterable[str]) -> Iterable[Ridge]:
    for key in keys:
        for word in WORDS:
            roof, slope = line.roof(key, word), line.carrier(word)
            if roof is not None and slope is not None:
                yield Ridge(
                    precision=key,
                    label=roof.label,
                    roof_word=word,
                    slope=slope.name,
                    slope_word=slope.word,
                    ops_per_byte=roof.ops_per_second / slope.bytes_per_second,
                    ops_per_second=roof.ops_per_second,
                    trusted=roof.trusted and slope.trusted,
                )


def _compute_notes(device: DeviceState, line: Roofline) -> list[str]:
    """What is not known of the precision in focus."""
    key = line.focus
    label, state = units.PRECISIONS[key].label, device.rates[key]
    notes = []
    if line.roof(key, "rated") is None:
        reason = units.plain(device.absence(key) or "not known for this device", 300)
        notes.append(f"No rated {label} ceiling: {reason.removesuffix('.')}.")
    measured = line.roof(key, "measured")
    if measured is None:
        if state.best is not None and state.best.correct is False:
            notes.append(f"The latest {label} result is wrong: it is no measured roof.")
        elif state.unsupported is not None:
            reason = units.plain(state.unsupported, 300)
            notes.append(f"{label} cannot be measured here: {reason.removesuffix('.')}.")
        else:
            notes.append(f"{label} has not been measured yet.")
    elif line.roof(key, "rated") is not None and line.roof(key, "held") is None:
        notes.append(f"No ceiling at the held clock: the clock in the {label} burst is not known.")
    return notes

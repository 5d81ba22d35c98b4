"""What the screen says about one precision on one device, as values without layout."""

from __future__ import annotations

from dataclasses import dataclass

from topsmon import events
from topsmon.device_state import DeviceState
from topsmon.tui.view import View
from topsmon.units import NOT_AVAILABLE, PRECISIONS, duration, percent, plain, significant

DROP_ORDER = ("fp16_acc16", "fp4", "tf32", "fp64", "fp8", "int8", "fp16", "fp32", "bf16")
"""Rows that give way first where height is short, after those that the device cannot run."""


LAST_TRY = ", last try "
"""Between the age of a good rate and what disturbed a later measurement."""


@dataclass(frozen=True)
class RateRow:
    """One row. Texts are ready to draw; `explanation` stands where there is no bar.
    `status_short` is `status` for a narrow column.

    `ratio` is achieved / rated ceiling, `held` the ceiling at the held clock / rated ceiling.
    """

    key: str
    label: str
    ratio: float | None
    held: float | None
    rate: str
    unit: str
    ceiling: str
    ratio_text: str
    held_text: str
    speed_up: str
    shape: str
    status: str
    status_short: str
    status_role: str
    explanation: str
    history: tuple[float, ...]

    @property
    def runs(self) -> bool:
        """True where the device can run this precision, as far as is known."""
        return self.rate != "" or self.ceiling != ""


def rows(view: View, device: DeviceState, room: int) -> list[RateRow]:
    """Rows of all chosen precisions in fixed order, without the least telling if room is short."""
    found = [row(view, device, key) for key in PRECISIONS if key in view.precisions]
    if len(found) <= room:
        return found
    order = [entry.key for entry in found if not entry.runs]
    order += [key for key in DROP_ORDER if key not in order and key != view.precision]
    keep = {entry.key for entry in found}
    for key in order:
        if len(keep) <= max(room, 0):
            break
        keep.discard(key)
    return [entry for entry in found if entry.key in keep]


def hidden(view: View, device: DeviceState, shown: list[RateRow]) -> int:
    """Rows of precisions that the device can run and that are not among the shown ones."""
    keys = {entry.key for entry in shown}
    return sum(
        row(view, device, key).runs
        for key in PRECISIONS
        if key in view.precisions and key not in keys
    )


def row(view: View, device: DeviceState, key: str) -> RateRow:
    """Return the row of one precision."""
    state, ceiling = device.rates[key], device.ceiling(key)
    best = state.best
    rate = best.rate_ops_per_second if best is not None else None
    rated = ceiling.ops_per_second if ceiling is not None else None
    unit, scale = unit_and_scale(key, rated if rated is not None else rate)
    held = device.held_ceiling(key)
    status, status_role = _status(view, device, key)
    return RateRow(
        key=key,
        label=PRECISIONS[key].label,
        ratio=device.ratio(key),
        held=held / rated if held is not None and rated else None,
        rate=significant(rate / scale) if rate is not None else "",
        unit=unit if rate is not None or rated is not None else "",
        ceiling=_ceiling(ceiling, scale),
        ratio_text=percent(device.ratio(key)) if device.ratio(key) is not None else "",
        held_text=percent(device.held_ratio(key)) if held is not None else "",
        speed_up=_speed_up(view, device, best),
        shape=shape_text(view, best),
        status=status,
        status_short=_short(status),
        status_role=status_role,
        explanation=_explanation(device, key),
        history=tuple(state.history),
    )


def unit_and_scale(key: str, ops_per_second: float | None) -> tuple[str, float]:
    """Unit of a precision and its scale, so that all of a row is in the unit of its ceiling."""
    unit = PRECISIONS[key].unit
    if ops_per_second is not None and abs(ops_per_second) < 1e12:
        return unit.replace("T", "G", 1), 1e9
    return unit, 1e12


def _ceiling(ceiling: events.Ceiling | None, scale: float) -> str:
    if ceiling is None:
        return ""
    high = significant(ceiling.ops_per_second / scale)
    if ceiling.ops_per_second_low is None:
        return high
    return f"{significant(ceiling.ops_per_second_low / scale)}-{high}"


def _speed_up(view: View, device: DeviceState, best: events.RateMeasured | None) -> str:
    """Say how much faster than FP32, from two rates that can be trusted."""
    base = device.rates["fp32"].best
    if best is None or base is None or not (best.valid and base.valid):
        return ""
    if not best.rate_ops_per_second or not base.rate_ops_per_second:
        return ""
    ratio = best.rate_ops_per_second / base.rate_ops_per_second
    return f"{significant(ratio, 2)}{view.glyphs.times}"


def shape_text(view: View, best: events.RateMeasured | None) -> str:
    """The GEMM shape of a result, "8192×8192×8192" (M, N, K); "" where it has none."""
    if best is None or best.shape is None:
        return ""
    return view.glyphs.times.join(str(size) for size in best.shape)


def _status(view: View, device: DeviceState, key: str) -> tuple[str, str]:
    """Validity first, then origin, then age."""
    state = device.rates[key]
    best = state.best
    if best is None:
        return "", "muted"
    if best.correct is False:
        return "WRONG result", "fail"
    if not best.valid:
        return f"invalid: {_invalid(best)}", "warn"
    age = age_text(view.wall - best.time)
    if best.emulated:
        age = f"emulated, {age.removesuffix(' ago')}"
    latest = state.latest
    if latest is not None and not latest.valid:
        return f"{age}{LAST_TRY}{_invalid(latest)}", "muted"
    return age, "muted"


def _short(status: str) -> str:
    """A status for a narrow column: a sign instead of what disturbed the last try."""
    age, disturbed, _ = status.partition(LAST_TRY)
    return f"{age} !" if disturbed else age


def _invalid(result: events.RateMeasured) -> str:
    if result.cpu_share is not None and result.cpu_share < 0.9:
        return f"{percent(result.cpu_share, 0)} CPU"
    return plain(result.invalid_reason, 200) or "disturbed"


def age_text(seconds: float) -> str:
    """An age in coarse steps, so that a quiet screen stays quiet: "now", "20 s ago", "3 h ago"."""
    if seconds < 10:
        return "now"
    if seconds < 60:
        return f"{int(seconds // 10) * 10} s ago"
    return f"{duration(seconds)} ago"


def _explanation(device: DeviceState, key: str) -> str:
    """Why there is no bar; "" where there is one."""
    state = device.rates[key]
    best = state.best
    if best is not None and best.rate_ops_per_second is not None:
        if device.ceiling(key) is not None:
            return ""
        return f"no ceiling: {plain(device.absence(key) or 'unknown', 200)}"
    absence = device.absence(key)
    if absence is not None:
        return plain(absence, 200)
    if state.unsupported is not None:
        return plain(state.unsupported, 200)
    if best is not None:
        return plain(best.invalid_reason, 200) or f"no rate ({NOT_AVAILABLE})"
    return "measuring" if device.prober.measuring == key else "not measured"

"""Plan mode: each precision and laboratory probe of a list once, in order, then the end."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import lab, verdict
from .control import BurstAbandoned, Control
from .errors import NoMemoryError, UnsupportedError
from .schedule import ORDER
from .wire import Writer

if TYPE_CHECKING:
    from .bursts import Bench
    from .lab.context import Context

PRECISION_SECONDS = 1.5
"""Time budget of one precision: finding its speed, and its largest shapes."""
SHAPES = 3
QUICK_SECONDS = 1.0
"""With less time for a precision its bursts are short ones."""
EXIT_DONE = 0
EXIT_DEVICE_ERROR = 70

FAILURES = (RuntimeError, MemoryError, TypeError, AttributeError, ValueError, OSError, ImportError)


def unknown_keys(keys: Sequence[str]) -> list[str]:
    """Those that are neither a precision nor a probe."""
    return [key for key in keys if key not in ORDER and key not in lab.PROBES]


def time_scale(keys: Sequence[str], total_seconds: float | None) -> float:
    """By how much all budgets shrink so that their sum is `total_seconds`; they never grow."""
    if total_seconds is None:
        return 1.0
    nominal = sum(PRECISION_SECONDS if key in ORDER else lab.load(key).SECONDS for key in keys)
    return min(1.0, total_seconds / nominal)


class PlanRun:
    """Runs a plan on one device and writes its events.

    `new_context(time_scale)` makes what a laboratory probe gets.
    """

    def __init__(
        self,
        writer: Writer,
        control: Control,
        bench: Bench,
        new_context: Callable[[float, float], Context],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._writer = writer
        self._control = control
        self._bench = bench
        self._new_context = new_context
        self._clock = clock

    def run(self, keys: Sequence[str], total_seconds: float | None = None) -> int:
        """Measure all keys; returns the exit code. Raises `StopRequested`."""
        scale = time_scale(keys, total_seconds)
        for key in keys:
            if not self._until_done(key, scale):
                return EXIT_DEVICE_ERROR
        return EXIT_DONE

    def _until_done(self, key: str, scale: float) -> bool:
        """Measure a key, again from its start after a pause. False: the device is spoilt."""
        control = self._control
        while True:
            control.wait_while_paused(self._tell_idle)
            if control.chosen is not None and key in ORDER and key not in control.chosen:
                return True
            control.measuring = key if key in ORDER else None
            self._writer.emit("probe-started", precision=key)
            try:
                with contextlib.suppress(BurstAbandoned):
                    return self._measure(key, scale)
            finally:
                control.measuring = None
                self._bench.device.release()

    def _tell_idle(self, reason: str) -> None:
        self._writer.emit("prober-idle", reason=reason)

    def _measure(self, key: str, scale: float, *, again: bool = True) -> bool:
        """Measure a key; out of memory once, try again with half of it. False as above."""
        try:
            self._once(key, scale)
        except UnsupportedError as refusal:
            self._writer.emit("unsupported", precision=key, reason=str(refusal))
            return True
        except NoMemoryError as shortage:
            self._no_result(key, str(shortage))
            return True
        except FAILURES as error:
            if not again or verdict.kind_of_failure(error) != "memory":
                return self._failed(key, error)
        else:
            return True
        # The exception is gone by now, and with it the failed probe's tensors.
        self._bench.device.release()
        self._bench.memory_scale /= 2
        return self._measure(key, scale, again=False)

    def _failed(self, key: str, error: BaseException) -> bool:
        kind = verdict.kind_of_failure(error)
        message = verdict.in_one_line(error)
        if kind == "library":
            self._writer.emit("unsupported", precision=key, reason=message)
        else:
            self._no_result(key, message)
        if kind == "device":
            print(f"topsmon prober: {key}: {message}", file=sys.stderr, flush=True)
        return kind != "device"

    def _no_result(self, key: str, reason: str) -> None:
        """Say why a key has no number this time."""
        if key in ORDER:
            fields: dict[str, Any] = {"precision": key, "rate_ops_per_second": None}
            self._writer.emit("rate", **fields, valid=False, invalid_reason=reason)
        else:
            self._writer.emit("probe", probe=key, valid=False, invalid_reason=reason)

    def _once(self, key: str, scale: float) -> None:
        if key in ORDER:
            self._rates(key, PRECISION_SECONDS * scale)
            return
        context = self._new_context(scale, self._bench.memory_scale)
        began = self._clock()
        fields = lab.load(key).run(context)
        conditions = context.conditions()
        self._writer.emit("probe", **conclude(key, fields, conditions, self._clock() - began))

    def _rates(self, key: str, seconds: float) -> None:
        """Bursts with the largest shapes of a precision, largest first, as far as time allows."""
        bench = self._bench
        quick = seconds < QUICK_SECONDS
        began = self._clock()
        fields = bench.burst(key, -1, quick=quick)
        self._writer.emit("rate", **fields)
        shapes = bench.shapes(bench.gemms[key], bench.budget_bytes())[-SHAPES:]
        for shape in reversed([shape for shape in shapes if list(shape) != fields["shape"]]):
            before = self._clock()
            self._control.checkpoint()
            self._writer.emit("rate", **bench.burst_of(key, shape, quick=quick))
            now = self._clock()
            if now - began + (now - before) > seconds:
                return


def conclude(
    name: str, fields: dict[str, Any], conditions: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """A probe's own fields and the conditions it ran under as the fields of its event.

    What is no finite number becomes None with a reason: JSON has neither NaN nor infinity.
    """
    merged = {**conditions, **fields, "probe": name, "seconds": seconds}
    reasons = [conditions.get("invalid_reason", ""), fields.get("invalid_reason", "")]
    if merged.get("correct") is False and not fields.get("invalid_reason"):
        reasons.append(_wrong(merged))
    merged["invalid_reason"] = "; ".join(reason for reason in reasons if reason)
    merged["valid"] = fields.get("valid", True) and not merged["invalid_reason"]
    notes = (fields.get("note", ""), conditions.get("note", ""))
    merged["note"] = "; ".join(note for note in notes if note)
    values = fields.get("values", {})
    unavailable = dict(fields.get("unavailable", {}))
    for key, value in values.items():
        if value is not None and not math.isfinite(value):
            unavailable.setdefault(key, "the result is no finite number")
    merged["unavailable"] = unavailable
    merged["values"] = {
        key: value if value is not None and math.isfinite(value) else None
        for key, value in values.items()
    }
    merged["series"] = {
        key: [list(point) for point in points if all(math.isfinite(part) for part in point)]
        for key, points in fields.get("series", {}).items()
    }
    return merged


def _wrong(fields: dict[str, Any]) -> str:
    error, limit = fields.get("relative_error"), fields.get("error_limit")
    if error is None or limit is None:
        return "wrong result"
    return f"wrong result: relative error {error:.1e}, limit {limit:.0e}"

"""One burst: sizes that fit, operands, warming up, timed calls, the check; fields of the event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import gemm as gemms
from . import nvml, schedule, timing, verdict
from .devices import ProbeDevice
from .errors import NoMemoryError, UnsupportedError
from .precisions import Gemm, Operands, all_gemms
from .schedule import Shape

MEMORY_SHARE = 0.05
MEMORY_CAP_BYTES = 2 << 30


class Bench:
    """Measures precisions on one device and remembers what it learned of their speed.

    `memory_limit` caps the memory of a burst in bytes, `sizes` replaces the shapes by squares.
    `checkpoint` is called between any two pieces of work and may raise.
    """

    def __init__(
        self,
        device: ProbeDevice,
        checkpoint: Callable[[], None] = lambda: None,
        memory_limit: int | None = None,
        sizes: tuple[int, ...] = (),
    ) -> None:
        self.device = device
        self.gemms: dict[str, Gemm] = all_gemms()
        self.memory_scale = 1.0
        self._shapes = tuple((size, size, size) for size in sizes) or device.shapes
        self._checkpoint = checkpoint
        self._memory_limit = memory_limit
        self._rates: dict[str, float] = {}
        self._by_shape: dict[str, dict[Shape, float]] = {key: {} for key in self.gemms}

    def budget_bytes(self) -> float:
        """Memory for the next burst: 5 % of what is free now, at most 2 GiB and the limit."""
        free = self.device.free_bytes()
        budget = float(MEMORY_CAP_BYTES) if free is None else free * MEMORY_SHARE
        if self._memory_limit is not None:
            budget = min(budget, self._memory_limit)
        return min(budget, MEMORY_CAP_BYTES) * self.memory_scale

    def burst(self, key: str, turn: int, *, quick: bool = False) -> dict[str, Any]:
        """Measure a precision with the shape of its `turn`; returns the fields of a rate event.

        Raises `UnsupportedError`, `NoMemoryError`, what the checkpoint raises, torch's errors.
        """
        gemm = self.gemms[key]
        refusal = gemm.refusal(self.device.facts)
        if refusal is not None:
            raise UnsupportedError(refusal)
        budget = self.budget_bytes()
        if key not in self._rates:
            try:
                with gemm.mode():
                    self._rates[key] = self._explore(gemm, budget)
            finally:
                self.device.release()
        shapes = self.shapes(gemm, budget)
        if not shapes:
            raise NoMemoryError(f"{budget / 2**20:.0f} MiB of memory are too little for a GEMM")
        return self.burst_of(key, schedule.pick(shapes, turn, self._by_shape[key]), quick=quick)

    def burst_of(self, key: str, shape: Shape, *, quick: bool = False) -> dict[str, Any]:
        """Measure a precision with this very shape."""
        gemm = self.gemms[key]
        try:
            with gemm.mode():
                return self._measure(gemm, shape, quick=quick)
        finally:
            self.device.release()

    def shapes(self, gemm: Gemm, budget: float) -> list[Shape]:
        """The shapes that a precision is measured with, as far as its speed is known."""
        return schedule.choose_shapes(
            self._shapes,
            self._rates[gemm.key],
            self.device.call_limit_seconds,
            budget,
            lambda shape: gemms.needed_bytes(gemm, shape),
        )

    def _explore(self, gemm: Gemm, budget: float) -> float:
        timer = self.device.timer()

        def seconds_of(shape: Shape) -> float:
            operands = self._operands(gemm, shape)
            timer.batch(lambda: gemm.run(operands), 1)
            self._checkpoint()
            return min(timer.batch(lambda: gemm.run(operands), 3))

        def explore(known: schedule.Explored) -> schedule.Explored:
            return schedule.explore(
                seconds_of,
                self.device.call_limit_seconds,
                budget,
                lambda shape: gemms.needed_bytes(gemm, shape),
                known,
            )

        # A small call on several threads takes as long as the slowest of them waits for its core,
        # which says nothing of the size where others are at work. One thread comes first.
        with self.device.one_thread():
            alone = explore(schedule.Explored(0.0, self.device.explore_from))
        return (explore(alone) if (self.device.threads or 1) > 1 else alone).rate

    def _operands(self, gemm: Gemm, shape: Shape) -> Operands:
        return gemms.make_operands(gemm, shape, self.device.place, self._checkpoint)

    def _measure(self, gemm: Gemm, shape: Shape, *, quick: bool) -> dict[str, Any]:
        device = self.device
        size = gemms.set_bytes(gemm, shape)
        count = gemms.count_sets(size, device.cache_bytes, self.budget_bytes())
        sets = [self._operands(gemm, shape) for _ in range(count)]
        last: list[Any] = []
        turn = 0

        def run_call() -> None:
            nonlocal turn
            operands = sets[turn % count]
            turn += 1
            last[:] = operands, gemm.run(operands)

        watch = device.watch()
        try:
            burst = timing.measure(
                run_call,
                device.timer(),
                device.quick_plan if quick else device.plan,
                threads=device.threads or 1,
                checkpoint=self._checkpoint,
                begin=watch.begin,
                between=watch.between,
            )
        finally:
            held = watch.finish()
        checked = gemms.check(gemm, last[0], last[1], self._checkpoint)
        spread = timing.spread(burst.seconds)
        rate = schedule.operations(shape) / spread.median
        self._by_shape[gemm.key][shape] = rate
        self._rates[gemm.key] = max(self._rates.get(gemm.key, 0.0), rate)
        return self._fields(gemm, shape, burst, checked, held)

    def _fields(
        self,
        gemm: Gemm,
        shape: Shape,
        burst: timing.Burst,
        checked: verdict.Check,
        held: nvml.Held,
    ) -> dict[str, Any]:
        device = self.device
        spread = timing.spread(burst.seconds)
        work = schedule.operations(shape)
        use = verdict.cpu_use(*burst.usage, device.threads, device.quota)
        emulation = device.emulation(gemm)
        notes = [
            emulation or "",
            *device.remarks(gemm),
            schedule.remark(shape),
            verdict.accumulation_note(gemm.key, checked.error),
            use.note,
            held.note,
        ]
        return {
            "precision": gemm.key,
            "rate_ops_per_second": work / spread.median,
            "rate_low_ops_per_second": work / spread.upper,
            "rate_high_ops_per_second": work / spread.lower,
            "calls": spread.calls,
            "shape": list(shape),
            "burst_seconds": burst.window,
            "relative_error": checked.error,
            "error_limit": gemm.error_limit,
            **verdict.judge(gemm.key, checked, use.complaint),
            "emulated": emulation is not None,
            "held_clock_mhz": held.clock_mhz,
            "held_clock_source": held.source,
            "clock_event_mask": held.event_mask,
            "power_watts": held.power_watts,
            "cpu_share": use.share,
            "threads": use.threads,
            "method": (
                f"{gemm.call}, {verdict.inputs_of(gemm.key)}, right side column-major, median of "
                f"{spread.calls} calls {device.timing_words}"
            ),
            "torch_version": str(torch.__version__),
            "note": "; ".join(note for note in notes if note),
        }

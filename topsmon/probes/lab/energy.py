"""Operations per joule of a GEMM that keeps the device busy for a second or more."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from .. import meters
from ..errors import UnsupportedError
from .context import Context, judged
from .products import Product, largest_square, main_precision, precision

NAME = "energy"
SECONDS = 3.0
OPT_IN = False

SIZES = (256, 512, 1024, 2048, 4096, 8192)
CALL_SECONDS = 0.02
IDLE_SECONDS = 0.5
LOAD_SECONDS = 1.5
LEAST_LOAD_SECONDS = 1.0
"""A counter that moves every 0.1 s is read to 10 % in less."""
MOST_APART = 0.1
"""Share by which counter and samples may differ before it is said."""


class Meters:
    """The counter and the power reading of a device, either of them None where it has none."""

    def __init__(self, bench: Context) -> None:
        self.counter: Callable[[], float | None] | None = None
        self.power: Callable[[], float | None] | None = None
        self.counter_name = ""
        driver = bench.device.driver
        if driver is not None:
            self.counter, self.counter_name = driver.energy_joules, "energy counter"
            self.power = lambda: driver.read().power_watts
        elif bench.is_gpu:
            raise UnsupportedError("the driver's library, which knows the power, cannot be read")
        else:
            rapl = meters.Rapl()
            self.counter, self.counter_name = rapl.joules, rapl.source


class Account:
    """Energy and power over one stretch of time."""

    def __init__(self, sources: Meters, clock: Callable[[], float]) -> None:
        self._sources = sources
        self._clock = clock
        self._began = clock()
        self._ledger = meters.Ledger()
        self._watts: list[float] = []

    def look(self, calls: int = 0) -> None:
        """Read both once; `calls` were finished by now."""
        if self._sources.counter is not None:
            self._ledger.look(self._clock(), self._sources.counter(), calls)
        watts = self._sources.power() if self._sources.power is not None else None
        if watts is not None:
            self._watts.append(watts)

    def counted(self) -> meters.Used | None:
        """By the counter."""
        return self._ledger.used()

    def sampled_watts(self) -> float | None:
        """Mean of the power readings."""
        return statistics.fmean(self._watts) if self._watts else None

    def sampled(self, calls: int) -> meters.Used | None:
        """By the power readings, over the whole stretch."""
        watts, seconds = self.sampled_watts(), self._clock() - self._began
        return None if watts is None else meters.Used(seconds, watts * seconds, calls)


def disagreement(counted_watts: float, sampled_watts: float | None) -> str:
    """Say if the counter and the power readings tell different stories."""
    if sampled_watts is None or not sampled_watts:
        return ""
    apart = abs(counted_watts - sampled_watts) / max(counted_watts, sampled_watts)
    if apart <= MOST_APART:
        return ""
    return (
        f"the energy counter says {counted_watts:.1f} W and the power readings "
        f"{sampled_watts:.1f} W over the same time: do not trust either to better than that"
    )


def run(bench: Context) -> dict[str, Any]:
    """Operations/J, energy and mean power of the load, and the power before it."""
    sources = Meters(bench)
    idle = Account(sources, bench.clock)
    bench.rest(IDLE_SECONDS, idle.look)
    key = main_precision(bench)
    with precision(bench, key) as gemm:
        size = largest_square(bench, gemm, SIZES, CALL_SECONDS)
        product = Product(bench, gemm, (size, size, size))
        seconds = max(LOAD_SECONDS, LEAST_LOAD_SECONDS / bench.time_scale)
        bench.measure(product.run, 0.0)
        load = Account(sources, bench.clock)
        before = product.calls
        bench.measure(product.run, seconds, between=lambda: load.look(product.calls - before))
        checked = product.check()
    counted = load.counted()
    used = counted or load.sampled(product.calls - before)
    if used is None:
        raise UnsupportedError("this device gives neither its energy nor its power")
    still = idle.counted()
    idle_watts = still.watts if still is not None else idle.sampled_watts()
    notes = [disagreement(counted.watts, load.sampled_watts()) if counted else ""]
    if not bench.is_gpu:
        notes.append("a package's energy includes other processes on it")
    return {
        **judged(checked.error, gemm.error_limit),
        "values": {
            "ops_per_joule": used.calls * product.operations / used.joules,
            "energy_joules": used.joules,
            "window_seconds": used.seconds,
            "mean_watts": used.watts,
            "sampled_watts": load.sampled_watts(),
            "idle_watts": idle_watts,
        },
        "unavailable": {
            name: "no reading"
            for name, value in (("sampled_watts", load.sampled_watts()), ("idle_watts", idle_watts))
            if value is None
        },
        "labels": {
            "source": sources.counter_name if counted else "power samples",
            "precision": key,
            "shape": f"{size}x{size}x{size}",
        },
        "method": (
            f"{gemm.call}, {key}, {size}x{size}x{size} without a pause; "
            + ("energy between two steps of the counter" if counted else "mean power times time")
            + ", idle power included"
        ),
        "note": "; ".join(note for note in notes if note),
    }

"""Clock, power and throttle reasons of a GPU while a burst runs, read from the driver's library.

Through ctypes, since a training environment need not have an NVML package. Whatever fails gives
None: the rate is worth having without it.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
CLOCK_SM = 1
"""NVML_CLOCK_SM of nvml.h."""
PAUSE_SECONDS = 0.01
JOIN_SECONDS = 0.1


class Reading(NamedTuple):
    """One look: MHz, bits of nvmlClocksEventReasons, W."""

    clock_mhz: int | None
    event_mask: int | None
    power_watts: float | None


class Link(NamedTuple):
    """A PCIe link: generation and lanes now, and the most that GPU and slot can do together."""

    generation: int | None
    width: int | None
    generation_max: int | None
    width_max: int | None


class Held(NamedTuple):
    """What held during a burst: median MHz, OR of the bits, median W; None = not measured."""

    clock_mhz: float | None = None
    source: str = ""
    event_mask: int | None = None
    power_watts: float | None = None
    note: str = ""


class Nvml:
    """One GPU in the driver's library. Raises OSError if it cannot be had."""

    def __init__(self, uuid: str, library: Any = None) -> None:
        self._library = ctypes.CDLL(LIBRARY) if library is None else library
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise OSError(f"{LIBRARY} has no {name}") from None
        code = function(*arguments)
        if code != 0:
            raise OSError(f"{name} answered {code}")

    def _number(self, kind: Any, names: tuple[str, ...], *arguments: Any) -> int | None:
        """The number that the first of these functions gives that works, else None."""
        for name in names:
            value = kind()
            try:
                self._call(name, self._handle, *arguments, ctypes.byref(value))
            except OSError:
                continue
            return int(value.value)
        return None

    def read(self) -> Reading:
        """Look once; never raises."""
        milliwatts = self._number(ctypes.c_uint, ("nvmlDeviceGetPowerUsage",))
        return Reading(
            self._number(ctypes.c_uint, ("nvmlDeviceGetClockInfo",), CLOCK_SM),
            self._number(
                ctypes.c_ulonglong,
                (
                    "nvmlDeviceGetCurrentClocksEventReasons",
                    "nvmlDeviceGetCurrentClocksThrottleReasons",
                ),
            ),
            None if milliwatts is None else milliwatts / 1e3,
        )

    def energy_joules(self) -> float | None:
        """Energy used since the driver was loaded, None on boards before Volta; never raises."""
        millijoules = self._number(ctypes.c_ulonglong, ("nvmlDeviceGetTotalEnergyConsumption",))
        return None if millijoules is None else millijoules / 1e3

    def pcie_link(self) -> Link:
        """The link as it is now: an idle one drops to generation 1; never raises."""
        return Link(
            *(
                self._number(ctypes.c_uint, (f"nvmlDeviceGet{name}",))
                for name in (
                    "CurrPcieLinkGeneration",
                    "CurrPcieLinkWidth",
                    "MaxPcieLinkGeneration",
                    "MaxPcieLinkWidth",
                )
            )
        )


def held(readings: list[Reading]) -> Held:
    """Sum up a burst. Zero MHz is no reading."""
    clocks = [reading.clock_mhz for reading in readings if reading.clock_mhz]
    masks = [reading.event_mask for reading in readings if reading.event_mask is not None]
    powers = [reading.power_watts for reading in readings if reading.power_watts is not None]
    mask: int | None = None
    for value in masks:
        mask = (mask or 0) | value
    return Held(
        float(statistics.median(clocks)) if clocks else None,
        "NVML, median of the burst" if clocks else "",
        mask,
        statistics.median(powers) if powers else None,
    )


class Sampler:
    """Looks at the GPU from a thread of its own between `start` and `finish`.

    A driver call that does not come back costs this thread alone.
    """

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read
        self._readings: list[Reading] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def _look(self) -> None:
        while not self._done.is_set():
            self._readings.append(self._read())
            self._done.wait(PAUSE_SECONDS)

    def finish(self) -> Held:
        """Stop looking; returns what was seen."""
        self._done.set()
        self._thread.join(JOIN_SECONDS)
        return held(list(self._readings))

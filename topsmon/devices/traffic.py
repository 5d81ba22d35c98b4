"""Bytes per second over the PCIe link, from the GPU's byte counters.

The counters may wrap (nvml.h), and have been seen below 4 GiB only (dcgm-exporter#721): a link of
16 lanes passes that several times between two readings. Such a counter is read over a short time.
"""

from __future__ import annotations

from topsmon.devices.nvml import Unavailable
from topsmon.devices.rates import growth
from topsmon.devices.reader import FieldId, Number, Reader

TRANSMIT: FieldId = (197, 0)
RECEIVE: FieldId = (198, 0)
FIELDS = {
    TRANSMIT: "pcie_transmit_bytes_per_second",
    RECEIVE: "pcie_receive_bytes_per_second",
}
WRAP = 1 << 32
WINDOW_SECONDS = 0.02
"""The same time over which NVML itself measures (nvmlDeviceGetPcieThroughput)."""
FASTEST = 130e9
"""Bytes per second of the widest link there is (generation 6 x16), where it is not known."""
TOLERANCE = 1.5
"""What is above the link's rate by more than this cannot be: headers and clocks explain less."""


class PcieTraffic:
    """Rates of both directions. `fastest` is the link's rate in bytes per second."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._wide = False
        self._before: tuple[float, dict[FieldId, Number | Unavailable]] | None = None

    def readings(
        self, answers: dict[FieldId, Number | Unavailable], now: float, fastest: float = FASTEST
    ) -> dict[str, Number | Unavailable]:
        """Return the rates up to `answers`, which were read at `now`; nothing without news."""
        values = {field: answers[field] for field in FIELDS if field in answers}
        numbers = [value for value in values.values() if not isinstance(value, Unavailable)]
        if not numbers:
            self._before = None
            return {FIELDS[field]: value for field, value in values.items()}
        self._wide |= any(value >= WRAP for value in numbers)
        before = self._before
        if before is None or not (self._wide or fastest * (now - before[0]) < WRAP):
            before = (now, values)
            self._reader.sleep(WINDOW_SECONDS)
            now = self._reader.clock()
            values = self._reader.fields(FIELDS)
        self._before = (now, values)
        return {
            FIELDS[field]: _rate((before[0], before[1][field]), (now, value), fastest)
            for field, value in values.items()
            if field in before[1]
        }


def _rate(
    before: tuple[float, Number | Unavailable],
    after: tuple[float, Number | Unavailable],
    fastest: float,
) -> Number | Unavailable:
    if isinstance(before[1], Unavailable):
        return before[1]
    if isinstance(after[1], Unavailable):
        return after[1]
    return growth((before[0], before[1]), (after[0], after[1]), TOLERANCE * fastest)

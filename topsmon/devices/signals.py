"""What is read through field values: one driver call for each pace, counters made into rates."""

from __future__ import annotations

from typing import Any

from topsmon.devices import metrics, traffic
from topsmon.devices.metrics import Reading
from topsmon.devices.nvlink import NvLinks
from topsmon.devices.nvml import Call, Unavailable
from topsmon.devices.rates import Rate
from topsmon.devices.reader import FieldId, Reader

NANOSECOND = 1e-9
THROTTLE: dict[FieldId, str] = {
    (74, 0): "power",
    (75, 0): "thermal",
    (76, 0): "sync_boost",
    (77, 0): "board_limit",
    (79, 0): "reliability",
    (269, 0): "sw_thermal",
    (270, 0): "hw_thermal",
    (271, 0): "power_brake",
}
"""Counters of the time for which clocks were held down, in ns, and the reason."""
THROTTLE_LIMIT = 1.25
"""A share of time that is above 1 by more than two readings' jitter cannot be."""
MEMORY_TEMPERATURE: FieldId = (82, 0)
REPLAYS: FieldId = (94, 0)
RETIRED: tuple[FieldId, ...] = ((29, 0), (30, 0))
"""Pages retired for single-bit errors that came again, and for double-bit errors."""
RETIREMENT_PENDING: FieldId = (31, 0)
Answers = dict[FieldId, float | int | Unavailable]
Readings = dict[str, Any]
"""Fields of a sample: their values, or `Unavailable`. A field that is missing keeps its value."""


class Signals:
    """The signals of one device. The methods are due at the paces that their names tell."""

    def __init__(self, reader: Reader, *, link: bool) -> None:
        """`link`: the device has a PCIe link of its own."""
        self._reader = reader
        self._links = NvLinks(reader)
        self._traffic = traffic.PcieTraffic(reader) if link else None
        self._throttle = {field: Rate(THROTTLE_LIMIT, NANOSECOND) for field in THROTTLE}
        self._ratios: dict[str, float] = {}

    def look_at_links(self) -> Readings:
        """Count the NVLinks and those that are up."""
        return {**self._links.look()}

    def middle(self, fastest_pcie: float | None) -> Readings:
        """Read temperature of the memory, throttle time and traffic: about once a second.

        `fastest_pcie` is the rate of the PCIe link in bytes per second.
        """
        pcie = traffic.FIELDS if self._traffic is not None else ()
        now = self._reader.clock()
        answers = self._reader.fields(
            (*THROTTLE, MEMORY_TEMPERATURE, *pcie, *self._links.traffic_fields())
        )
        readings: Readings = {
            **self._throttled(answers, now),
            **_memory_temperature(answers),
            **self._links.traffic(answers, now),
        }
        # Last: it may read once more, after a short sleep.
        if self._traffic is not None:
            readings |= self._traffic.readings(answers, now, fastest_pcie or traffic.FASTEST)
        return readings

    def _throttled(self, answers: Answers, now: float) -> Readings:
        """Return the shares of time; a counter without news keeps its share."""
        refused: Unavailable | None = None
        for field, reason in THROTTLE.items():
            value = answers.get(field)
            if value is None:
                continue
            ratio = value
            if isinstance(value, Unavailable):
                self._throttle[field].forget()
            else:
                ratio = self._throttle[field].update(value, now)
            if isinstance(ratio, Unavailable):
                self._ratios.pop(reason, None)
                # What a reading to come may tell says more than what will never be.
                if refused is None or refused.kind == "unsupported":
                    refused = ratio
            else:
                self._ratios[reason] = ratio
        if not self._ratios and refused is None:
            return {}
        return {"throttle_ratios": dict(self._ratios) or refused}

    def errors(self) -> Readings:
        """Read replays and errors of the links: every few seconds."""
        answers = self._reader.fields((REPLAYS, *self._links.error_fields()))
        readings: Readings = {**self._links.errors(answers)}
        replays = answers.get(REPLAYS)
        if isinstance(replays, Unavailable) and replays.kind == "unsupported":
            replays = self._reader.read("replays", Call("nvmlDeviceGetPcieReplayCounter"))
        if replays is not None:
            readings["pcie_replays"] = metrics.count(replays)
        return readings

    def rare(self) -> Readings:
        """Read the retired pages: twice a minute."""
        answers = self._reader.fields((*RETIRED, RETIREMENT_PENDING))
        retired: list[Reading | None] = [answers.get(field) for field in RETIRED]
        for cause, one in enumerate(retired):
            if isinstance(one, Unavailable) and one.kind == "unsupported":
                retired[cause] = self._pages(cause)
        readings: Readings = {}
        if None not in retired:
            readings["pages_retired"] = _total(retired)
        pending: Reading | None = answers.get(RETIREMENT_PENDING)
        if isinstance(pending, Unavailable) and pending.kind == "unsupported":
            pending = self._reader.read(
                "page retirement", Call("nvmlDeviceGetRetiredPagesPendingStatus")
            )
        if pending is not None:
            readings["pages_retirement_pending"] = (
                pending if isinstance(pending, Unavailable) else metrics.flag(pending)
            )
        return readings

    def _pages(self, cause: int) -> Reading:
        pages = self._reader.read(
            f"retired pages {cause}", Call("nvmlDeviceGetRetiredPages", (cause,))
        )
        return pages if isinstance(pages, Unavailable) else len(pages)


def _memory_temperature(answers: Answers) -> Readings:
    value = answers.get(MEMORY_TEMPERATURE)
    if value is None:
        return {}
    reading = value if isinstance(value, Unavailable) else metrics.celsius(value)
    return {"memory_temperature_celsius": reading}


def _total(counts: list[Reading | None]) -> Reading:
    total = 0
    for one in counts:
        counted = metrics.count(one)
        if isinstance(counted, Unavailable):
            return counted
        total += int(counted)
    return total

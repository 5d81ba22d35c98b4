"""One GPU: its identity, its live readings, its slices and its processes, through one handle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from topsmon import ceilings, events
from topsmon.devices import metrics, mig, nvlink, nvml, rates, traffic
from topsmon.devices.gpm import HIDDEN, Gpm
from topsmon.devices.host import ROOT, HostFacts
from topsmon.devices.identity import Identity
from topsmon.devices.metrics import Reading
from topsmon.devices.nvml import Unavailable
from topsmon.devices.process_lists import Held, Key, ProcessLists
from topsmon.devices.process_shares import ProcessShares
from topsmon.devices.processes import ProcessTable
from topsmon.devices.reader import Reader
from topsmon.devices.selection import Found
from topsmon.devices.signals import Signals
from topsmon.devices.stamp import Stamp, stamp

PROCESS_SECONDS = 2.0
EARLY = 0.9
"""Share of its period after which a metric is due: ticks come a little early or late."""
UNIFIED = "unified with system memory; used = sum of processes, total = shared system RAM"
NO_PROCESS = "no process is visible"
"""Why the used memory of an integrated GPU, a sum over processes, is not known."""
STRANGER_ANSWERS = 3
"""So many metrics refused as an invalid argument, and none answered: the handle is void."""


class Gpu:
    """Use from one thread. Every method but `__init__` and `stamp` may hang in the driver.

    They raise GpuLostError and DriverGoneError; after either only `acquire` may be called.
    """

    def __init__(
        self,
        driver: nvml.Driver,
        watch: nvml.Watch,
        index: int,
        facts: HostFacts,
        table: ProcessTable,
        root: Path = ROOT,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.index = index
        self.key = f"gpu-{index}"
        self.uuid: str | None = None
        self.pci_bus_id: str | None = None
        self._facts = facts
        self._table = table
        self._root = root
        self._driver = driver
        self._watch = watch
        self._clock = clock
        self._sleep = sleep
        self._values: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}
        self._memory_bytes: int | None = None
        self._mig = False
        self._lists = ProcessLists(driver, watch)
        self._take_up(None)

    # Handle ---------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Get the handle, by UUID once it is known; HandleRefusedError where there is none."""
        if self.uuid is not None:
            answer = self._driver.call(self._watch, "nvmlDeviceGetHandleByUUID", self.uuid)
        else:
            answer = self._driver.call(self._watch, "nvmlDeviceGetHandleByIndex", self.index)
        if isinstance(answer, Unavailable):
            if answer.kind == "restart":
                raise nvml.DriverGoneError(answer)
            raise nvml.HandleRefusedError(answer)
        if not answer:
            # A NULL handle with SUCCESS has been seen; any use of it is a segmentation fault.
            raise nvml.HandleRefusedError(
                nvml.explain(nvml.GPU_IS_LOST, "nvmlDeviceGetHandleByIndex")
            )
        self._take_up(answer)

    def _take_up(self, handle: Any) -> None:
        """Begin with a handle: what the board could not do before it was lost it may do now."""
        self._reader = Reader(self._driver, self._watch, handle, self._clock, self._sleep)
        self._identity = Identity(self._reader, self.index, self._facts, self._root)
        self._signals: Signals | None = None
        self._gpm = Gpm(self._reader)
        self._counters_absent: Unavailable | None = None
        self._instances = mig.Instances(self._reader)
        self._shares = ProcessShares(self._driver, self._watch)
        self._read_at: dict[str, float] = {}
        self._note = ""
        self._slices: events.Slices | None = None

    def drop(self) -> None:
        """Forget the handle of a lost GPU and what was last read from it."""
        self._gpm.free()
        self._instances.free()
        self._take_up(None)
        self._values.clear()
        self._reasons.clear()

    @property
    def reader(self) -> Reader:
        """What reads through the present handle."""
        return self._reader

    # Identity -------------------------------------------------------------------------------------

    def find(self) -> Found:
        """Read what tells this GPU from others."""
        self.uuid = self._identity.uuid() or self.uuid
        return Found(self.index, self.uuid, self._identity.name(), self._identity.in_mig_mode())

    def identity(self) -> events.Device:
        """Read everything that does not change, but MIG mode (`mig_switched`)."""
        device = self._identity.read(self.stamp(), self.key, self.uuid)
        self._mig = device.mig
        self.pci_bus_id = device.pci_bus_id
        self._memory_bytes = device.memory_total_bytes
        self._signals = Signals(self._reader, link=not self._identity.unified)
        self._read_at["mig mode"] = self._clock()
        return device

    def mig_switched(self, now: float) -> bool:
        """True if MIG mode was switched on or off since the identity was read."""
        if not self._due("mig mode", mig.LOOK_SECONDS, now):
            return False
        switched = self._identity.in_mig_mode() != self._mig
        if switched:
            self._instances.free()
            self._take_up(self._reader.handle)
        return switched

    # Sample ---------------------------------------------------------------------------------------

    def _due(self, name: str, period_seconds: float, now: float) -> bool:
        if now - self._read_at.get(name, float("-inf")) < period_seconds * EARLY:
            return False
        self._read_at[name] = now
        return True

    def sample(self, now: float, *, counters: bool = False) -> events.DeviceSample:
        """Read what is due at monotonic time `now`; the rest is as it was read last.

        `counters`: read the GPM counters as well.
        """
        self._read_metrics(now)
        for readings in self._read_signals(now):
            self._keep(readings)
        if self._mig:
            self._read_slices(now, counters=counters)
        self._read_counters(now, counters=counters)
        self._doubt_zeros()
        values = self._values
        return events.DeviceSample(
            **self.stamp(),
            device=self.key,
            memory_note=UNIFIED if self._identity.unified else self._note,
            unavailable=dict(self._reasons),
            **values,
        )

    def _read_metrics(self, now: float) -> None:
        strange, answered = 0, 0
        for metric in (*metrics.LIVE, *metrics.HEALTH):
            if self._identity.unified and metric.name in {"memory", *metrics.PCIE_FIELDS}:
                continue
            if not self._due(metric.name, metric.period_seconds, now):
                continue
            answer = self._reader.read(metric.name, *metric.calls)
            if isinstance(answer, Unavailable):
                strange += answer.code == nvml.INVALID_ARGUMENT
                self._keep(dict.fromkeys(metric.fields, answer))
            else:
                answered += 1
                self._keep(metric.convert(answer))
        if strange >= STRANGER_ANSWERS and not answered:
            raise nvml.GpuLostError("the driver does not know this GPU any more (InvalidArgument)")

    def _read_signals(self, now: float) -> Iterator[dict[str, Any]]:
        signals = self._signals
        if signals is None:
            return
        if self._due("links", metrics.LINKS_SECONDS, now):
            yield signals.look_at_links()
        if self._due("signals", metrics.MIDDLE_SECONDS, now):
            yield signals.middle(self._pcie_fastest())
        if self._due("link errors", metrics.ERRORS_SECONDS, now):
            yield signals.errors()
        if self._due("pages", metrics.MAXIMA_SECONDS, now):
            yield signals.rare()

    def _pcie_fastest(self) -> float | None:
        generation = self._values.get("pcie_generation_max")
        width = self._values.get("pcie_width_max")
        return ceilings.pcie(generation, width) if generation and width else None

    def _read_counters(self, now: float, *, counters: bool) -> None:
        if not counters:
            self._keep({"counters": self._why_no_counters()})
            self._gpm.free()
        elif self._due("counters", metrics.MIDDLE_SECONDS, now):
            self._keep({"counters": self._gpm.read()})
        shown = self._values.get("counters")
        if shown is None:
            return
        # Its rates are means over the whole interval; where the byte counters wrap theirs are not.
        for field in (*traffic.FIELDS.values(), *nvlink.RATES):
            value = getattr(shown, field)
            if value is not None and (field in self._reasons or field in traffic.FIELDS.values()):
                self._keep({field: value})

    def _why_no_counters(self) -> Unavailable:
        """Why there are none while nobody looks: one sample tells once whether there could be."""
        if self._counters_absent is None:
            self._counters_absent = Unavailable(HIDDEN)
            answer = self._gpm.read()
            if isinstance(answer, Unavailable) and answer is not rates.FIRST:
                self._counters_absent = answer
        return self._counters_absent

    def _doubt_zeros(self) -> None:
        """Where a Jetson's driver answers 0 to everything, 0 % busy is no reading either.

        Nor is its list of processes, which is what the used memory is added up from.
        """
        zeros = ("sm_clock_mhz", "power_watts", "temperature_celsius")
        if self._facts.jetson and not any(field in self._values for field in zeros):
            doubted = Unavailable("NVML does not report it on Jetson; see tegrastats or jtop")
            for field in ("busy_ratio", "memory_busy_ratio", "memory_used_bytes"):
                if self._values.get(field) == 0 or self._reasons.get(field) == NO_PROCESS:
                    self._keep({field: doubted})

    def _keep(self, readings: dict[str, Any]) -> None:
        for field, reading in readings.items():
            if isinstance(reading, Unavailable):
                self._values.pop(field, None)
                self._reasons[field] = reading.reason
            else:
                self._values[field] = reading
                self._reasons.pop(field, None)

    # Slices ---------------------------------------------------------------------------------------

    def _read_slices(self, now: float, *, counters: bool) -> None:
        if not self._due("slices", metrics.MIDDLE_SECONDS, now):
            return
        slices = self._instances.read(now, counters=counters)
        self._note = mig.describe(slices, self._instances.problem)
        self._slices = events.Slices(**self.stamp(), device=self.key, slices=slices)

    def slices(self) -> events.Slices | None:
        """Return the MIG instances as the last sample found them, once."""
        slices, self._slices = self._slices, None
        return slices

    # Processes ------------------------------------------------------------------------------------

    def processes(self, now: float) -> events.Processes | None:
        """Return the processes, None while it is not time to look again."""
        if not self._due("processes", PROCESS_SECONDS, now):
            return None
        lists, capabilities, handle = self._lists, self._reader.capabilities, self._reader.handle
        lists.memory_limit = self._memory_bytes or lists.memory_limit
        instances = self._instances.handles(now) if self._mig else None
        held = lists.read(capabilities, handle, now, instances)
        if self._identity.unified:
            self._keep(self._shared_memory(held))
        if isinstance(held, Unavailable):
            return events.Processes(
                **self.stamp(), device=self.key, entries=None, reason=held.reason
            )
        shares = self._shares.read(capabilities, handle, now) if held else {}
        untold = any(one.memory_bytes is None for one in held.values())
        reasons = ["the driver does not tell memory per process"] if untold else []
        if held and self._shares.reason is not None:
            reasons.append(f"SM and memory share: {self._shares.reason}")
        return events.Processes(
            **self.stamp(),
            device=self.key,
            entries=tuple(lists.named(entry) for entry in self._table.entries(held, shares)),
            reason="; ".join(reasons),
        )

    def _shared_memory(self, held: dict[Key, Held] | Unavailable) -> dict[str, Reading]:
        """Used memory of an integrated GPU: what its processes hold, never the host's figure."""
        reading: Reading
        if isinstance(held, Unavailable):
            reading = held
        else:
            known = [one.memory_bytes for one in held.values() if one.memory_bytes is not None]
            reading = sum(known)
            if not held:
                # Zero would be a claim: in a container others' processes are not listed.
                reading = Unavailable(NO_PROCESS)
            elif len(known) < len(held):
                reading = Unavailable("the driver does not tell memory per process")
        none = Unavailable("integrated GPU: it has no memory and no PCIe link of its own")
        total = self._facts.memory_total_bytes
        return {
            "memory_used_bytes": reading,
            "memory_total_bytes": none if total is None else total,
            "memory_reserved_bytes": none,
            **dict.fromkeys((*metrics.PCIE_FIELDS, *traffic.FIELDS.values()), none),
        }

    def stamp(self) -> Stamp:
        """Return the stamp of an event of this GPU."""
        return stamp(f"{self._facts.hostname}/{self.key}")

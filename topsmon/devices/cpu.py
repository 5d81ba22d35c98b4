"""The processor as a device, and the load of the machine, as events."""

from __future__ import annotations

import time
from pathlib import Path

from topsmon import events
from topsmon.devices import host
from topsmon.devices.processes import ProcessTable
from topsmon.devices.sensors import Clock, PowerMeter, Thermometer
from topsmon.devices.stamp import Stamp, stamp

KEY = "cpu"
FIRST_SAMPLE = "needs two readings"
_NO_COUNT = "the kernel does not count CPU time here"


class CpuMonitor:
    """Reads the CPU and the host. Rates need two readings; the first is None, not 0."""

    def __init__(
        self, facts: host.HostFacts, table: ProcessTable | None, root: Path = host.ROOT
    ) -> None:
        self._facts = facts
        self._table = table
        self._root = root
        self._cpus = host.usable_cpus()
        self._clock = Clock.find(self._cpus, root)
        self._thermometer = Thermometer.find(root)
        self._power = PowerMeter.find(root)
        self._times: dict[int, host.CpuTimes] | None = None

    def identity(self) -> events.Device:
        """Return the CPU's identity event."""
        memory = host.usable_memory(self._root)
        unavailable = {}
        if self._clock.max_mhz is None:
            unavailable["sm_clock_max_mhz"] = "no cpufreq on this machine (virtual machine?)"
        return events.Device(
            **self._stamp(),
            device=KEY,
            kind="cpu",
            index=0,
            name=host.cpu_name(self._root),
            memory_total_bytes=memory.total_bytes,
            sm_clock_max_mhz=self._clock.max_mhz,
            unavailable=unavailable,
        )

    def prime(self) -> None:
        """Take the first reading, so that the next one has something to compare with."""
        self._times = host.cpu_times(self._root)
        self._power.read(time.monotonic())

    def sample(self) -> tuple[events.DeviceSample, events.HostSample]:
        """Return the readings since the last call, of the CPU as a device and of the host."""
        unavailable: dict[str, str] = {}

        def known(field: str, value: float | str) -> float | None:
            if isinstance(value, str):
                unavailable[field] = value
                return None
            return value

        before, self._times = self._times, host.cpu_times(self._root)
        busy = machine = None
        if before is not None:
            busy = host.busy_ratio(before, self._times, self._cpus)
            machine = host.busy_ratio(before, self._times, None)
        if busy is None:
            unavailable["busy_ratio"] = FIRST_SAMPLE if before is None else _NO_COUNT
        memory = host.usable_memory(self._root)
        sample = events.DeviceSample(
            **self._stamp(),
            device=KEY,
            busy_ratio=busy,
            memory_used_bytes=memory.used_bytes,
            memory_total_bytes=memory.total_bytes,
            memory_note=memory.note,
            sm_clock_mhz=known("sm_clock_mhz", self._clock.read()),
            power_watts=known("power_watts", self._power.read(time.monotonic())),
            temperature_celsius=known("temperature_celsius", self._thermometer.read()),
            unavailable=unavailable,
        )
        whole = self._stamp()
        whole["source"] = self._facts.hostname
        return sample, events.HostSample(
            **whole,
            cpu_busy_ratio=machine,
            memory_used_bytes=host.host_memory().used_bytes,
            load_1_minute=host.load_1_minute(),
        )

    def processes(self) -> events.Processes | None:
        """Return who else uses the CPU, None while it is not time to look again."""
        if self._table is None:
            return None
        entries = self._table.busy_processes()
        if entries is None:
            return None
        return events.Processes(**self._stamp(), device=KEY, entries=entries)

    def _stamp(self) -> Stamp:
        return stamp(f"{self._facts.hostname}/{KEY}")

"""One GPU: its identity, its live readings and its processes, through one handle."""

from __future__ import annotations

import time
from typing import Any

from topsmon import ceilings, events
from topsmon.devices import metrics, mig, nvml
from topsmon.devices.host import HostFacts
from topsmon.devices.metrics import Reading
from topsmon.devices.nvml import Call, Unavailable
from topsmon.devices.process_lists import ProcessLists
from topsmon.devices.processes import ProcessTable
from topsmon.devices.selection import Found
from topsmon.devices.stamp import Stamp, stamp
from topsmon.devices.text import readable, valid_text

PROCESS_SECONDS = 2.0
MIG_SECONDS = 10.0
EARLY = 0.9
"""Share of its period after which a metric is due: ticks come a little early or late."""
UNIFIED = "unified with system memory; used = sum of processes, total = shared system RAM"
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_INTEGRATED = frozenset({"3.2", "5.3", "6.2", "7.2", "8.7", "10.1", "11.0", "12.1"})
"""Compute capabilities of systems on a chip: Tegra, Xavier, Orin, Thor, GB10 (NVIDIA's list)."""
_INTEGRATED_NAMES = ("GB10", "Orin", "Xavier", "Tegra", "Thor", "Jetson")
"""Words in their names, for a driver that does not even tell the compute capability."""
_NVIDIA = 0x10DE
_THRESHOLD_SLOWDOWN = 1


class HandleRefusedError(Exception):
    """The driver gives no handle for a device; `answer` says why."""

    def __init__(self, answer: Unavailable) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Gpu:
    """Use from one thread. Every method but `__init__` may hang in the driver.

    They raise GpuLostError and DriverGoneError; after the former only `acquire` may be called.
    """

    def __init__(
        self,
        driver: nvml.Driver,
        watch: nvml.Watch,
        index: int,
        facts: HostFacts,
        table: ProcessTable,
    ) -> None:
        self.index = index
        self.key = f"gpu-{index}"
        self.uuid: str | None = None
        self.pci_bus_id: str | None = None
        self._facts = facts
        self._table = table
        self._driver = driver
        self._watch = watch
        self._handle: Any = None
        self._capabilities = nvml.Capabilities(driver, watch)
        self._read_at: dict[str, float] = {}
        self._values: dict[str, float | int] = {}
        self._reasons: dict[str, str] = {}
        self._unified = False
        self._memory_bytes: int | None = None
        self._mig = False
        self._instances = ""
        self._lists = ProcessLists(driver, watch)
        self._processes_at = float("-inf")

    # Handle ---------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Get the handle, by UUID once it is known; HandleRefusedError where there is none."""
        self._handle = None
        if self.uuid is not None:
            answer = self._driver.call(self._watch, "nvmlDeviceGetHandleByUUID", self.uuid)
        else:
            answer = self._driver.call(self._watch, "nvmlDeviceGetHandleByIndex", self.index)
        if isinstance(answer, Unavailable):
            if answer.kind == "restart":
                raise nvml.DriverGoneError(answer)
            raise HandleRefusedError(answer)
        if not answer:
            # A NULL handle with SUCCESS has been seen; any use of it is a segmentation fault.
            raise HandleRefusedError(nvml.explain(nvml.GPU_IS_LOST, "nvmlDeviceGetHandleByIndex"))
        self._handle = answer
        # What the board could not do before it was lost it may do now.
        self._capabilities = nvml.Capabilities(self._driver, self._watch)
        self._read_at.clear()
        self._processes_at = float("-inf")

    def drop(self) -> None:
        """Forget the handle of a lost GPU and what was last read from it."""
        self._handle = None
        self._values.clear()
        self._reasons.clear()

    def _read(self, name: str, *calls: Call) -> Any | Unavailable:
        return self._capabilities.read(name, calls, self._handle, time.monotonic())

    # Identity -------------------------------------------------------------------------------------

    def find(self) -> Found:
        """Read what tells this GPU from others."""
        uuid = valid_text(self._read("uuid", Call("nvmlDeviceGetUUID")))
        if uuid is not None and uuid.isascii() and uuid.isprintable() and uuid:
            self.uuid = uuid
        return Found(self.index, self.uuid, self._name(), self._in_mig_mode())

    def identity(self) -> events.Device:
        """Read everything that does not change."""
        reasons: dict[str, str] = {}

        def take(field: str, reading: Any) -> Any:
            if isinstance(reading, Unavailable):
                reasons[field] = reading.reason
                return None
            return reading

        # First of all: what a GPU in MIG mode cannot tell has its own words.
        self._mig = self._in_mig_mode()
        capability = take("compute_capability", self._compute_capability())
        self._capabilities.unsupported_words = self._unsupported_words()
        pci = self._pci()
        self.pci_bus_id = pci.get("pci_bus_id")
        architecture = take(
            "architecture", self._read("architecture", Call("nvmlDeviceGetArchitecture"))
        )
        total = take("memory_total_bytes", self._memory_total(capability))
        self._memory_bytes = total
        return events.Device(
            **self.stamp(),
            device=self.key,
            kind="gpu",
            index=self.index,
            name=self._name(),
            uuid=self.uuid,
            **pci,
            compute_capability=capability,
            architecture=_ARCHITECTURES.get(architecture),
            sm_count=take("sm_count", self._sm_count(capability)),
            memory_total_bytes=total,
            memory_bus_bits=take(
                "memory_bus_bits", self._number("nvmlDeviceGetMemoryBusWidth", 1, 1 << 16)
            ),
            sm_clock_max_mhz=take(
                "sm_clock_max_mhz",
                self._number("nvmlDeviceGetMaxClockInfo", 1, 20_000, metrics.CLOCK_SM),
            ),
            memory_clock_max_mhz=take(
                "memory_clock_max_mhz",
                self._number("nvmlDeviceGetMaxClockInfo", 1, 50_000, metrics.CLOCK_MEMORY),
            ),
            power_limit_default_watts=take(
                "power_limit_default_watts",
                metrics.divided(
                    self._number("nvmlDeviceGetPowerManagementDefaultLimit", 1, 1e7), 1000
                ),
            ),
            power_limit_max_watts=take("power_limit_max_watts", self._power_limit_max()),
            temperature_slowdown_celsius=take(
                "temperature_slowdown_celsius",
                self._number("nvmlDeviceGetTemperatureThreshold", 1, 200, _THRESHOLD_SLOWDOWN),
            ),
            mig=self._mig,
            unavailable=reasons,
        )

    def _unsupported_words(self) -> str | None:
        if self._mig:
            return "not reported for a GPU in MIG mode (NVML NotSupported)"
        if self._facts.wsl:
            return "WSL2/WDDM does not report it (NVML NotSupported)"
        if self._facts.jetson:
            return "NVML does not report it on Jetson; see tegrastats or jtop"
        return None

    def _in_mig_mode(self) -> bool:
        mode = self._read("mig", Call("nvmlDeviceGetMigMode"))
        return not isinstance(mode, Unavailable) and mode[0] == 1

    def _number(self, function: str, low: float, high: float, *arguments: int) -> Reading:
        name = " ".join([function, *map(str, arguments)])
        answer = self._read(name, Call(function, arguments))
        return answer if isinstance(answer, Unavailable) else metrics.bounded(answer, low, high)

    def _name(self) -> str:
        name = valid_text(self._read("name", Call("nvmlDeviceGetName")))
        if name is None or not readable(name):
            return f"NVIDIA GPU {self.index} (name unreadable)"
        return name

    def _compute_capability(self) -> str | Unavailable:
        answer = self._read("capability", Call("nvmlDeviceGetCudaComputeCapability"))
        if isinstance(answer, Unavailable):
            return answer
        major, minor = answer
        return f"{major}.{minor}" if 1 <= major < 100 and 0 <= minor < 10 else _odd(answer)

    def _sm_count(self, capability: str | None) -> Reading:
        """NVML counts FP32 lanes; how many an SM has is known per compute capability."""
        cores = self._number("nvmlDeviceGetNumGpuCores", 1, 1 << 24)
        if isinstance(cores, Unavailable):
            return cores
        lanes = None if capability is None else ceilings.fp32_lanes_per_sm(capability)
        if lanes is None or cores % lanes:
            return Unavailable(f"cores per SM of compute capability {capability} are not known")
        return int(cores) // lanes

    def _power_limit_max(self) -> Reading:
        answer = self._read(
            "power constraints", Call("nvmlDeviceGetPowerManagementLimitConstraints")
        )
        if isinstance(answer, Unavailable):
            return answer
        return metrics.divided(metrics.bounded(answer[1], 1, 1e7), 1000)

    def _pci(self) -> dict[str, str | None]:
        pci = self._read("pci", Call("nvmlDeviceGetPciInfo_v3"), Call("nvmlDeviceGetPciInfo"))
        if isinstance(pci, Unavailable):
            return {}
        device, vendor = divmod(pci.pciDeviceId, 1 << 16)
        subdevice, subvendor = divmod(pci.pciSubSystemId, 1 << 16)
        try:
            bus = valid_text(pci.busId)
        except UnicodeDecodeError:
            bus = f"{pci.domain:08X}:{pci.bus:02X}:{pci.device:02X}.0"
        return {
            "pci_bus_id": bus or None,
            "pci_device_id": f"{device:04X}" if vendor == _NVIDIA else None,
            "pci_subsystem_id": f"{subvendor:04X}:{subdevice:04X}" if subvendor else None,
        }

    def _memory_total(self, capability: str | None) -> Reading:
        """Device memory in bytes; on a GPU that shares the system's, all of that."""
        answer = self._read(metrics.MEMORY.name, *metrics.MEMORY.calls)
        refused = isinstance(answer, Unavailable) and answer.kind == "unsupported"
        empty = not isinstance(answer, Unavailable) and answer.total == 0
        self._unified = (refused or empty) and self._is_integrated(capability)
        if self._unified:
            total = self._facts.memory_total_bytes
            return Unavailable("system memory cannot be read") if total is None else total
        if isinstance(answer, Unavailable):
            return answer
        return metrics.memory(answer)["memory_total_bytes"]

    def _is_integrated(self, capability: str | None) -> bool:
        if capability is not None:
            return capability in _INTEGRATED
        return any(word in self._name() for word in _INTEGRATED_NAMES)

    # Sample ---------------------------------------------------------------------------------------

    def sample(self, now: float) -> events.DeviceSample:
        """Read what is due at monotonic time `now`; the rest is as it was read last."""
        for metric in (*metrics.LIVE, *metrics.HEALTH):
            if self._unified and metric.name in {"memory", *metrics.PCIE_FIELDS}:
                continue
            if now - self._read_at.get(metric.name, float("-inf")) < metric.period_seconds * EARLY:
                continue
            self._read_at[metric.name] = now
            answer = self._read(metric.name, *metric.calls)
            if isinstance(answer, Unavailable):
                self._keep(dict.fromkeys(metric.fields, answer))
            else:
                self._keep(metric.convert(answer))
        values: dict[str, Any] = self._values
        return events.DeviceSample(
            **self.stamp(),
            device=self.key,
            memory_note=UNIFIED if self._unified else self._mig_note(now),
            unavailable=dict(self._reasons),
            **values,
        )

    def _mig_note(self, now: float) -> str:
        """The instances of a GPU in MIG mode, looked up now and then; else nothing."""
        if not self._mig:
            return ""
        if now - self._read_at.get("mig instances", float("-inf")) >= MIG_SECONDS * EARLY:
            self._read_at["mig instances"] = now
            self._instances = mig.describe(self._driver, self._watch, self._handle)
        return self._instances

    def _keep(self, readings: dict[str, Reading]) -> None:
        for field, reading in readings.items():
            if isinstance(reading, Unavailable):
                self._values.pop(field, None)
                self._reasons[field] = reading.reason
            else:
                self._values[field] = reading
                self._reasons.pop(field, None)

    # Processes ------------------------------------------------------------------------------------

    def processes(self, now: float) -> events.Processes | None:
        """Return the compute processes, None while it is not time to look again."""
        if now - self._processes_at < PROCESS_SECONDS * EARLY:
            return None
        self._processes_at = now
        lists = self._lists
        lists.memory_limit = self._memory_bytes or lists.memory_limit
        compute = lists.compute(self._capabilities, self._handle, now)
        if self._unified:
            self._keep(self._shared_memory(compute, now))
        if isinstance(compute, Unavailable):
            return events.Processes(
                **self.stamp(), device=self.key, entries=None, reason=compute.reason
            )
        entries = tuple(lists.named(entry) for entry in self._table.entries(compute))
        untold = bool(compute) and None in compute.values()
        return events.Processes(
            **self.stamp(),
            device=self.key,
            entries=entries,
            reason="the driver does not tell memory per process" if untold else "",
        )

    def _shared_memory(
        self, compute: dict[int, int | None] | Unavailable, now: float
    ) -> dict[str, Reading]:
        """Used memory of an integrated GPU: what its processes hold, never the host's figure."""
        reading: Reading
        if isinstance(compute, Unavailable):
            reading = compute
        else:
            held = self._lists.graphics(self._capabilities, self._handle, now) | compute
            known = [used for used in held.values() if used is not None]
            reading = sum(known)
            if len(known) < len(held):
                reading = Unavailable("the driver does not tell memory per process")
        none = Unavailable("integrated GPU: it has no memory and no PCIe link of its own")
        total = self._facts.memory_total_bytes
        return {
            "memory_used_bytes": reading,
            "memory_total_bytes": none if total is None else total,
            "memory_reserved_bytes": none,
            **dict.fromkeys(metrics.PCIE_FIELDS, none),
        }

    def stamp(self) -> Stamp:
        """Return the stamp of an event of this GPU."""
        return stamp(f"{self._facts.hostname}/{self.key}")


def _odd(answer: object) -> Unavailable:
    return metrics.implausible(answer)

"""Who a GPU is: everything about it that does not change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from topsmon import ceilings, events
from topsmon.devices import metrics, topology
from topsmon.devices.host import ROOT, HostFacts
from topsmon.devices.metrics import Reading
from topsmon.devices.nvml import Call, Unavailable
from topsmon.devices.reader import Reader
from topsmon.devices.stamp import Stamp
from topsmon.devices.text import readable, valid_text

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
_VIRTUAL_GPU = 2
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU: a virtual GPU inside a virtual machine."""
_VIRTUAL_NAME = re.compile(r"^GRID |-\d+[ABCQ]$")
"""Names of vGPU types, "GRID T4-16Q" or "NVIDIA A100-40C" (NVIDIA vGPU Software User Guide)."""


class Identity:
    """Reads the identity of one device through its reader.

    `unified` is True, once `read` was called, for a GPU that has no memory of its own.
    """

    def __init__(self, reader: Reader, index: int, facts: HostFacts, root: Path = ROOT) -> None:
        self.unified = False
        self._reader = reader
        self._index = index
        self._facts = facts
        self._root = root

    def uuid(self) -> str | None:
        """Return the UUID, None where the driver gives none that can be one."""
        uuid = valid_text(self._reader.read("uuid", Call("nvmlDeviceGetUUID")))
        usable = uuid is not None and uuid.isascii() and uuid.isprintable() and uuid
        return uuid if usable else None

    def name(self) -> str:
        """Return the name, or words in its place."""
        name = valid_text(self._reader.read("name", Call("nvmlDeviceGetName")))
        if name is not None and readable(name):
            return name
        if self._facts.jetson:
            return f"NVIDIA Jetson GPU {self._index}"
        return f"NVIDIA GPU {self._index} (name unreadable)"

    def in_mig_mode(self) -> bool:
        """True while the GPU is cut into MIG instances, or may be."""
        mode = self._reader.read("mig", Call("nvmlDeviceGetMigMode"))
        return not isinstance(mode, Unavailable) and mode[0] == 1

    def read(self, stamped: Stamp, key: str, uuid: str | None) -> events.Device:
        """Read everything that does not change."""
        reasons: dict[str, str] = {}

        def take(field: str, reading: Any) -> Any:
            if isinstance(reading, Unavailable):
                reasons[field] = reading.reason
                return None
            return reading

        # First of all: what a GPU in MIG mode cannot tell has its own words.
        cut = self.in_mig_mode()
        capability = take("compute_capability", self._compute_capability())
        self._reader.capabilities.unsupported_words = self._unsupported_words(cut=cut)
        pci = self._pci()
        place = topology.place(pci.get("pci_bus_id"), self._root)
        architecture = take(
            "architecture", self._reader.read("architecture", Call("nvmlDeviceGetArchitecture"))
        )
        return events.Device(
            **stamped,
            device=key,
            kind="gpu",
            index=self._index,
            name=self.name(),
            uuid=uuid,
            **pci,
            compute_capability=capability,
            architecture=_ARCHITECTURES.get(architecture),
            sm_count=take("sm_count", self._sm_count(capability)),
            memory_total_bytes=take("memory_total_bytes", self._memory_total(capability)),
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
            mig=cut,
            unavailable=reasons,
            pci_path=place.path,
            numa_node=place.numa_node,
        )

    def _unsupported_words(self, *, cut: bool) -> str | None:
        if cut:
            return "not reported for a GPU in MIG mode (NVML NotSupported)"
        if self._facts.wsl:
            return "WSL2/WDDM does not report it (NVML NotSupported)"
        if self._facts.jetson:
            return "NVML does not report it on Jetson; see tegrastats or jtop"
        mode = self._reader.read("virtualisation", Call("nvmlDeviceGetVirtualizationMode"))
        if mode == _VIRTUAL_GPU or _VIRTUAL_NAME.search(self.name()):
            return "not reported to a virtual machine for its vGPU (NVML NotSupported)"
        return None

    def _number(self, function: str, low: float, high: float, *arguments: int) -> Reading:
        name = " ".join([function, *map(str, arguments)])
        answer = self._reader.read(name, Call(function, arguments))
        return answer if isinstance(answer, Unavailable) else metrics.bounded(answer, low, high)

    def _compute_capability(self) -> str | Unavailable:
        answer = self._reader.read("capability", Call("nvmlDeviceGetCudaComputeCapability"))
        if isinstance(answer, Unavailable):
            return answer
        major, minor = answer
        if 1 <= major < 100 and 0 <= minor < 10:
            return f"{major}.{minor}"
        return metrics.implausible(answer)

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
        answer = self._reader.read(
            "power constraints", Call("nvmlDeviceGetPowerManagementLimitConstraints")
        )
        if isinstance(answer, Unavailable):
            return answer
        return metrics.divided(metrics.bounded(answer[1], 1, 1e7), 1000)

    def _pci(self) -> dict[str, str | None]:
        pci = self._reader.read(
            "pci", Call("nvmlDeviceGetPciInfo_v3"), Call("nvmlDeviceGetPciInfo")
        )
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
        answer = self._reader.read(metrics.MEMORY.name, *metrics.MEMORY.calls)
        refused = isinstance(answer, Unavailable) and answer.kind == "unsupported"
        empty = not isinstance(answer, Unavailable) and answer.total == 0
        self.unified = (refused or empty) and self._is_integrated(capability)
        if self.unified:
            total = self._facts.memory_total_bytes
            return Unavailable("system memory cannot be read") if total is None else total
        if isinstance(answer, Unavailable):
            return answer
        return metrics.memory(answer)["memory_total_bytes"]

    def _is_integrated(self, capability: str | None) -> bool:
        if capability is not None:
            return capability in _INTEGRATED
        return self._facts.jetson or any(word in self.name() for word in _INTEGRATED_NAMES)

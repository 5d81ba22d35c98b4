"""Whether a GPU sleeps, read without waking it: any call to the driver would.

The kernel's runtime power management shows the state of each PCI device in sysfs
(Documentation/ABI/testing/sysfs-devices-power).
"""

from __future__ import annotations

import re
from pathlib import Path

from topsmon.devices.host import ROOT, read_text

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"
_BUS_ID = re.compile(r"(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")


def is_asleep(pci_bus_id: str | None, root: Path = ROOT) -> bool:
    """True if the device is suspended."""
    device = sysfs_device(pci_bus_id, root)
    return device is not None and _suspended(device)


def sysfs_device(pci_bus_id: str | None, root: Path = ROOT) -> Path | None:
    """Return the folder of a PCI device. NVML writes the domain with 8 digits, sysfs with 4."""
    match = _BUS_ID.fullmatch((pci_bus_id or "").lower())
    return None if match is None else root / "sys/bus/pci/devices" / match.group(1)


def sleeping_gpus(root: Path = ROOT) -> list[str]:
    """Return the PCI addresses of NVIDIA's GPUs if every one of them is suspended, else nothing."""
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = (read_text(device / "vendor") or "").strip()
        kind = (read_text(device / "class") or "").strip()
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS):
            if not _suspended(device):
                return []
            found.append(device.name)
    return found


def has_nvidia_device(root: Path = ROOT) -> bool:
    """True unless neither NVIDIA's kernel module nor any PCI device of NVIDIA is to be seen.

    True as well where the kernel shows no PCI devices at all: then nobody can tell.
    """
    if (root / "proc/driver/nvidia").exists():
        return True
    bus = root / "sys/bus/pci/devices"
    if not bus.is_dir():
        return True
    return any((read_text(device / "vendor") or "").strip() == _NVIDIA for device in bus.glob("*"))


def _suspended(device: Path) -> bool:
    return (read_text(device / "power/runtime_status") or "").strip() == "suspended"

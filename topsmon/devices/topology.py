"""How near GPUs are to one another: the PCI bridges above them and their NUMA nodes.

Read from sysfs, without a driver call. The words in brackets are those of `nvidia-smi topo -m`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from topsmon import events
from topsmon.devices.host import ROOT, read_number
from topsmon.devices.power_state import sysfs_device

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|pci[0-9a-f]{4}:[0-9a-f]{2}")


class Place(NamedTuple):
    """Root complex and bridges above a device, from the root down; the NUMA node if there are."""

    path: tuple[str, ...] = ()
    numa_node: int | None = None


def place(pci_bus_id: str | None, root: Path = ROOT) -> Place:
    """Return where the device is; nothing where the kernel does not show it."""
    device = sysfs_device(pci_bus_id, root)
    if device is None or not device.exists():
        return Place()
    parts = device.resolve().parts
    node = read_number(device / "numa_node")
    return Place(
        tuple(part for part in parts[:-1] if _ADDRESS.fullmatch(part)),
        node if node is not None and node >= 0 else None,
    )


def between(one: events.Device, other: events.Device) -> str | None:
    """Return what traffic over PCIe between two devices crosses, None where it is not known."""
    if not one.pci_path or not other.pci_path:
        return None
    if one.pci_path[0] == other.pci_path[0]:
        shared = sum(1 for a, b in zip(one.pci_path, other.pci_path, strict=False) if a == b)
        if shared == 1:
            return "a PCIe host bridge (PHB)"
        below = max(len(one.pci_path), len(other.pci_path)) - shared
        return "one PCIe bridge (PIX)" if below <= 1 else "several PCIe bridges (PXB)"
    if one.numa_node is None or other.numa_node is None:
        return "PCIe host bridges"
    if one.numa_node == other.numa_node:
        return "PCIe host bridges of one NUMA node (NODE)"
    return "the link between NUMA nodes (SYS)"

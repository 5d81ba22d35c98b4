"""Where a GPU is: the PCI bridges above it and its NUMA node.

Read from sysfs, without a driver call.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

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

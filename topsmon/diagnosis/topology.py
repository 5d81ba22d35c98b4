"""How near GPUs are to one another. The words in brackets are those of `nvidia-smi topo -m`."""

from __future__ import annotations

from topsmon import events


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

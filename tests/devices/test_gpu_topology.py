"""How near two GPUs are, from the kernel's PCI tree (paths as on real machines)."""

from __future__ import annotations

from pathlib import Path

import pytest
from poller_process import Read, one_gpu

from topsmon import events
from topsmon.devices import topology
from topsmon.diagnosis.topology import between


def tree(root: Path, path: str, node: int) -> None:
    """A device with this path under /sys/devices, as the kernel links it."""
    folder = root / "sys/devices" / path
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / folder.name).symlink_to(folder)


def device(root: Path, bus: str) -> events.Device:
    place = topology.place(bus, root)
    return events.Device(
        time=0.0,
        monotonic=0.0,
        source="test",
        device=bus,
        kind="gpu",
        index=0,
        name="GPU",
        pci_path=place.path,
        numa_node=place.numa_node,
    )


def test_the_path_is_read_from_the_root_down(tmp_path: Path) -> None:
    tree(tmp_path, "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0", 1)
    place = topology.place("00000000:19:00.0", tmp_path)
    assert place == (("pci0000:16", "0000:16:01.0", "0000:17:00.0", "0000:18:00.0"), 1)


@pytest.mark.parametrize(
    ("other", "node", "word"),
    [
        ("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:1a:00.0", 0, "PIX"),
        ("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0", 0, "PIX"),
        ("pci0000:16/0000:16:01.0/0000:20:00.0/0000:21:00.0/0000:22:00.0", 0, "PXB"),
        ("pci0000:16/0000:16:02.0/0000:2a:00.0", 0, "PHB"),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", 0, "NODE"),
        ("pci0000:c0/0000:c0:01.0/0000:c1:00.0", 1, "SYS"),
    ],
)
def test_what_lies_between_two_gpus(tmp_path: Path, other: str, node: int, word: str) -> None:
    tree(tmp_path, "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0", 0)
    tree(tmp_path, other, node)
    one, two = device(tmp_path, "0000:19:00.0"), device(tmp_path, other.rpartition("/")[2])
    for words in (between(one, two), between(two, one)):
        assert words is not None
        assert f"({word})" in words


def test_what_the_kernel_does_not_show_is_not_known(tmp_path: Path) -> None:
    assert topology.place("00000000:19:00.0", tmp_path) == ((), None)
    assert topology.place(None, tmp_path) == ((), None)
    one = device(tmp_path, "0000:19:00.0")
    assert between(one, one) is None


def test_no_numa_node_is_none(tmp_path: Path) -> None:
    """The kernel writes -1 where the machine has no NUMA."""
    tree(tmp_path, "pci0000:00/0000:00:01.0/0000:01:00.0", -1)
    assert topology.place("0000:01:00.0", tmp_path).numa_node is None


def test_the_identity_has_its_place(read: Read, tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, "pci0000:64/0000:64:01.0/0000:65:00.0", 1)
    content = one_gpu(pci_bus_id="00000000:65:00.0", pci_device="2330", pci_subsystem="10DE:16C1")
    found = read(content, [0.0], root=str(root)).device
    assert (found.pci_path, found.numa_node) == (("pci0000:64", "0000:64:01.0"), 1)

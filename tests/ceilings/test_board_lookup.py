"""Identification: whole names, PCI ids with subsystems, SM counts; never a part of a name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon import events
from topsmon.ceilings import boards, find_board_by_name, for_device, identify
from topsmon.ceilings.lookup import board_by_pci_id, boards_named, near_names

Gpu = Callable[..., events.Device]
NAMES = sorted({name for board in boards().values() for name in board.names})
UNIQUE = [name for name in NAMES if find_board_by_name(name) is not None]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_resolves_to_its_own_rows(name: str) -> None:
    assert {board.key for board in boards_named(name)} == {
        board.key for board in boards().values() if name in board.names
    }


@pytest.mark.parametrize("name", UNIQUE)
def test_every_name_of_one_board_finds_it_on_a_device(gpu: Gpu, name: str) -> None:
    board = find_board_by_name(name)
    assert board is not None
    match = identify(gpu(name, sm_count=board.sms, compute_capability=board.cc))
    assert match.board is board
    assert match.how is not None
    assert match.how.startswith("exact name")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A40", "a40"),
        ("NVIDIA RTX A4000", "rtx-a4000"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "rtx-5090-laptop"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H800", "h800-sxm"),
    ],
)
def test_names_that_contain_each_other(name: str, key: str) -> None:
    board = find_board_by_name(name)
    assert board is not None
    assert board.key == key


@pytest.mark.parametrize("name", ["NVIDIA H100", "NVIDIA A100", "H100 80GB", "NVIDIA", "RTX", ""])
def test_parts_of_names_find_nothing(name: str) -> None:
    assert boards_named(name) == ()


@given(st.data())
def test_a_cut_or_longer_name_is_never_another_board(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    suffix = data.draw(st.text("abcXYZ0189 -", min_size=1, max_size=8))
    changed = data.draw(st.sampled_from([name + suffix, suffix + name, name[:-1], name[1:]]))
    known = {" ".join(known.lower().removeprefix("nvidia ").split()) for known in NAMES}
    spelled = " ".join(changed.lower().split()).removeprefix("nvidia ")
    assert bool(boards_named(changed)) == (spelled in known)


def test_case_and_the_vendor_prefix_do_not_matter() -> None:
    for spelling in ("geforce rtx 3090", "NVIDIA  GEFORCE RTX 3090", " nvidia geforce rtx 3090 "):
        board = find_board_by_name(spelling)
        assert board is not None
        assert board.key == "rtx-3090"


@pytest.mark.parametrize(
    ("device_id", "subsystem_id", "key"),
    [
        ("2204", None, "rtx-3090"),
        ("0x220410DE", "0x147D10DE", "rtx-3090"),
        ("10DE:2204", None, "rtx-3090"),
        ("0x233010DE", "0x16C110DE", "h100-sxm"),
        ("2330", "10DE:16C1", "h100-sxm"),
        ("25B6", "10DE:157E", "a2"),
        ("25B6", "10DE:14A9", "a16"),
        ("249C", None, "rtx-3080-laptop"),
        ("249c", "1d05:1194", "rtx-3060-laptop"),
        ("1E30", "10DE:129E", "quadro-rtx-8000"),
        ("1E30", "10DE:0000", "quadro-rtx-6000"),
        ("1F11", None, "rtx-2060-mobile"),
        ("2584", None, "rtx-3050-6gb"),
    ],
)
def test_pci_ids_in_every_spelling(device_id: str, subsystem_id: str | None, key: str) -> None:
    board = board_by_pci_id(device_id, subsystem_id)
    assert board is not None
    assert board.key == key


@pytest.mark.parametrize(
    ("device_id", "subsystem_id"),
    [
        ("25B6", None),
        ("25B6", "10DE:FFFF"),
        ("2330", "10DE:1234"),
        ("FFFF", None),
        (None, None),
        ("nonsense", None),
        ("0x", None),
        ("", ""),
    ],
)
def test_pci_ids_that_say_nothing(device_id: str | None, subsystem_id: str | None) -> None:
    assert board_by_pci_id(device_id, subsystem_id) is None


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"pci_device_id": "0x220610DE"}, "rtx-3080"),
        ({"pci_device_id": "0x220A10DE"}, "rtx-3080-12gb"),
        ({"sm_count": 68}, "rtx-3080"),
        ({"sm_count": 70}, "rtx-3080-12gb"),
        ({"memory_total_bytes": 10_737_418_240}, "rtx-3080"),
        ({"memory_total_bytes": 12_884_901_888}, "rtx-3080-12gb"),
        ({"sm_count": 68, "memory_total_bytes": 20 * 2**30}, "rtx-3080"),  # a modified board
        ({}, None),
        ({"sm_count": 69}, None),
    ],
)
def test_two_boards_of_one_name(gpu: Gpu, fields: dict[str, object], key: str | None) -> None:
    match = identify(gpu("NVIDIA GeForce RTX 3080", **fields))
    assert (match.board.key if match.board is not None else None) == key
    if key is None:
        assert "2 boards are called" in match.notes[0] or "SMs" in match.notes[0]


@pytest.mark.parametrize(
    ("sms", "clock", "key"),
    [
        (16, 1300, "agx-orin-64gb"),
        (14, 930, "agx-orin-32gb"),
        (8, 918, "orin-nx-16gb"),
        (8, 1020, "orin-nano-8gb-super"),
        (8, 765, None),
        (4, 625, None),
    ],
)
def test_orin_modules_by_sms_and_clock(gpu: Gpu, sms: int, clock: int, key: str | None) -> None:
    match = identify(gpu("Orin", sm_count=sms, sm_clock_max_mhz=clock, compute_capability="8.7"))
    assert (match.board.key if match.board is not None else None) == key


def test_a_laptop_never_gets_the_desktop_row(gpu: Gpu) -> None:
    desktop, laptop = "NVIDIA GeForce RTX 4070", "NVIDIA GeForce RTX 4070 Laptop GPU"
    found = [for_device(gpu(name)).board for name in (desktop, laptop)]
    assert found == ["rtx-4070", "rtx-4070-laptop"]
    unlisted = for_device(gpu("NVIDIA GeForce RTX 4050 Laptop GPU", pci_device_id="0x278610DE"))
    assert unlisted.board is None
    assert unlisted.rates == ()


def test_a_laptop_part_with_the_desktop_name_is_told_by_its_pci_id(gpu: Gpu) -> None:
    device = gpu(
        "NVIDIA GeForce RTX 2060",
        pci_device_id="0x1F1110DE",
        compute_capability="7.5",
        sm_count=30,
        sm_clock_max_mhz=2100,
    )
    ceilings = for_device(device)
    assert ceilings.board == "rtx-2060-mobile"
    assert {ceiling.origin for ceiling in ceilings.rates} == {"computed"}
    assert "2100 MHz" in ceilings.clock_source


def test_a_pci_id_that_contradicts_the_name_lends_nothing(gpu: Gpu) -> None:
    device = gpu("NVIDIA FutureCard X1", pci_device_id="0x233010DE", pci_subsystem_id="0x16C110DE")
    match = identify(device)
    assert match.board is None
    assert "was not used" in match.notes[0]


@pytest.mark.parametrize(
    "name", ["", "NVIDIA Graphics Device", "NVIDIA GPU 0 (name unreadable)", "\udcf8\udcff"]
)
def test_an_unreadable_name_leaves_the_pci_id(gpu: Gpu, name: str) -> None:
    match = identify(gpu(name, pci_device_id="0x220410DE", compute_capability="8.6"))
    assert match.board is not None
    assert match.board.key == "rtx-3090"
    assert match.how == "PCI id"


def test_no_ceiling_from_garbage(gpu: Gpu) -> None:
    ceilings = for_device(gpu("NVIDIA GPU 0 (name unreadable)"))
    assert ceilings.rates == ()
    assert ceilings.board is None
    assert ceilings.unknown is not None


def test_suggestions_are_near_and_few() -> None:
    assert near_names("RTX 3090Ti")[0] == "NVIDIA GeForce RTX 3090 Ti"
    assert near_names("Voodoo 2") == []
    assert len(near_names("NVIDIA RTX")) == 8
    assert near_names("") == near_names(" - ") == []


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (
            "A100",
            [
                "NVIDIA A100-SXM4-40GB",
                "NVIDIA A100-SXM4-80GB",
                "NVIDIA A100-PCIE-40GB",
                "NVIDIA A100 80GB PCIe",
            ],
        ),
        ("nvidia h100", ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"]),
        ("3090", ["NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090 Ti"]),
        ("V100 32GB", ["Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB", "Tesla V100S-PCIE-32GB"]),
        ("l40", ["NVIDIA L40", "NVIDIA L40S"]),
    ],
)
def test_all_boards_with_the_words_are_suggested(asked: str, names: list[str]) -> None:
    assert near_names(asked) == names

"""`topsmon specs`: what a person and a program read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from topsmon import events
from topsmon.ceilings import boards, for_cpu, for_device
from topsmon.report.specs import (
    AmbiguousBoard,
    UnknownBoard,
    board_ceilings,
    board_names,
    specs_json,
    specs_text,
)

Gpu = Callable[..., events.Device]


def text_of(name: str, clock: float | None = None, width: int = 100) -> str:
    return specs_text(board_ceilings(name), None, clock, width, ascii_only=True)


def cells(text: str, label: str) -> list[str]:
    """The cells after a row's label."""
    row = next(line for line in text.splitlines() if line.startswith(label + "  "))
    return row.removeprefix(label).split()


def test_rtx_3090() -> None:
    text = text_of("NVIDIA GeForce RTX 3090")
    assert cells(text, "FP32")[:2] == ["35.6", "-"]
    assert cells(text, "FP16, FP32 accumulate")[:3] == ["71.2", "142.3", "71"]
    assert cells(text, "FP16, FP16 accumulate")[0] == "142.3"
    assert cells(text, "INT8")[:2] == ["284.7", "569.3"]
    assert "TOPS" in cells(text, "INT8")
    assert "TFLOPS" in cells(text, "FP32")
    assert "936 GB/s" in text
    assert "GeForce: half rate" in text
    assert "no FP8 on sm_86" in text


def test_v100() -> None:
    text = text_of("Tesla V100-SXM2-16GB")
    assert cells(text, "FP32")[:2] == ["15.7", "15.7"]
    assert cells(text, "FP16, FP32 accumulate")[:2] == ["125.3", "125"]
    assert "900 GB/s" in text
    assert "2:4 sparse" not in text


def test_a_clock_adds_a_column() -> None:
    text = text_of("NVIDIA H100 80GB HBM3", clock=1410)
    assert "at 1410 MHz" in text
    assert "762.3" in cells(text, "BF16, FP32 accumulate")
    assert "at 1410 MHz" not in text_of("NVIDIA H100 80GB HBM3")


def test_every_value_has_a_source_and_doubt_is_visible() -> None:
    text = text_of("Tesla P40")
    assert cells(text, "FP32")[-2] == "unverified"
    assert "[1]" in text
    assert "not re-read" in text
    assert "unverified" not in text_of("NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize("width", [1, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("name", ["h100-sxm", "rtx-pro-5000", "tesla t4", "b300", "p40"])
def test_prose_fits_the_width_and_tables_fit_80_columns(name: str, width: int) -> None:
    for line in text_of(name, 1500.0, width).splitlines():
        assert len(line) <= max(width, 80)


def test_output_is_ascii_on_request(gpu: Gpu) -> None:
    device = gpu("NVIDIA Gr\u00e4fik \u2603", compute_capability="8.9", sm_count=4)
    plain = specs_text(for_device(device), device, None, 80, ascii_only=True)
    assert plain.isascii()
    assert "\u2603" in specs_text(for_device(device), device, None, 80, ascii_only=False)


def test_names_from_outside_move_no_cursor(gpu: Gpu) -> None:
    device = gpu("evil\x1b[2Jname\nrow", compute_capability="8.9", sm_count=4)
    text = specs_text(for_device(device), device, None, 80, ascii_only=False)
    assert "\x1b" not in text
    with pytest.raises(UnknownBoard) as caught:
        board_ceilings("evil\x1b[2Jname")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia geforce rtx 3090",
        "GeForce RTX 3090",
        "RTX 3090",
        "rtx-3090",
        "  NVIDIA GeForce RTX 3090 ",
    ],
)
def test_spellings_of_one_board(name: str) -> None:
    assert board_ceilings(name).board == "rtx-3090"


@pytest.mark.parametrize("name", ["NVIDIA FutureCard X1", "", "3090", "RTX", "H100", "A4"])
def test_an_unknown_board_is_an_error_that_helps(name: str) -> None:
    with pytest.raises(UnknownBoard) as caught:
        board_ceilings(name)
    message = str(caught.value)
    assert f'"{name}"' in message
    assert "nothing is guessed" in message
    assert "boards.toml" in message


def test_every_board_has_a_name_to_ask_for_it_by() -> None:
    names = board_names()
    assert {board_ceilings(name).board for name in names} == set(boards())
    assert len(names) == len(boards())
    assert "Tesla V100-SXM2-16GB" in names
    assert {"rtx-3080", "rtx-3080-12gb"} <= set(names)  # one name, other hardware


def test_suggestions_stay_on_one_line() -> None:
    with pytest.raises(UnknownBoard, match=r"A100-SXM4-40GB.*A100 80GB PCIe") as caught:
        board_ceilings("A100")
    assert "\n" not in str(caught.value)


def test_near_names_are_suggested() -> None:
    with pytest.raises(UnknownBoard, match=r"Similar names: .*NVIDIA GeForce RTX 3090"):
        board_ceilings("RTX 3091")


def test_an_ambiguous_name_lists_its_boards() -> None:
    with pytest.raises(AmbiguousBoard) as caught:
        board_ceilings("RTX 3080")
    lines = str(caught.value).splitlines()[1:]
    assert [line.split()[2] for line in lines] == ["rtx-3080", "rtx-3080-12gb"]
    assert "68 SMs, 10 GB, 760 GB/s" in lines[0]
    assert board_ceilings("rtx-3080-12gb").memory_bandwidth_bytes_per_second == 912e9


@pytest.mark.parametrize("key", sorted(boards()))
def test_every_board_prints_and_encodes(key: str) -> None:
    ceilings = board_ceilings(key)
    assert boards()[key].names[0] in specs_text(ceilings, None, 1000.0, 80, ascii_only=True)
    document = json.loads(specs_json(ceilings, None, 1000.0))
    assert document["board"] == key
    assert events.LineDecoder().decode(events.encode(ceilings)) == ceilings


def document_of(name: str, clock: float | None = None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(specs_json(board_ceilings(name), None, clock))
    return document


def test_json_has_units_in_its_keys_and_null_for_unknown() -> None:
    document = document_of("NVIDIA GeForce RTX 3090")
    rates = {rate["precision"]: rate for rate in document["rates"]}
    assert rates["fp16_acc32"]["dense_ops_per_second"] == pytest.approx(71.17e12, rel=1e-3)
    assert rates["fp16_acc32"]["published_ops_per_second"] == 71e12
    assert rates["fp32"]["sparse_ops_per_second"] is None
    assert rates["int8"]["unit"] == "TOPS"
    assert rates["fp32"]["at_clock_ops_per_second"] is None
    assert document["memory_bandwidth_bytes_per_second"] == 936e9
    assert document["sm_count"] == 82
    assert document["absent"]["fp8_acc32"] == "no FP8 on sm_86"
    at_clock = document_of("NVIDIA H100 80GB HBM3", 1980.0)["rates"]
    bf16 = next(rate for rate in at_clock if rate["precision"] == "bf16")
    assert bf16["at_clock_ops_per_second"] == pytest.approx(1070.5e12, rel=1e-4)


def test_an_unknown_device_is_said_in_words(gpu: Gpu) -> None:
    device = gpu("NVIDIA FutureCard X1", compute_capability="99.0", sm_count=10)
    ceilings = for_device(device)
    text = specs_text(ceilings, device, None, 80, ascii_only=True)
    assert "no ceiling known for NVIDIA FutureCard X1" in " ".join(text.split())
    assert json.loads(specs_json(ceilings, device, None))["rates"] == []


def test_the_cpu_prints(gpu: Gpu) -> None:
    device = events.Device(
        time=0, monotonic=0, source="h/cpu", device="cpu", kind="cpu", index=0, name="My CPU"
    )
    ceilings = for_cpu(device)
    text = specs_text(ceilings, device, None, 80, ascii_only=True)
    assert text.startswith("My CPU\n")
    assert json.loads(specs_json(ceilings, device, None))["kind"] == "cpu"

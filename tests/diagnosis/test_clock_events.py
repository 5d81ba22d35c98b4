"""Clocks event reasons: bits are tested one by one, several at once, unknown ones kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import NOW, codes, gpu, machine, only, sample, samples

from topsmon.diagnosis import diagnose
from topsmon.diagnosis.clock_events import decode, names, sustained


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_every_bit_of_a_mask_is_named_exactly_once(mask: int) -> None:
    found = decode(mask)
    assert sum(event.bit for event in found) == mask
    assert len({event.bit for event in found}) == len(found) == mask.bit_count()
    assert all(event.name for event in found)


# Values and names as in nvml.h; 0x200 and 0x400 as in the Throttle names of nvidia-ml-py.
@pytest.mark.parametrize(
    ("mask", "name"),
    [
        (0x0, "none"),
        (0x1, "GPU idle"),
        (0x2, "applications clocks setting"),
        (0x4, "SW power cap"),
        (0x8, "HW slowdown"),
        (0x10, "sync boost"),
        (0x20, "SW thermal slowdown"),
        (0x40, "HW thermal slowdown"),
        (0x80, "HW power brake"),
        (0x100, "display clock setting"),
        (0x200, "board limit"),
        (0x400, "reliability"),
        (0x8000, "0x8000"),
        (0x48, "HW thermal slowdown, HW slowdown"),
        (0x8004, "SW power cap, 0x8000"),
    ],
)
def test_names(mask: int, name: str) -> None:
    assert names(mask) == name


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([], 0),
        ([0x40], 0),
        ([0x40, 0x40], 0x40),
        ([0x44, 0x48], 0x40),
        ([0x40, 0, 0x40, 0], 0),
        ([0x40, None, 0x40], 0),
        ([0x40, 0x40, 0, 0], 0x40),
        ([0x40, 0x40, 0, 0, 0], 0),
        ([None, None], 0),
    ],
)
def test_a_bit_counts_when_two_samples_in_a_row_have_it(
    masks: list[int | None], expected: int
) -> None:
    assert sustained(masks) == expected


def h100_under(**changes: object) -> list[object]:
    return [*gpu(), *samples(**changes)]


def test_hardware_thermal_slowdown_is_hot_and_a_failure() -> None:
    found = only(
        machine(h100_under(clock_event_mask=0x48, sm_clock_mhz=975.0, temperature_celsius=91.0))
    )
    assert (found.code, found.word, found.severity) == ("thermal-slowdown", "HOT", "fail")
    assert found.title == "GPU 0  HW thermal slowdown, HW slowdown: 975 MHz (max 1980)"
    assert found.cause == "too hot: 91 C (slowdown at 89 C)"
    assert found.command == "nvidia-smi -i 0 -q -d TEMPERATURE,PERFORMANCE"


def test_software_thermal_slowdown_of_a_cool_gpu_is_the_memory() -> None:
    found = only(machine(h100_under(clock_event_mask=0x20, temperature_celsius=70.0)))
    assert (found.word, found.severity) == ("HOT", "warn")
    assert "memory or a hot spot" in found.cause


def test_power_brake_and_heat_at_once_are_both_found() -> None:
    # HW slowdown accompanies both and is no third finding.
    found = diagnose(machine(h100_under(clock_event_mask=0x8 | 0x20 | 0x80)), NOW)
    assert [(one.code, one.word) for one in found] == [
        ("power-brake", "SLOW"),
        ("thermal-slowdown", "HOT"),
    ]
    assert "power supply" in found[0].remedy


def test_bare_hardware_slowdown() -> None:
    found = only(machine(h100_under(clock_event_mask=0x8)))
    assert (found.code, found.word, found.severity) == ("hw-slowdown", "SLOW", "fail")


@pytest.mark.parametrize("mask", [0x0, 0x1, 0x2, 0x4, 0x10, 0x100, 0x200, 0x400, 0x1 | 0x2, None])
def test_what_is_no_fault_gives_no_finding(mask: int | None) -> None:
    # Among them the power cap of a board at its default limit: normal under a full GEMM.
    assert codes(machine(h100_under(clock_event_mask=mask))) == []


def test_a_blip_at_a_change_of_performance_state_is_no_finding() -> None:
    blip = sample(NOW - 0.6, clock_event_mask=0x8)
    assert codes(machine(gpu(), sample(NOW - 1.1), blip, sample(NOW - 0.1))) == []


@pytest.mark.parametrize("mask", [0x40, 0x8, 0x80])
def test_one_single_sample_is_a_note_and_not_a_verdict(mask: int) -> None:
    found = only(machine(gpu(), sample(NOW - 0.1, clock_event_mask=mask)))
    assert (found.severity, found.word) == ("info", "note")
    assert found.title.endswith("(one sample)")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"clock_event_mask": 0x20, "temperature_celsius": 86.0}, "HOT"),
        ({"clock_event_mask": 0x88, "sm_clock_mhz": 870.0}, "SLOW"),
        ({"clock_event_mask": 0x8, "sm_clock_mhz": 870.0, "busy_ratio": 0.0}, "note"),
    ],
)
def test_in_one_single_sample_a_second_witness_makes_the_verdict(
    changes: dict[str, float], word: str
) -> None:
    assert only(machine(gpu(), sample(NOW - 0.1, **changes))).word == word


def test_an_unknown_bit_is_shown_by_its_number() -> None:
    found = only(machine(h100_under(clock_event_mask=0x8000 | 0x200)))
    assert (found.code, found.severity) == ("clock-event-unknown", "info")
    assert "0x8000" in found.title
    assert "0x200" not in found.title

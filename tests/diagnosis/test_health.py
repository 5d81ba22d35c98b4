"""Broken boards that still answer: memory errors, and benchmarks that compute nothing."""

import pytest
from machines import codes, gpu, header, machine, only, rate, samples

from topsmon import events
from topsmon.state import State


def with_errors(**fields: object) -> State:
    return machine(gpu(), samples(**fields))


def test_uncorrectable_errors_fail_and_name_the_board() -> None:
    finding = only(with_errors(ecc_uncorrected_volatile=3, ecc_uncorrected_aggregate=5))
    assert (finding.code, finding.severity, finding.word) == ("memory-errors", "fail", "FAIL")
    assert finding.title == "GPU 0  3 uncorrectable memory errors"
    assert "GPU-0" in finding.evidence[0]
    assert "5 over the board's life" in finding.evidence
    assert finding.command == "nvidia-smi -i 0 -q -d ECC,ROW_REMAPPER"


def test_rows_that_wait_or_failed_to_be_remapped() -> None:
    waiting = only(with_errors(row_remap_pending=True))
    assert (waiting.code, waiting.severity) == ("row-remap-pending", "warn")
    failed = only(with_errors(row_remap_failed=True))
    assert (failed.code, failed.severity) == ("memory-errors", "fail")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"ecc_uncorrected_volatile": 0, "row_remap_pending": False, "row_remap_failed": False},
        {
            "ecc_uncorrected_volatile": 0,
            "ecc_uncorrected_aggregate": 9,
            "ecc_corrected_volatile": 4,
        },
    ],
)
def test_old_or_corrected_errors_and_boards_without_ecc_are_quiet(fields: dict) -> None:
    assert codes(with_errors(**fields)) == []


def test_a_rate_of_zero_fails() -> None:
    finding = only(machine(gpu(), samples(), rate("bf16", 0.0), rate("fp16", 760.0)))
    assert (finding.code, finding.severity) == ("nothing-computed", "fail")
    assert finding.title == "GPU 0  rate 0 in BF16"


def test_a_rate_that_was_not_measured_is_no_zero() -> None:
    missing = rate("bf16", None, valid=False, invalid_reason="out of memory")
    assert codes(machine(gpu(), samples(), missing)) == []


ZERO = "implausible value 0 from the driver"


def test_a_driver_that_answers_zero_to_everything_fails() -> None:
    fields = ("power_watts", "sm_clock_mhz", "temperature_celsius")
    nothing = dict.fromkeys(fields)
    finding = only(with_errors(**nothing, unavailable=dict.fromkeys(fields, ZERO)))
    assert (finding.code, finding.severity, finding.word) == ("readings-impossible", "fail", "FAIL")
    assert finding.title == "GPU 0  power, clock and temperature cannot be real"
    assert finding.evidence[0] == f"power: {ZERO}"


@pytest.mark.parametrize(
    "reasons",
    [
        {"power_watts": ZERO, "sm_clock_mhz": ZERO},
        {"power_watts": "not supported", "sm_clock_mhz": ZERO, "temperature_celsius": ZERO},
    ],
)
def test_single_impossible_readings_are_only_not_available(reasons: dict[str, str]) -> None:
    assert codes(with_errors(**dict.fromkeys(reasons), unavailable=reasons)) == []


def test_a_jetson_that_answers_zero_to_everything_is_only_noted() -> None:
    fields = ("power_watts", "sm_clock_mhz", "temperature_celsius")
    host = events.Host(**header(1.0), hostname="n", system="Linux", jetson=True)
    silent = samples(**dict.fromkeys(fields), unavailable=dict.fromkeys(fields, ZERO))
    finding = only(machine([host], gpu(), silent))
    assert (finding.code, finding.severity, finding.word) == ("readings-impossible", "info", "note")
    assert "Jetson" in finding.title
    assert "tegrastats" in finding.remedy

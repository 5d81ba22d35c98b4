"""XID errors: hardware fails, a program's fault does not, an unknown number gets no verdict."""

import pytest
from machines import NOW, codes, gpu, header, machine, only, samples, status

from topsmon import events
from topsmon.device_state import XIDS_KEPT
from topsmon.diagnosis import device_word, diagnose, xid
from topsmon.state import State


def error(code: int, seconds: float = NOW - 3, index: int = 0) -> events.Xid:
    return events.Xid(**header(seconds), device=f"GPU-{index}", code=code)


def with_errors(*codes_: int) -> State:
    return machine(gpu(), samples(), *(error(code) for code in codes_))


ALERTS = (48, 62, 64, 74, 79, 95, 119, 120)
"""utkuozdemir/nvidia_gpu_exporter: the numbers to alert on."""


@pytest.mark.parametrize("code", ALERTS)
def test_hardware_fails(code: int) -> None:
    found = only(with_errors(code))
    assert (found.code, found.severity, found.word) == (f"xid-{code}", "fail", "FAIL")
    assert found.title.startswith(f"GPU 0  XID {code}: ")
    assert found.remedy
    assert "dmesg" in found.command


@pytest.mark.parametrize("code", [13, 31, 43])
def test_a_program_s_fault_is_no_failure_of_the_board(code: int) -> None:
    state = with_errors(code)
    found = only(state)
    assert (found.code, found.severity, found.word) == ("xid-application", "info", "note")
    assert "not failing" in found.cause
    assert device_word(state.devices["GPU-0"], [found]) == "ok"


@pytest.mark.parametrize("code", [63, 92])
def test_notices_are_notes(code: int) -> None:
    found = only(with_errors(code))
    assert (found.code, found.severity) == ("xid-notice", "info")


def test_a_contained_memory_error_wants_a_reset() -> None:
    found = only(with_errors(94))
    assert (found.severity, found.word) == ("warn", "RESET")
    assert "Restart the program" in found.remedy


@pytest.mark.parametrize("code", [0, 1, 999, 2**63])
def test_an_unknown_number_is_said_to_be_unknown(code: int) -> None:
    found = only(with_errors(code))
    assert (found.code, found.severity) == ("xid-unknown", "info")
    assert found.title == f"GPU 0  XID {code}: not known to this version"


def test_every_number_s_words() -> None:
    table = xid.table()
    weakened = [code for code in ALERTS if table.xid[code].weight != "hardware"]
    assert weakened == []
    for code, known in table.xid.items():
        assert known.remedy in table.remedy, code
        assert known.meaning.isascii()
        assert not known.meaning.endswith(".")
    assert set(table.remedy) == {known.remedy for known in table.xid.values()}


def test_hardware_errors_are_told_apart_and_programs_together() -> None:
    state = machine(
        gpu(),
        samples(),
        error(13, NOW - 60),
        error(31, NOW - 50),
        error(31, NOW - 40),
        error(79, NOW - 30),
        error(119, NOW - 20),
    )
    found = {one.code: one for one in diagnose(state, NOW)}
    assert list(found) == ["xid-79", "xid-119", "xid-application"]
    assert found["xid-application"].title.startswith("GPU 0  XID 31: ")
    line = found["xid-application"].evidence[0]
    assert line.startswith("XID 31 2 times, last at ")
    assert "XID 13 at " in line


def test_the_error_stays_when_the_gpu_is_lost_or_not_read_any_more() -> None:
    state = machine(gpu(), samples(), error(79), status("lost", NOW - 2, NOW - 2))
    assert codes(state) == ["device-lost", "xid-79"]
    crashed = events.Problem(
        **header(NOW - 1), subject="poller", code="crashed", message="driver library crashed"
    )
    assert "xid-79" in codes(machine(gpu(), samples(), error(79), crashed))


def test_an_error_belongs_to_its_gpu_alone() -> None:
    state = machine(gpu(0), gpu(1), samples(0), samples(1), error(79, index=1))
    assert only(state).device == "GPU-1"


def test_a_flood_of_errors_is_bounded() -> None:
    state = machine(gpu(), samples(), *(error(31, NOW - 50 + turn * 0.1) for turn in range(200)))
    assert len(state.devices["GPU-0"].xids) == XIDS_KEPT
    assert len(codes(state)) == 1

"""Results as text, JSON, JUnit and a Nagios line: each read back by a parser of its format."""

import json
import re
from xml.etree import ElementTree as ET

import msgspec
import nodes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodes import check, healthy, node

from topsmon import events
from topsmon.checks.outcome import exit_code, status
from topsmon.report.check_document import (
    CheckDocument,
    CheckedDevice,
    Selection,
    from_json,
    to_json,
)
from topsmon.report.check_junit import junit
from topsmon.report.check_nagios import nagios
from topsmon.report.check_text import text


def document(*results: events.CheckResult, **changes) -> CheckDocument:
    labels = dict.fromkeys((result.device, result.label) for result in results if result.device)
    fields = {
        "version": "0.1.0",
        "host": "node",
        "started_unix_seconds": 1_700_000_000.0,
        "duration_seconds": 14.25,
        "status": status(results),
        "exit_code": exit_code(results),
        "driver_version": "580.95.05",
        "devices": tuple(
            CheckedDevice(
                device=device, label=label, kind="gpu", index=place, name="NVIDIA H100 80GB HBM3"
            )
            for place, (device, label) in enumerate(labels)
        ),
        "checks": tuple(results),
        **changes,
    }
    return CheckDocument(**fields)


def capped() -> CheckDocument:
    """Eight GPUs, the fourth with a lowered power limit."""
    slow = healthy(
        3,
        scale=1155 / 1755,
        burst={"held_clock_mhz": 1155.0, "clock_event_mask": 4, "power_watts": 347.0},
        reading={"power_limit_watts": 350.0, "power_watts": 347.0, "clock_event_mask": 4},
    )
    return document(*check(node(*[healthy(index) for index in range(8) if index != 3], slow)))


def result(**changes) -> events.CheckResult:
    fields = {
        "device": "GPU-0000",
        "label": "GPU 0",
        "check": "bf16",
        "state": "PASS",
        "title": "BF16 matrix product",
        **changes,
    }
    return events.CheckResult(**nodes.header(), **fields)


# JSON ---------------------------------------------------------------------------------------------


def test_json_has_schema_verdict_and_every_result() -> None:
    shown = capped()
    read = json.loads(to_json(shown))
    assert read["schema"] == "topsmon.check/1"
    assert (read["status"], read["exit_code"], read["host"]) == ("FAIL", 2, "node")
    assert read["duration_seconds"] == 14.25
    assert len(read["checks"]) == len(shown.checks)
    failed = [one for one in read["checks"] if one["state"] == "FAIL"]
    assert [(one["device"], one["check"]) for one in failed] == [("GPU-0003", "peers")]
    rate = next(one for one in read["checks"] if one["check"] == "bf16")
    assert (rate["unit"], rate["value"]) == ("ops/s", 794.5e12)
    assert rate["pass_limit"] == pytest.approx(0.92 * 764.9e12)
    fp4 = next(one for one in read["checks"] if one["check"] == "fp4")
    assert fp4["value"] is None


def test_json_reads_back_and_strangers_are_refused() -> None:
    shown = capped()
    assert from_json(to_json(shown)) == shown
    for content in (b"", b"[]", b'{"schema": "topsmon.check/1"}', b"\xff", b"null"):
        with pytest.raises(ValueError, match="no result of topsmon check"):
            from_json(content)
    other = to_json(msgspec.structs.replace(shown, format="topsmon.check/2"))
    with pytest.raises(ValueError, match=r"topsmon\.check/2"):
        from_json(other)


# JUnit --------------------------------------------------------------------------------------------

CHILDREN = {"skipped", "error", "failure", "system-out"}


def suite_of(content: bytes) -> ET.Element:
    """Parse, and hold against the JUnit schema of Jenkins: attributes, order and counts."""
    root = ET.fromstring(content)
    assert root.tag == "testsuites"
    (suite,) = root
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    assert suite[0].tag == "properties"
    cases = suite.findall("testcase")
    assert len(cases) == len(suite) - 1
    for case in cases:
        assert case.attrib.keys() == {"classname", "name", "time"}
        assert len(case) <= 1
        assert {child.tag for child in case} <= CHILDREN
    counts = {"tests": None, "failures": "failure", "errors": "error", "skipped": "skipped"}
    for attribute, tag in counts.items():
        found = cases if tag is None else [case for case in cases if case.find(tag) is not None]
        assert int(suite.attrib[attribute]) == len(found)
    return suite


def test_junit_has_one_case_for_each_device_and_check() -> None:
    shown = capped()
    suite = suite_of(junit(shown, warnings_fail=False))
    assert int(suite.attrib["tests"]) == len(shown.checks)
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("1", "0")
    (failed,) = [case for case in suite if case.find("failure") is not None]
    assert (failed.attrib["classname"], failed.attrib["name"]) == ("topsmon.GPU 3", "peers")
    told = failed.find("failure")
    assert told is not None
    assert told.attrib["type"] == "FAIL"
    assert "sudo nvidia-smi -i 3 -pl 700" in (told.text or "")
    warned = sum(one.state == "WARN" for one in shown.checks)
    strict = suite_of(junit(shown, warnings_fail=True))
    assert int(strict.attrib["failures"]) == 1 + warned


def test_junit_tells_unknown_from_skipped() -> None:
    suite = suite_of(
        junit(
            document(
                result(state="NO-VERDICT", unknown=True, cause="time ran out"),
                result(check="fp64", state="NO-VERDICT"),
                result(check="fp4", state="UNSUPPORTED", cause="no FP4"),
            ),
            warnings_fail=True,
        )
    )
    assert (suite.attrib["errors"], suite.attrib["skipped"]) == ("1", "2")


@given(st.text(max_size=40))
def test_junit_takes_any_text_from_outside(words: str) -> None:
    shown = document(result(state="FAIL", cause=words, evidence=(words,)), host=words or "h")
    suite_of(junit(shown, warnings_fail=True))


# Nagios -------------------------------------------------------------------------------------------

NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
LIMIT = rf"(?:{NUMBER}:?|{NUMBER}:{NUMBER}|)"
PERFORMANCE = re.compile(
    rf"[A-Za-z0-9_]+=(?:{NUMBER}(?:us|ms|s|%|B|c)?|U);{LIMIT};{LIMIT};(?:{NUMBER})?(?:;(?:{NUMBER})?)?"
)
"""Monitoring Plugins Development Guidelines: 'label'=value[UOM];[warn];[crit];[min];[max]."""


def parsed(line: str) -> tuple[str, dict[str, str]]:
    """Text and performance data of a plugin's line."""
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert line.isascii()
    words, _, data = line.strip().partition(" | ")
    assert "|" not in words
    for item in data.split():
        assert PERFORMANCE.fullmatch(item), item
    return words, dict(item.split("=", 1) for item in data.split())


def test_nagios_line_of_a_straggler() -> None:
    words, data = parsed(nagios(capped()))
    assert words.startswith("TOPSMON CRITICAL - GPU 3 peers BF16 34.2% below the best")
    # 92 % and 80 % of 764.9 TFLOPS; an alert below each.
    assert data["gpu_0_bf16_tera_ops_per_second"] == "794.5;703.708:;611.92:;0"
    assert data["gpu_3_temperature_celsius"] == "62;84;89;0"
    assert data["gpu_7_launch_time"] == "4.1us;10;20;0"
    assert data["gpu_0_int8_tera_ops_per_second"].endswith(":;;0")  # never critical


@pytest.mark.parametrize(
    ("states", "fail_on", "word"),
    [
        (["PASS"], "warn", "OK"),
        (["PASS", "WARN"], "warn", "WARNING"),
        (["PASS", "WARN"], "fail", "OK"),
        (["PASS", "WARN", "FAIL"], "fail", "CRITICAL"),
        (["NO-VERDICT"], "warn", "UNKNOWN"),
    ],
)
def test_nagios_words(states: list[str], fail_on: str, word: str) -> None:
    results = [result(state=state) for state in states]
    shown = document(*results, exit_code=exit_code(results, fail_on=fail_on))
    assert parsed(nagios(shown))[0].startswith(f"TOPSMON {word} - ")


def test_nagios_exports_no_number_that_must_not_be_trusted() -> None:
    told = {"value": 3e12, "unit": "bytes/s", "pass_limit": 2e12}
    _, data = parsed(
        nagios(
            document(
                result(check="dram-copy", state="INVALID", unknown=True, **told),
                result(check="dram-triad", **told),
            )
        )
    )
    assert data == {
        "gpu_0_dram_copy_giga_bytes_per_second": "U;2000:;;0",
        "gpu_0_dram_triad_giga_bytes_per_second": "3000;2000:;;0",
    }


@given(st.text(max_size=60), st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_nagios_takes_any_text_and_number(words: str, value: float) -> None:
    shown = document(result(state="FAIL", cause=words, value=value, unit="s", pass_limit=value))
    parsed(nagios(shown).encode("ascii", "replace").decode("ascii"))


# Text ---------------------------------------------------------------------------------------------


def test_text_has_a_row_for_what_equal_devices_agree_on_and_one_for_what_is_off() -> None:
    lines = text(capped(), ascii_only=True).splitlines()
    assert lines[0] == "topsmon check  node  8 GPUs  driver 580.95.05"
    rows = [line for line in lines if " bf16 " in line]
    assert re.match(r"GPU 0-2,4-7 +bf16 +PASS +794 TFLOPS +>= 704 TFLOPS +92%", rows[0])
    assert re.match(r"GPU 3 +bf16 +WARN +523 TFLOPS +>= 704 TFLOPS +92%", rows[1])
    start = lines[2].index("state")
    assert {line[start:].split()[0] for line in rows} == {"PASS", "WARN"}


def test_text_says_what_is_wrong_what_to_do_and_what_the_exit_code_means() -> None:
    shown = text(capped(), ascii_only=True)
    paragraph = shown[shown.index("\nFAIL  GPU 3") :].split("\n\n")[0]
    assert "straggler: power limit is set to 350 W (default 700 W); a setting, no defect" in shown
    assert "peers: BF16 34.2% below the best (expected within 5%)" in paragraph
    assert "GPU-0003" in paragraph
    assert "\n      sudo nvidia-smi -i 3 -pl 700\n" in paragraph
    assert "basis: stas00/ml-engineering" in paragraph
    last = shown.splitlines()[-1]
    assert last.startswith("FAIL  1 failed, 7 warned, ")
    assert "in 14.2 s (exit 2: far too slow by a setting; no sign of a defect)" in last
    assert shown.count("sudo nvidia-smi -i 3 -pl 700") == 1  # told once of a device and cause
    assert "-> see above" in shown


def test_one_cause_is_told_once() -> None:
    shown = text(capped(), ascii_only=True)
    assert shown.count("\nWARN  GPU 3  power limit is set to 350 W (default 700 W)\n") == 1
    refused = node([nodes.identity(0), nodes.sample(0, busy_ratio=0.0)])
    seen = {"GPU-0000": nodes.Observed(refused="python train.py (PID 12) uses GPU 0")}
    shown = text(document(*check(refused, "rates", "memory", seen=seen)), ascii_only=True)
    assert shown.count("train.py") == 2  # in the table and in words
    assert re.search(r"GPU 0 +11 checks +INVALID", shown)
    assert "bf16, fp16, tf32, fp32, fp8, int8, fp64, fp4, dram-copy" in shown


def test_text_marks_chosen_limits_simulation_and_interrupts() -> None:
    shown = document(
        *check(node(healthy()), "launch"),
        selection=Selection(simulated="h100-8"),
        interrupted=True,
        exit_code=130,
    )
    lines = text(shown, ascii_only=True).splitlines()
    assert "SIMULATED h100-8" in lines[0]
    assert any("<= 10 us*" in line for line in lines)
    assert lines[-2].startswith("* chosen by topsmon")
    assert lines[-1].startswith("INTERRUPTED  ")
    assert "exit 130" in lines[-1]


def test_text_fits_its_width_and_has_colours_only_where_asked() -> None:
    plain = text(capped(), width=100, ascii_only=True)
    commands = [line for line in plain.splitlines() if "nvidia-smi" not in line]
    assert max(len(line) for line in commands[:-1]) <= 100
    assert "\x1b" not in plain
    coloured = text(capped(), width=100, ascii_only=True, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "\N{GREATER-THAN OR EQUAL TO} 704" in text(capped())


def test_text_from_outside_cannot_draw() -> None:
    evil = "\x1b[2Jevil\nFAIL  GPU 9"
    shown = text(
        document(result(state="FAIL", cause=evil, value_text=evil, evidence=(evil,)), host=evil)
    )
    assert "\x1b" not in shown
    assert not any(line.startswith("FAIL  GPU 9") for line in shown.splitlines())


def test_a_cached_verdict_says_so_in_every_format() -> None:
    fresh = document(result())
    kept = msgspec.structs.replace(fresh, cached=True, age_seconds=47.2)
    assert "cached, 47 s old" in text(kept).splitlines()[0]
    assert nagios(kept).startswith("TOPSMON OK - cached, 47 s old: ")
    read = json.loads(to_json(kept))
    assert (read["cached"], read["age_seconds"]) == (True, 47.2)
    assert b"cached, 47 s old" in junit(kept, warnings_fail=True)
    assert json.loads(to_json(fresh))["cached"] is False
    for shown in (text(fresh), nagios(fresh), junit(fresh, warnings_fail=True).decode()):
        assert "cached" not in shown


@pytest.mark.parametrize(
    ("states", "options", "words"),
    [
        (["WARN"], {"fail_on": "fail"}, "(exit 0 because of --fail-on fail)"),
        (["PASS", "UNKNOWN"], {"unknown_ok": True}, "(exit 0 because of --unknown-ok)"),
        (
            ["WARN", "UNKNOWN"],
            {"fail_on": "fail", "unknown_ok": True},
            "(exit 0 because of --fail-on fail and --unknown-ok)",
        ),
        (["WARN", "UNKNOWN"], {"fail_on": "fail"}, "(exit 3 because of --fail-on fail"),
        (["FAIL"], {}, "(exit 2: something is broken or far too slow)"),
        (["PASS"], {}, "(exit 0: nothing is wrong"),
    ],
)
def test_the_last_line_agrees_with_the_exit_code(
    states: list[str], options: dict, words: str
) -> None:
    results = [
        result(state="NO-VERDICT", unknown=True) if word == "UNKNOWN" else result(state=word)
        for word in states
    ]
    shown = document(*results, exit_code=exit_code(results, **options))
    assert words in text(shown).splitlines()[-1]


def test_devices_whose_words_differ_have_rows_of_their_own() -> None:
    lines = text(
        document(
            result(check="throttling", value_text="none"),
            result(device="GPU-0001", label="GPU 1", check="throttling", value_text="SW power cap"),
        )
    ).splitlines()
    rows = [line for line in lines if " throttling " in line]
    assert [row.split()[:2] for row in rows] == [["GPU", "0"], ["GPU", "1"]]


def test_every_invalid_check_of_the_table_is_named_below() -> None:
    cause = "implausible value 0 from the driver"
    shown = text(
        document(
            *(
                result(check=name, state="INVALID", cause=cause, unknown=name != "power-sensor")
                for name in ("power", "power-sensor", "temperature")
            )
        )
    )
    assert re.search("GPU 0 +3 checks +INVALID", shown)
    paragraph = shown[shown.index("\nINVALID") :].split("\n\n")[0]
    assert all(name in paragraph for name in ("power,", "power-sensor", "temperature"))


def test_quick_without_a_gpu_says_what_to_do() -> None:
    nothing = result(device=None, label="host", check="driver", state="UNSUPPORTED")
    quick = document(nothing, selection=Selection(quick=True))
    advice = "no GPU: --quick reads only the NVIDIA driver; without --quick the CPU is checked"
    assert advice in text(quick)
    assert advice in nagios(quick)
    assert advice not in text(document(nothing))

"""The verdicts of a kept check as metrics."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from exported_machines import GPU, LABELS, WALL, named, scrape, stamp, state, value

from topsmon import events
from topsmon.exporters.check_file import CheckFile
from topsmon.exporters.prometheus import Exported
from topsmon.report.check_document import CheckDocument, CheckedDevice, to_json


def result(check: str, verdict: events.CheckState, **more: object) -> events.CheckResult:
    fields: dict[str, object] = {"device": GPU, "label": "GPU 3", "title": check, **more}
    return events.CheckResult(**stamp(), check=check, state=verdict, **fields)  # type: ignore[arg-type]


DOCUMENT = CheckDocument(
    version="0.1.0",
    host="node7",
    started_unix_seconds=WALL - 60,
    duration_seconds=12.5,
    status="FAIL",
    exit_code=2,
    devices=(CheckedDevice(device=GPU, label="GPU 3", kind="gpu", index=3, name="H100"),),
    checks=(
        result("driver", "PASS", device=None),
        result("bf16", "FAIL", value=300e12, unit="ops/s"),
        result("bf16", "PASS", value=600e12, unit="ops/s"),
        result("h2d", "WARN", value=20e9, unit="bytes/s"),
        result("temperature", "NO-VERDICT", unknown=True),
        result("fp8", "UNSUPPORTED"),
        result("launch", "INVALID", value=1e-6, unit="s"),
    ),
)


def exported(tmp_path: Path, document: CheckDocument | bytes = DOCUMENT) -> Exported:
    path = tmp_path / "check.json"
    path.write_bytes(document if isinstance(document, bytes) else to_json(document))
    checks = CheckFile(path, "node7")
    checks.refresh()
    return Exported(state(), checks=checks)


def test_verdicts_are_the_numbers_of_the_exit_codes(tmp_path: Path) -> None:
    series = scrape(exported(tmp_path))
    name = "topsmon_check_status"
    assert named(series, name)[("check", "driver"),] == 0
    assert value(series, name, check="bf16") == 2  # the worst of two
    assert value(series, name, check="h2d") == 1
    assert value(series, name, check="temperature") == 3
    assert value(series, name, check="launch") == 3
    assert value(series, name, check="fp8") is None  # nothing was to be judged
    assert named(series, "topsmon_check_overall_status") == {(): 2.0}
    assert named(series, "topsmon_check_run_timestamp_seconds") == {(): WALL - 60}


def test_measured_values_keep_their_unit_in_the_name(tmp_path: Path) -> None:
    series = scrape(exported(tmp_path))
    assert value(series, "topsmon_check_measured_operations_per_second", check="bf16") == 300e12
    assert value(series, "topsmon_check_measured_bytes_per_second", check="h2d") == 20e9
    assert named(series, "topsmon_check_measured_seconds") == {}  # not valid
    assert dict(LABELS)["gpu"] == "3"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no result of topsmon check"),
        (b'{"schema": "other/9"}', "no result of topsmon check"),
        (to_json(msgspec.structs.replace(DOCUMENT, format="topsmon.check/9")), "topsmon.check/9"),
        (to_json(msgspec.structs.replace(DOCUMENT, host="node8")), "of host node8, not of node7"),
    ],
)
def test_a_file_that_does_not_answer_says_why(tmp_path: Path, content: bytes, words: str) -> None:
    made = exported(tmp_path, content)
    assert made.checks is not None
    assert words in (made.checks.problem or "")
    series = scrape(made)
    assert named(series, "topsmon_check_file_readable") == {(): 0.0}
    assert named(series, "topsmon_check_status") == {}


def test_a_file_that_goes_and_comes_back(tmp_path: Path) -> None:
    made = exported(tmp_path)
    assert made.checks is not None
    made.checks.path.unlink()
    made.checks.refresh()
    assert "No such file" in (made.checks.problem or "")
    made.checks.path.write_bytes(to_json(DOCUMENT))
    made.checks.refresh()
    assert made.checks.problem is None
    assert named(scrape(made), "topsmon_check_file_readable") == {(): 1.0}


def test_without_the_option_nothing_is_said_of_checks() -> None:
    assert not [name for name, _ in scrape(state()) if name.startswith("topsmon_check")]

"""The verdicts of a kept `topsmon check --cached FILE` or `--json` document as metrics."""

from __future__ import annotations

from pathlib import Path

from topsmon import events
from topsmon.exporters.families import Families
from topsmon.files import read_regular
from topsmon.report.check_document import CheckDocument, from_json

MOST_BYTES = 4 << 20
STATUS: dict[str, int] = {"PASS": 0, "WARN": 1, "FAIL": 2, "INVALID": 3}
"""As the exit codes. NO-VERDICT, EMULATED and UNSUPPORTED are 3 only where a verdict was due."""
OVERALL = {"OK": 0, "WARN": 1, "FAIL": 2, "UNKNOWN": 3}
UNITS = {
    "ops/s": "operations_per_second",
    "bytes/s": "bytes_per_second",
    "s": "seconds",
    "ratio": "ratio",
    "celsius": "celsius",
    "watts": "watts",
}
"""What the metric of a measured value ends in, by the unit of the result."""


class CheckFile:
    """Reads the file again when told; what is wrong with it is in `problem`."""

    def __init__(self, path: Path, host: str) -> None:
        self.path = path
        self.host = host
        self.document: CheckDocument | None = None
        self.problem: str | None = None

    def refresh(self) -> None:
        """Read the file. May wait for a disk: not for an event loop."""
        try:
            document = from_json(read_regular(self.path, MOST_BYTES))
        except OSError as error:
            self.document, self.problem = None, f"{self.path}: {error.strerror or error}"
            return
        except ValueError as error:
            self.document, self.problem = None, f"{self.path}: {error}"
            return
        if document.host != self.host:
            self.document = None
            self.problem = f"{self.path} is of host {document.host}, not of {self.host}"
            return
        self.document, self.problem = document, None


def add_checks(families: Families, file: CheckFile) -> None:
    """Add the verdicts. Without a readable document there is none, and a metric that says so."""
    document = file.document
    text = "1: the file of --check-file could be read."
    families.gauge("check_file_readable", text, {}, document is not None)
    if document is None:
        return
    families.gauge(
        "check_overall_status",
        "Verdict of the last check: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN.",
        {},
        OVERALL.get(document.status),
    )
    families.gauge(
        "check_run_timestamp_seconds",
        "When the last check began.",
        {},
        document.started_unix_seconds,
    )
    families.gauge(
        "check_duration_seconds", "How long the last check took.", {}, document.duration_seconds
    )
    index = {device.device: device.index for device in document.devices if device.kind == "gpu"}
    for result in sorted(document.checks, key=_worst_first):
        labels = {"check": result.check, "uuid": result.device, "gpu": None}
        if result.device is not None:
            labels["gpu"] = index.get(result.device)  # type: ignore[assignment]
        families.gauge(
            "check_status",
            "Verdict of one check: 0 OK, 1 WARN, 2 FAIL, 3 UNKNOWN.",
            labels,
            status(result),
        )
        if result.unit in UNITS and result.state in {"PASS", "WARN", "FAIL"}:
            text = "Value that a check has measured."
            families.gauge(f"check_measured_{UNITS[result.unit]}", text, labels, result.value)


def status(result: events.CheckResult) -> int | None:
    """A verdict as a number, None where none was to be expected."""
    return STATUS.get(result.state, 3 if result.unknown else None)


def _worst_first(result: events.CheckResult) -> int:
    return -{2: 3, 1: 2, 3: 1}.get(status(result) or 0, 0)

"""Results of a check as JUnit XML: one test case for each device and check.

Format: the JUnit schema of Jenkins (testsuites, testsuite, testcase with skipped, error, failure).
Failed is what the exit code counts; what could not be measured is an error, what has no verdict is
skipped.
"""

from __future__ import annotations

import datetime as dt
import re
from xml.etree import ElementTree as ET

from topsmon import events
from topsmon.report.check_document import CheckDocument, age
from topsmon.units import plain

_NO_CHARACTER = re.compile("[\ufffe\uffff]")


def junit(document: CheckDocument, *, warnings_fail: bool) -> bytes:
    """Return the document as XML in UTF-8. `warnings_fail`: a warning counts as a failure."""
    cases = [_case(result, warnings_fail=warnings_fail) for result in document.checks]
    started = dt.datetime.fromtimestamp(document.started_unix_seconds, dt.timezone.utc)
    suite = ET.Element(
        "testsuite",
        {
            "name": "topsmon.check",
            "hostname": _safe(document.host, 200),
            "timestamp": started.strftime("%Y-%m-%dT%H:%M:%S"),
            "time": f"{document.duration_seconds:.3f}",
            "tests": str(len(cases)),
            "failures": _count(cases, "failure"),
            "errors": _count(cases, "error"),
            "skipped": _count(cases, "skipped"),
        },
    )
    suite.append(_properties(document))
    suite.extend(cases)
    root = ET.Element("testsuites", {"name": "topsmon"})
    root.append(suite)
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _properties(document: CheckDocument) -> ET.Element:
    properties = ET.Element("properties")
    named = {
        "topsmon": document.version,
        "status": document.status,
        "driver": document.driver_version,
        "cuda": document.cuda_version,
        "simulated": document.selection.simulated,
        "cached": age(document) or None,
        "interrupted": "true" if document.interrupted else None,
    }
    for name, value in named.items():
        if value is not None:
            ET.SubElement(properties, "property", {"name": name, "value": _safe(value, 200)})
    for device in document.devices:
        value = " ".join(filter(None, (_safe(device.name, 100), device.uuid)))
        ET.SubElement(properties, "property", {"name": device.label, "value": _safe(value, 200)})
    return properties


def _case(result: events.CheckResult, *, warnings_fail: bool) -> ET.Element:
    case = ET.Element(
        "testcase",
        {"classname": _safe(f"topsmon.{result.label}"), "name": result.check, "time": "0"},
    )
    message = ": ".join(filter(None, (result.value_text, result.cause))) or result.title
    failed = result.state == "FAIL" or (result.state == "WARN" and warnings_fail)
    if failed or result.unknown:
        told = ET.SubElement(
            case,
            "failure" if failed else "error",
            {"message": _safe(message, 500), "type": result.state},
        )
        told.text = _details(result)
    elif result.state not in ("PASS", "WARN"):
        words = f"{result.state}: {message}"
        ET.SubElement(case, "skipped", {"message": _safe(words, 500)})
    else:
        ET.SubElement(case, "system-out").text = _details(result)
    return case


def _details(result: events.CheckResult) -> str:
    """Everything that is known, one fact a line."""
    lines = [
        f"{result.state} {result.title}",
        f"measured {result.value_text}" if result.value_text else "",
        f"expected {result.threshold_text}" if result.threshold_text else "",
        result.cause,
        *result.evidence,
        result.remedy,
        result.command,
        f"basis: {result.basis}" if result.basis else "",
    ]
    return "\n".join(_safe(line, 4096) for line in lines if line)


def _safe(text: str, limit: int = 500) -> str:
    """Text that XML can hold: `plain`, and without the two code points that it forbids."""
    return _NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", plain(text, limit))


def _count(cases: list[ET.Element], tag: str) -> str:
    return str(sum(case.find(tag) is not None for case in cases))

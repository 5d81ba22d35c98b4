"""Results of a check as one line of a Nagios plugin: status, text, performance data.

Format: Monitoring Plugins Development Guidelines, 'label'=value[unit];[warn];[crit];[min];[max].
A threshold "10:" raises an alert below 10, "10" one above it.
A value that must not be trusted is U, as the guidelines have it for one that is not known.
"""

from __future__ import annotations

import re

from topsmon import events
from topsmon.report.check_document import (
    CheckDocument,
    age,
    in_words,
    subject,
    without_gpu,
    worst_first,
)
from topsmon.units import plain

WORDS = {0: "OK", 1: "WARNING", 2: "CRITICAL"}
TEXT_LENGTH = 300
SCALES = {
    "ops/s": ("tera_ops_per_second", 1e12, ""),
    "bytes/s": ("giga_bytes_per_second", 1e9, ""),
    "s": ("time", 1e-6, "us"),
    "celsius": ("celsius", 1.0, ""),
}
"""Per unit: what the label ends in, the scale of the number, the unit that the guidelines know."""


def nagios(document: CheckDocument) -> str:
    """Return the line, with its newline."""
    word = WORDS.get(document.exit_code, "UNKNOWN")
    simulated = document.selection.simulated
    notes = filter(None, (f"SIMULATED {simulated}" if simulated else "", age(document)))
    text = "".join(f"{note}: " for note in notes) + _text(document)
    data = " ".join(
        line for result in document.checks if (line := _performance(result)) is not None
    )
    safe = plain(text, TEXT_LENGTH).replace("|", "/")
    return f"TOPSMON {word} - {safe}" + (f" | {data}" if data else "") + "\n"


def _text(document: CheckDocument) -> str:
    against = worst_first(document)
    summary = f"{subject(document)}: {in_words(document)}"
    if document.interrupted:
        summary = f"interrupted; {summary}"
    if not against:
        return "; ".join(filter(None, (summary, without_gpu(document))))
    worst = against[0]
    cause = worst.cause or worst.title
    value = f" {worst.value_text}" if worst.value_text else ""
    return f"{worst.label} {worst.check}{value}: {cause}; {summary}"


def _performance(result: events.CheckResult) -> str | None:
    if result.value is None or result.unit not in SCALES:
        return None
    ending, scale, unit = SCALES[result.unit]
    label = re.sub(r"[^a-z0-9]+", "_", f"{result.label} {result.check}".lower()).strip("_")
    limits = [_limit(result, limit, scale) for limit in (result.pass_limit, result.fail_limit)]
    value = "U" if result.state == "INVALID" else f"{_decimal(result.value / scale)}{unit}"
    fields = [value, *limits, "0"]
    return f"{label}_{ending}={';'.join(fields)}"


def _limit(result: events.CheckResult, limit: float | None, scale: float) -> str:
    if limit is None:
        return ""
    return _decimal(limit / scale) + ("" if result.lower_is_better else ":")


def _decimal(value: float) -> str:
    """A number of digits, sign and point alone, as the guidelines demand."""
    return f"{value:.4f}".rstrip("0").rstrip(".") or "0"

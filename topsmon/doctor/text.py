"""The doctor's results for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from topsmon import __version__
from topsmon.doctor.model import Result, worst
from topsmon.report.columns import pad, wrap
from topsmon.units import plain

SCHEMA = "topsmon.doctor/1"
WORDS = {"ok": "ok", "warn": "WARN", "fail": "FAIL", "n/a": "n/a"}
_STATE_WIDTH, _ID_WIDTH = 6, 14
VERDICTS = {
    "ok": "Everything works that can work here.",
    "warn": "topsmon works; what is marked WARN is limited.",
    "fail": "What is marked FAIL does not work; the remedy stands under it.",
}


def text(results: Sequence[Result], width: int) -> str:
    """Return one entry a check, remedies indented below, and a verdict."""
    lines: list[str] = []
    for result in results:
        head = pad(WORDS[result.state], _STATE_WIDTH) + pad(result.id, _ID_WIDTH)
        indent = len(head)
        lines += wrap(plain(result.finding), width, first=head, rest=indent)
        if result.remedy:
            remedy = plain(result.remedy)
            lines += wrap(remedy, width, first=" " * indent + "-> ", rest=indent + 3)
    return "\n".join([*lines, "", VERDICTS[worst(list(results))]])


def to_json(results: Iterable[Result]) -> bytes:
    """Return the results as one JSON document."""
    found = list(results)
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "state": worst(found),
        "checks": [msgspec.to_builtins(result) for result in found],
    }
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"

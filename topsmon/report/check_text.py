"""Results of a check for people: a table, what is wrong and what to do, one line of verdict."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from topsmon import events
from topsmon.report.check_document import (
    BY_SETTING,
    CheckDocument,
    age,
    in_words,
    subject,
    without_gpu,
    worst_first,
)
from topsmon.units import plain

HEADINGS = ("device", "check", "state", "measured", "expected", "basis, or why there is no verdict")
WIDEST = (14, 18, 11, 34, 18)
MEASURED = 3
"""The column of measured values, which gives way on a narrow terminal."""
NARROWEST = 12
LAST_COLUMN = 24
GAP = "  "
COLOURS = {"PASS": "32", "WARN": "33", "FAIL": "1;31", "INVALID": "35", "UNKNOWN": "35", "OK": "32"}
MEANINGS = {
    0: "exit 0: nothing is wrong as far as it can be judged",
    1: "exit 1: works, but below what it should be",
    2: "exit 2: something is broken or far too slow",
    3: "exit 3: not everything could be measured, which says nothing bad about the hardware",
    130: "exit 130: interrupted; this is what was known by then",
}
EXPERIMENTAL = "*"
SIGNS = {">=": "\N{GREATER-THAN OR EQUAL TO}", "<=": "\N{LESS-THAN OR EQUAL TO}"}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NUMBER_AND_UNIT = re.compile(r"([0-9.]+) ?(\D\S*)")


class _Row(NamedTuple):
    """One line of the table: results of one check with the same answer, on several devices."""

    results: tuple[events.CheckResult, ...]
    checks: int = 1

    @property
    def first(self) -> events.CheckResult:
        return self.results[0]


def text(
    document: CheckDocument,
    *,
    width: int | None = None,
    ascii_only: bool = False,
    colour: bool = False,
) -> str:
    """Return the report. `width` None: lines are as long as they need to be."""
    signs = {} if ascii_only else SIGNS
    signed = tuple(_signed(result, signs) for result in document.checks)
    document = msgspec.structs.replace(document, checks=signed)
    rows = _merged(_rows(signed))
    lines = [_heading(document), ""]
    lines += _table(rows, width, colour=colour)
    if document.ranks is not None:
        from topsmon.report import ranks_text

        lines += ranks_text.lines(document.ranks, document.balance, width)
    for finding in _findings(document, width, colour=colour):
        lines += ["", *finding]
    advice = without_gpu(document)
    lines += [
        "",
        *(_wrapped(advice, "", width) if advice else ()),
        _verdict(document, colour=colour),
    ]
    if any(row.first.experimental and row.first.threshold_text for row in rows):
        note = f"{EXPERIMENTAL} chosen by topsmon, since nobody published one: it never fails"
        lines.insert(-1, note)
    content = "\n".join(line.rstrip() for line in lines) + "\n"
    return content.encode("ascii", "replace").decode("ascii") if ascii_only else content


def _heading(document: CheckDocument) -> str:
    parts = [f"topsmon check  {plain(document.host, 60)}  {subject(document)}"]
    if document.driver_version:
        cuda = f", CUDA {document.cuda_version}" if document.cuda_version else ""
        parts.append(plain(f"driver {document.driver_version}{cuda}", 60))
    if document.selection.quick:
        parts.append("quick: the driver alone, nothing was measured")
    if document.selection.simulated:
        parts.append(f"SIMULATED {document.selection.simulated}")
    parts += filter(None, [age(document)])
    return "  ".join(parts)


def _signed(result: events.CheckResult, signs: Mapping[str, str]) -> events.CheckResult:
    """The result with the signs that the terminal can show."""
    expected = result.threshold_text
    for plain_sign, sign in signs.items():
        expected = expected.replace(plain_sign, sign)
    return msgspec.structs.replace(result, threshold_text=expected)


# Table --------------------------------------------------------------------------------------------


def _rows(results: Sequence[events.CheckResult]) -> list[_Row]:
    """One row for all devices that give the same answer to a check, in the order of the checks."""
    checks = list(dict.fromkeys(result.check for result in results))
    rows = []
    for check in checks:
        groups: dict[tuple[str, ...], list[events.CheckResult]] = {}
        for result in results:
            if result.check == check:
                cause = "" if result.state == "PASS" else result.cause
                words = "" if result.value is not None else result.value_text
                key = (result.state, result.threshold_text, result.basis, cause, words)
                groups.setdefault(key, []).append(result)
        rows += [_Row(tuple(group)) for group in groups.values()]
    return rows


def _merged(rows: list[_Row]) -> list[_Row]:
    """Neighbours without a value and with one reason become one row: "12 checks"."""
    merged: list[_Row] = []
    for row in rows:
        last = merged[-1] if merged else None
        if last is not None and _alike(last, row):
            merged[-1] = _Row(last.results, last.checks + 1)
        else:
            merged.append(row)
    return merged


def _alike(one: _Row, other: _Row) -> bool:
    if one.first.state == "PASS" or one.first.value_text or other.first.value_text:
        return False
    return (one.first.state, one.first.cause, _labels(one.results)) == (
        other.first.state,
        other.first.cause,
        _labels(other.results),
    )


def _table(rows: list[_Row], width: int | None, *, colour: bool) -> list[str]:
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [
        min(max(len(line[column]) for line in cells), widest)
        for column, widest in enumerate(WIDEST)
    ]
    left = _fit(widths, width)
    lines = []
    for number, line in enumerate(cells):
        padded = [
            _cut(cell, width_of).ljust(width_of)
            for cell, width_of in zip(line, widths, strict=False)
        ]
        if colour and number:
            padded[2] = _painted(padded[2], line[2])
        last = [line[-1] if left is None else _cut(line[-1], left)] if left != 0 else []
        lines.append(GAP.join([*padded, *last]))
    return lines


def _fit(widths: list[int], width: int | None) -> int | None:
    """Narrow what was measured for the last column's sake; columns of that, 0 to leave it out."""
    if width is None:
        return None
    wanted = widths[MEASURED]
    left = width - sum(widths) - len(GAP) * len(widths)
    give = min(max(LAST_COLUMN - left, 0), max(wanted - NARROWEST, 0))
    widths[MEASURED] -= give
    if left + give >= NARROWEST:
        return left + give
    spare = width - sum(widths) - len(GAP) * (len(widths) - 1)
    widths[MEASURED] = min(wanted, widths[MEASURED] + max(spare, 0))
    return 0


def _cells(row: _Row) -> tuple[str, ...]:
    first = row.first
    reason = first.basis.split(";")[0]
    if first.state not in ("PASS", "WARN", "FAIL") and first.cause:
        reason = first.cause
    expected = first.threshold_text
    if first.experimental and expected:
        expected += EXPERIMENTAL
    cells = (
        _labels(row.results),
        first.check if row.checks == 1 else f"{row.checks} checks",
        first.state,
        _values(row.results),
        expected,
        reason,
    )
    return tuple(plain(cell, 300) for cell in cells)


def _labels(results: Sequence[events.CheckResult]) -> str:
    """Devices of a row: "GPU 0-2,4-7", "rank 0-7"."""
    found = [re.fullmatch(r"(GPU|rank) (\d+)", result.label) for result in results]
    known = [match for match in found if match is not None]
    numbers = [int(match[2]) for match in known]
    if len(numbers) != len(results) or len({match[1] for match in known}) != 1:
        return ",".join(dict.fromkeys(result.label for result in results))
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return f"{known[0][1]} " + ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in spans
    )


def _values(results: Sequence[events.CheckResult]) -> str:
    """What was measured: one value, a range of numbers, or the worst of what is no number."""
    texts = list(dict.fromkeys(result.value_text for result in results))
    if len(texts) == 1:
        return texts[0]
    known = [result for result in results if result.value is not None]
    known.sort(key=lambda result: result.value or 0.0)
    if len(known) < len(results):
        return ", ".join(texts)
    low, high = (_NUMBER_AND_UNIT.fullmatch(known[end].value_text) for end in (0, -1))
    if low is not None and high is not None and low[2] == high[2]:
        return f"{low[1]} to {known[-1].value_text}"
    worst = known[-1] if known[0].lower_is_better else known[0]
    return worst.value_text


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 2] + ".."


def _painted(shown: str, word: str) -> str:
    code = COLOURS.get(word)
    return shown if code is None else f"\x1b[{code}m{shown}\x1b[0m"


# Findings -----------------------------------------------------------------------------------------


def _findings(document: CheckDocument, width: int | None, *, colour: bool) -> Iterator[list[str]]:
    """One paragraph for each cause, worst first: what it is about, the numbers, what to do."""
    groups: dict[tuple[str, ...], list[events.CheckResult]] = {}
    harmless = [one for one in document.checks if one.state == "INVALID" and not one.unknown]
    for result in (*worst_first(document), *harmless):
        cause = result.cause or result.title
        if result.state not in ("WARN", "FAIL"):
            cause = _NUMBER.sub("", cause)
        key = (result.state, cause, result.remedy, result.command)
        groups.setdefault(key, []).append(result)
    told: set[tuple[str, str]] = set()
    for results in groups.values():
        yield _paragraph(results, told, width, colour=colour)


def _remedy(
    first: events.CheckResult, labels: str, told: set[tuple[str, str]], width: int | None
) -> list[str]:
    """What to do, told once for each device: one cause often shows in several checks."""
    new = [
        words for words in (first.remedy, first.command) if words and (labels, words) not in told
    ]
    told |= {(labels, words) for words in new}
    remedy = first.remedy if not first.remedy or first.remedy in new else "see above"
    lines = _wrapped(remedy, "   -> ", width) if remedy else []
    return lines + ([f"      {plain(first.command)}"] if first.command in new else [])


def _paragraph(
    results: list[events.CheckResult],
    told: set[tuple[str, str]],
    width: int | None,
    *,
    colour: bool,
) -> list[str]:
    first = results[0]
    labels = _labels(list({result.label: result for result in results}.values()))
    remedy = _remedy(first, labels, told, width)
    heading = _wrapped(f"{first.state}  {labels}  {_cause(results)}", "", width, hanging=6)
    if colour:
        word = _painted(first.state, first.state)
        heading[0] = word + heading[0].removeprefix(first.state)
    if first.state not in ("WARN", "FAIL"):
        checks = ", ".join(dict.fromkeys(result.check for result in results))
        return [*heading, *_wrapped(checks, "      ", width), *remedy]
    facts = (*_measured(results), *first.evidence)
    bases = dict.fromkeys(result.basis for result in results if result.basis)
    basis = first.basis if len(bases) == 1 else "; ".join(text.split(";")[0] for text in bases)
    return [
        *heading,
        *(line for fact in facts for line in _wrapped(fact, "      ", width)),
        *remedy,
        *(_wrapped(f"basis: {basis}", "      ", width) if basis else ()),
    ]


def _cause(results: list[events.CheckResult]) -> str:
    """The cause; where the same words come with several numbers, from the least to the most."""
    words = results[0].cause or results[0].title
    numbers = [_NUMBER.findall(result.cause) for result in results]
    if any(len(found) != 1 for found in numbers) or len({found[0] for found in numbers}) == 1:
        return words
    ordered = sorted((found[0] for found in numbers), key=float)
    return _NUMBER.sub(f"{ordered[0]} to {ordered[-1]}", words)


def _measured(results: list[events.CheckResult]) -> Iterator[str]:
    """One line a check: what was measured, what was expected."""
    for row in _rows(results):
        expected = row.first.threshold_text
        yield f"{row.first.check}: {_values(row.results) or row.first.title}" + (
            f" (expected {expected})" if expected else ""
        )


def _wrapped(
    words: str, indent: str, width: int | None, *, hanging: int | None = None
) -> list[str]:
    safe = plain(words)
    if width is None:
        return [f"{indent}{safe}"]
    return textwrap.wrap(
        safe,
        max(width, 40),
        initial_indent=indent,
        subsequent_indent=" " * (len(indent) if hanging is None else hanging),
        break_on_hyphens=False,
    )


def _meaning(document: CheckDocument) -> str:
    """What the exit code says, and which option made it another than the verdict's."""
    code, status = document.exit_code, document.status
    unknown = any(result.unknown for result in document.checks)
    if status == "WARN" and code == 0:
        both = " and --unknown-ok" if unknown else ""
        return f"exit 0 because of --fail-on fail{both}"
    if status == "WARN" and code == 3:
        return "exit 3 because of --fail-on fail: warnings do not count, what is unknown does"
    if status == "UNKNOWN" and code == 0:
        return "exit 0 because of --unknown-ok"
    failed = [result for result in document.checks if result.state == "FAIL"]
    if code == 2 and failed and all(result.cause.endswith(BY_SETTING) for result in failed):
        return "exit 2: far too slow by a setting; no sign of a defect"
    return MEANINGS.get(code, f"exit {code}")


def _verdict(document: CheckDocument, *, colour: bool) -> str:
    meaning = _meaning(document)
    word = "INTERRUPTED" if document.interrupted else document.status
    shown = _painted(word, word) if colour else word
    seconds = document.duration_seconds
    return f"{shown}  {in_words(document)}, in {seconds:.1f} s ({meaning})"

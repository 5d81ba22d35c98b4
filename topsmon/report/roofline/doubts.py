"""Why numbers of a roofline must not be trusted, each reason told once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from topsmon.report.roofline.model import Point, Roof, Slope

_PERCENT = re.compile(r"\d+(?:\.\d+)?(?= ?%)")


def doubt_notes(items: Iterable[Roof | Slope | Point]) -> list[str]:
    """One note for the mark, and one for each reason; reasons that differ by a percentage join."""
    doubted = [item for item in items if not item.trusted]
    if not doubted:
        return []
    alike: dict[str, list[str]] = {}
    for item in doubted:
        if item.invalid_reason:
            alike.setdefault(_PERCENT.sub("%", item.invalid_reason), []).append(item.invalid_reason)
    reasons = [f"Not valid: {_joined(found).removesuffix('.')}." for found in alike.values()]
    return ["! marks what must not be trusted, and what is computed from it.", *reasons]


def _joined(reasons: Sequence[str]) -> str:
    """Reasons that differ by percentages as one: "only 61 to 70 % of CPU time"."""
    found = [_PERCENT.findall(reason) for reason in reasons]
    ranges = iter(
        low if low == high else f"{low} to {high}"
        for column in zip(*found, strict=True)
        for low, high in [(min(column, key=float), max(column, key=float))]
    )
    return _PERCENT.sub(lambda _: next(ranges), reasons[0])

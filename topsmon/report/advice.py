"""Precision advice as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from topsmon import units
from topsmon.device_state import DeviceState
from topsmon.diagnosis.advice import Advice, Option
from topsmon.report.columns import wrap

WIDTH = 80
INDENT = "    "
FIELD = 11
"""Columns of a field's name with the indent before it."""


def lines(device: DeviceState, advice: Sequence[Advice], width: int = WIDTH) -> list[str]:
    """Return advice for one device, one block a workload, at most `width` columns wide."""
    name = units.plain(device.identity.name, 60)
    if not advice:
        return wrap(
            "no precision advice yet: FP32, BF16 and FP16 must be measured here, or rated",
            width,
            first=f"{device.label}  {name}: ",
            rest=FIELD,
        )
    found = wrap(
        "precision for each kind of work", width, first=f"{device.label}  {name}: ", rest=4
    )
    for one in advice:
        found.append("")
        found.extend(_block(one, width))
    return found


def _block(advice: Advice, width: int) -> list[str]:
    found = wrap(advice.label, width, first=f"  {advice.workload}: ", rest=FIELD)
    found += _field("why", advice.reason, width)
    found += _field("how", advice.how, width)
    for line in advice.evidence:
        found += _field("numbers", line, width)
    for option in advice.alternatives:
        found += _field("or", _option(option), width)
    for option in advice.avoid:
        found += _field("not", _option(option), width)
    return found


def _field(name: str, text: str, width: int) -> list[str]:
    return wrap(text, width, first=f"{INDENT}{name}".ljust(FIELD + 1), rest=FIELD + 1)


def _option(option: Option) -> str:
    return f"{option.label}: {option.reason}"

"""The roofline as JSON."""

from __future__ import annotations

import msgspec

from topsmon import __version__
from topsmon.report.roofline.model import Roofline

SCHEMA = "topsmon.roofline/1"
SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or goes."""


def to_json(line: Roofline) -> bytes:
    """Return one JSON object; units are in the keys, null is "not known", `notes` say why."""
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "schema_version": SCHEMA_VERSION,
        **msgspec.to_builtins(line),
    }
    for entry, point in zip(document["points"], line.points, strict=True):
        entry["roof_ratio"] = point.roof_ratio
    return msgspec.json.encode(document) + b"\n"

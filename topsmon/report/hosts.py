"""One snapshot of several machines: each as that of a single machine, under its name."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from topsmon import __version__
from topsmon.remote.snapshot import HostReading
from topsmon.report import once
from topsmon.report.columns import wrap
from topsmon.units import plain

SCHEMA = "topsmon.hosts/1"
SCHEMA_VERSION = 1
"""Raised when a key of the document changes its meaning or goes."""


def text(readings: Sequence[HostReading], *, ascii_only: bool) -> str:
    """Return the snapshots as text, in the order given."""
    blocks = []
    for reading in readings:
        lines = [f"== {plain(reading.host, 70)} =="]
        if reading.state is None:
            lines += [*wrap(plain(reading.problem), once.WIDTH, first="N/A    ", rest=7), ""]
        else:
            lines.append(
                once.text(reading.state, reading.findings, reading.monotonic, ascii_only=ascii_only)
            )
        blocks.append("\n".join(lines))
    whole = "\n".join(blocks)
    return whole.encode("ascii", "replace").decode("ascii") if ascii_only else whole


def to_json(readings: Sequence[HostReading]) -> bytes:
    """Return one JSON document: per host its snapshot, or null and the problem in words."""
    document = {
        "schema": SCHEMA,
        "version": __version__,
        "schema_version": SCHEMA_VERSION,
        "topsmon_version": __version__,
        "hosts": [
            {
                "host": reading.host,
                "problem": reading.problem or None,
                "snapshot": None
                if reading.state is None
                else msgspec.Raw(once.to_json(reading.state, reading.findings, reading.monotonic)),
            }
            for reading in readings
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"

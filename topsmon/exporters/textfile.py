"""Metrics as a file for node_exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from topsmon.files import check_replaceable, replace

SUFFIX = ".prom"
"""node_exporter reads files that end so, and no others."""
BEGINNINGS = (b"# HELP topsmon_", b"# TYPE topsmon_", b"topsmon_")
"""A file that begins otherwise was not written here."""


def check(path: Path) -> None:
    """Raise NotReplacedError where the file may not be written; see `check_replaceable`."""
    check_replaceable(
        path, lambda content: content.startswith(BEGINNINGS), "file of topsmon's metrics"
    )


def write(path: Path, registry: CollectorRegistry) -> None:
    """Replace the file in one step. Raises NotReplacedError and OSError.

    Everybody may read it, since node_exporter runs as another user.
    """
    content = generate_latest(registry)
    check(path)
    replace(path, content, 0o644)

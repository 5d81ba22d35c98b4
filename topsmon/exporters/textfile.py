"""Metrics as a file for node_exporter's textfile collector."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

SUFFIX = ".prom"
"""node_exporter reads files that end so, and no others."""


def write(path: Path, registry: CollectorRegistry) -> None:
    """Replace the file in one step: readers see the old one or the new one. Raises OSError.

    Everybody may read it, since node_exporter runs as another user.
    """
    content = generate_latest(registry)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise

"""A file for a bug report: what the doctor found and what was read, without who and where.

What names somebody or something is replaced by short hashes; see `topsmon.redaction`.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from topsmon import events
from topsmon.doctor.model import Result
from topsmon.doctor.text import to_json
from topsmon.redaction import Redactor

KEPT_VARIABLES = (
    "TERM", "COLORTERM", "LANG", "LC_ALL", "NO_COLOR", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TMUX", "SSH_TTY", "SLURM_JOB_GPUS",
)  # fmt: skip
"""Environment variables that change what topsmon does; no other is told."""
README = """What topsmon doctor found on a machine, for a bug report.

doctor.json       the checks with their results
events.jsonl      everything that was read once
environment.json  the few variables that change what topsmon does
{redaction}
"""
REDACTED = (
    "Names, identifiers and arguments of processes were replaced by hashes of this file's own."
)
COMPLETE = "Nothing was redacted (--include-identifiers)."


def write(
    path: Path,
    results: Sequence[Result],
    collected: Sequence[events.AnyEvent],
    environment: Mapping[str, str],
    *,
    identifiers: bool = False,
) -> None:
    """Write the bundle, a .tar.gz of mode 0600; raises OSError."""
    redactor = None if identifiers else Redactor(environment)
    kept = {name: environment[name] for name in KEPT_VARIABLES if name in environment}
    plain = [event if redactor is None else redactor.event(event) for event in collected]
    documents = {
        "README.txt": README.format(redaction=COMPLETE if identifiers else REDACTED),
        "doctor.json": to_json(results).decode(),
        "events.jsonl": b"".join(events.encode(event) for event in plain).decode(),
        "environment.json": msgspec.json.format(msgspec.json.encode(kept)).decode() + "\n",
    }
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, document in documents.items():
            data = (document if redactor is None else redactor.text(document)).encode()
            member = tarfile.TarInfo(f"topsmon-bundle/{name}")
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(data))

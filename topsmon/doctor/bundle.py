"""A file for a bug report: what the doctor found and what was read, without who and where.

What names somebody or something is replaced by short hashes; see `topsmon.redaction`.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from topsmon import events
from topsmon.doctor.model import Result
from topsmon.doctor.text import to_json
from topsmon.files import NotReplacedError, check_replaceable, replace
from topsmon.redaction import Redactor

KEPT_VARIABLES = (
    "TERM", "COLORTERM", "LANG", "LC_ALL", "NO_COLOR", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TMUX", "SSH_TTY", "SLURM_JOB_GPUS",
)  # fmt: skip
"""Environment variables that change what topsmon does; no other is told."""
FOLDER = "topsmon-bundle/"
"""Every file of a bundle is in it."""
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
    force: bool = False,
) -> None:
    """Write the bundle, a .tar.gz of mode 0600, whole or not at all.

    Raises NotReplacedError as `check` does, and OSError.
    """
    redactor = None if identifiers else Redactor(environment)
    kept = {name: environment[name] for name in KEPT_VARIABLES if name in environment}
    plain = [event if redactor is None else redactor.event(event) for event in collected]
    documents = {
        "README.txt": README.format(redaction=COMPLETE if identifiers else REDACTED),
        "doctor.json": to_json(results).decode(),
        "events.jsonl": b"".join(events.encode(event) for event in plain).decode(),
        "environment.json": msgspec.json.format(msgspec.json.encode(kept)).decode() + "\n",
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, document in documents.items():
            data = (document if redactor is None else redactor.text(document)).encode()
            member = tarfile.TarInfo(f"{FOLDER}{name}")
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(data))
    check(path, force=force)
    replace(path, packed.getvalue(), 0o600)


def check(path: Path, *, force: bool) -> None:
    """Raise NotReplacedError where a file exists, unless `force`, or none may be made.

    What is no bundle, a link and a file of another user are not written over at all.
    """
    if not force and os.path.lexists(path):
        raise NotReplacedError(f"{path} exists; name another file, or use --force")
    check_replaceable(path, is_bundle, "bundle of topsmon doctor")


def is_bundle(content: bytes) -> bool:
    """Tell whether this is a bundle, by its first file."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            first = archive.next()
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        return False
    return first is not None and first.name.startswith(FOLDER)

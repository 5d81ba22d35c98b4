"""A file for a bug report: what the doctor found and what was read, without who and where.

Host, user, folders of the user, UUIDs, serial and PCI numbers, addresses and the arguments of
processes are replaced by short hashes: equal ones stay equal, so that the report can be followed.
"""

from __future__ import annotations

import getpass
import hashlib
import io
import os
import re
import secrets
import socket
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from topsmon import events
from topsmon.doctor.model import Result
from topsmon.doctor.text import to_json

KEPT_VARIABLES = (
    "TERM", "COLORTERM", "LANG", "LC_ALL", "NO_COLOR", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TMUX", "SSH_TTY", "SLURM_JOB_GPUS",
)  # fmt: skip
"""Environment variables that change what topsmon does; no other is told."""
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F-]{8,}(/\d+)*")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
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


class Redactor:
    """Replaces what identifies by hashes that mean nothing outside this one bundle."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._salt = secrets.token_bytes(16)
        self._names: dict[str, str] = {}
        home = environment.get("HOME", "")
        for kind, name in (("home", home), ("user", _user()), ("host", socket.gethostname())):
            # A name of one or two letters would be found in every word.
            if len(name.strip("/")) > 2:
                self._names[name] = self._hashed(kind, name)

    def text(self, text: str) -> str:
        """Return a text without names, UUIDs and addresses."""
        for name in sorted(self._names, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", self._names[name], text)
        text = _UUID.sub(lambda found: self._hashed(found[1], found[0]), text)
        text = _MAC.sub(lambda found: self._hashed("mac", found[0]), text)
        return _ADDRESS.sub(_without_address, text)

    def _hashed(self, kind: str, name: str) -> str:
        digest = hashlib.blake2b(name.encode("utf-8", "replace"), key=self._salt, digest_size=4)
        return f"{kind}-{digest.hexdigest()}"

    def event(self, event: events.AnyEvent) -> events.AnyEvent:
        """Return an event without its host, and without the arguments of processes and runs."""
        host, _, device = event.source.partition("/")
        source = self._hashed("host", host) + (f"/{device}" if device else "")
        event = msgspec.structs.replace(event, source=source)
        if isinstance(event, events.Host):
            return msgspec.structs.replace(event, hostname=source)
        if isinstance(event, events.Processes) and event.entries is not None:
            entries = tuple(self._process(entry) for entry in event.entries)
            return msgspec.structs.replace(event, entries=entries)
        if isinstance(event, events.Run):
            return msgspec.structs.replace(
                event,
                command=_program(event.command) or "",
                hostname=self._hashed("host", event.hostname),
            )
        if isinstance(event, events.Device):
            bus = event.pci_bus_id
            return msgspec.structs.replace(event, pci_bus_id=bus and self._hashed("pci", bus))
        return event

    def _process(self, entry: events.ProcessEntry) -> events.ProcessEntry:
        return msgspec.structs.replace(
            entry,
            command=_program(entry.command),
            user=entry.user and self._hashed("user", entry.user),
        )


def _without_address(found: re.Match[str]) -> str:
    """A driver's version has three dots at the most too; an address has four numbers to 255."""
    numbers = found[0].split(".")
    return "address" if all(int(number) <= 255 for number in numbers) else found[0]


def _program(command: str | None) -> str | None:
    """The program of a command line, without its folder and its arguments."""
    return command and (command.split(maxsplit=1) or [""])[0].rpartition("/")[2]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


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

"""What goes to strangers: without who and where.

Host, user, folders of the user, UUIDs, serial and PCI numbers, addresses and the arguments of
processes are replaced by short hashes: equal ones stay equal, so that a report can be followed.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import secrets
import socket
from collections.abc import Collection, Mapping

import msgspec

from topsmon import events
from topsmon.run_state import script_words
from topsmon.units import CUT_SIGN, plain

_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F-]{8,}(/\d+)*")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
_PCI = re.compile(r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
_HOME = re.compile(r"/(?:home|Users|u|users)/([^/\s:,;'\"]+)")
_MODULE = re.compile(r"\b((?:python|pypy)[\d.]*)(?: -[A-Za-z]+)*? -m \S+")
"""A module that an interpreter runs, of a process that is not known."""
_FREE_TEXT = ("title", "cause", "remedy", "command", "detail", "message", "reason", "note",
              "invalid_reason")  # fmt: skip
"""Fields of events that hold sentences, in which a command line may stand."""
SHORTEST_NAME = 3
"""A name of one or two letters would be found in every word."""
COMMANDS_KEPT = 1024
CUT_SIGNS = (CUT_SIGN, CUT_SIGN.lstrip())


ANYBODY = frozenset({"root", "user", "admin", "nobody", "localhost"})
"""Names that identify nobody, and are words of sentences ("square root")."""


class Redactor:
    """Replaces what identifies by hashes that mean nothing outside this one document."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._salt = secrets.token_bytes(16)
        self._names: dict[str, str] = {}
        self._commands: dict[str, set[str]] = {}
        self._commands_known = 0
        self._learn("home", environment.get("HOME", ""))
        self._learn("user", _user())
        self._learn("host", socket.gethostname())

    def _learn(self, kind: str, name: str) -> None:
        if len(name.strip("/")) >= SHORTEST_NAME and name not in ANYBODY:
            self._names.setdefault(name, self._hashed(kind, name))

    def _learn_command(self, command: str | None) -> None:
        """Know a command line again wherever a text quotes it, with or without its folders."""
        if not command or " " not in command or self._commands_known >= COMMANDS_KEPT:
            return
        words = plain(" ".join(command.split())).split(" ")
        short = [word.rpartition("/")[2] or word for word in words]
        for known in ([short[0], *words[1:]], short):
            commands = self._commands.setdefault(short[0], set())
            self._commands_known += " ".join(known) not in commands
            commands.add(" ".join(known))

    def _learn_script(self, command: str) -> None:
        """Know a run's name again, which findings call it by: its script or module."""
        script = (script_words(command) or [""])[0].rpartition("/")[2]
        if " " in command.strip() and script.partition(".")[0] not in {
            "topsmon",
            _program(command),
        }:
            self._learn("script", script)

    def text(self, text: str) -> str:
        """Return a text without names, command lines, UUIDs and addresses."""
        for program, commands in self._commands.items():
            text = _without_commands(text, program, commands)
        text = _MODULE.sub(r"\1", text)
        for name in sorted(self._names, key=len, reverse=True):
            if name in text:
                text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", self._names[name], text)
        text = _UUID.sub(lambda found: self._hashed(found[1], found[0]), text)
        text = _MAC.sub(lambda found: self._hashed("mac", found[0]), text)
        text = _PCI.sub(lambda found: self._hashed("pci", found[0]), text)
        text = _HOME.sub(lambda found: self._hashed("home", found[0]), text)
        return _ADDRESS.sub(_without_address, text)

    def _hashed(self, kind: str, name: str) -> str:
        digest = hashlib.blake2b(name.encode("utf-8", "replace"), key=self._salt, digest_size=4)
        return f"{kind}-{digest.hexdigest()}"

    def event(self, event: events.AnyEvent) -> events.AnyEvent:
        """Return an event without its host, and without the arguments of processes and runs.

        The names in it are known from then on, also those of another machine than this one.
        """
        host, _, device = event.source.partition("/")
        if isinstance(event, (events.Host, events.HostSample)):
            self._learn("host", host)
        source = self._hashed("host", host) + (f"/{device}" if device else "")
        event = msgspec.structs.replace(event, source=source)
        if isinstance(event, events.Host):
            self._learn("host", event.hostname)
            return msgspec.structs.replace(event, hostname=self._hashed("host", event.hostname))
        if isinstance(event, events.Processes) and event.entries is not None:
            entries = tuple(self._process(entry) for entry in event.entries)
            return msgspec.structs.replace(event, entries=entries)
        if isinstance(event, events.Run):
            self._learn("host", event.hostname)
            self._learn_command(event.command)
            self._learn_script(event.command)
            return msgspec.structs.replace(
                event,
                command=_program(event.command) or "",
                hostname=self._hashed("host", event.hostname),
            )
        if isinstance(event, events.Device):
            bus = event.pci_bus_id
            return msgspec.structs.replace(event, pci_bus_id=bus and self._hashed("pci", bus))
        return self._sentences(event)

    def _sentences(self, event: events.AnyEvent) -> events.AnyEvent:
        changes = {
            name: self.text(text)
            for name in _FREE_TEXT
            if isinstance(text := getattr(event, name, None), str) and text
        }
        if isinstance(event, events.Finding):
            evidence = tuple(self.text(one) for one in event.evidence)
            return msgspec.structs.replace(event, evidence=evidence, **changes)
        return msgspec.structs.replace(event, **changes) if changes else event

    def _process(self, entry: events.ProcessEntry) -> events.ProcessEntry:
        self._learn_command(entry.command)
        self._learn("user", entry.user or "")
        return msgspec.structs.replace(
            entry,
            name=_program(entry.name),
            ancestors=tuple(
                msgspec.structs.replace(one, name=_program(one.name)) for one in entry.ancestors
            ),
            command=_program(entry.command),
            user=entry.user and self._hashed("user", entry.user),
        )


def _without_commands(text: str, program: str, commands: Collection[str]) -> str:
    """The text with the program alone where it quotes one of its command lines, even a cut one."""
    begin = text.find(f"{program} ")
    while begin >= 0:
        if begin == 0 or not text[begin - 1].isalnum():
            end = max(_quoted_until(text, begin, command) for command in commands)
            if end > begin + len(program):
                text = text[:begin] + program + text[end:]
        begin = text.find(f"{program} ", begin + len(program))
    return text


def _quoted_until(text: str, begin: int, command: str) -> int:
    """Where a quotation of this command line ends that begins there: after whole words of it."""
    quoted = text[begin : begin + len(command)]
    pairs = enumerate(zip(quoted, command, strict=False))
    length = next((place for place, (one, other) in pairs if one != other), len(quoted))
    end = begin + length
    cut = next((sign for sign in CUT_SIGNS if text.startswith(sign, end)), None)
    if cut is not None:
        return end + len(cut)
    if end == len(text) or (length == len(command) and not text[end].isalnum()):
        return end
    if not (text[end] == " " and command[length] == " "):
        length = max(command.rfind(" ", 0, length), 0)
    # "-m" alone says nothing of which module it was.
    return begin + len(command[:length].removesuffix(" -m"))


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

"""The command line that reads another machine, and what its ending means.

The user's own ssh with the user's own configuration: aliases, ProxyJump, agents and known_hosts
are ssh's matter. No host key check is weakened and nothing is asked for: a screen cannot answer.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from topsmon.remote.hostnames import check, ssh_name
from topsmon.units import plain

SSH_OPTIONS = (
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=5",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=2",
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",
    "-oForwardX11=no",
    # An existing master connection is used, but none is left behind in the background.
    "-oControlMaster=no",
)
EXITS_WITHOUT_PROGRAM = (126, 127)
"""A shell's words for a program that cannot be run, or is not there."""
EXIT_SSH = 255
EXIT_USAGE = 64
_REMOTE_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./~-]+")
_UNTRUSTED = re.compile(r"permission denied|host key verification failed", re.IGNORECASE)


class CommandError(ValueError):
    """A command of the user's that cannot be used. The text is one line for the user."""


@dataclass(frozen=True)
class LinkOptions:
    """How a machine is reached and what is asked of it.

    `ssh` and `remote` are the words that start ssh here and topsmon there. `simulated` has the
    other machine read a simulated driver.
    """

    ssh: tuple[str, ...] = ("ssh",)
    remote: tuple[str, ...] = ("topsmon",)
    interval: float = 1.0
    only: tuple[str, ...] = ()
    only_visible: bool = False
    simulated: str | None = None


class Ending(NamedTuple):
    """Why a stream ended, in words. "refused": trying again soon would not help."""

    condition: Literal["gone", "refused"]
    detail: str


def ssh_words(text: str) -> tuple[str, ...]:
    """Return the words of `--ssh`, such as "ssh -F FILE". Raises CommandError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise CommandError(f"--ssh {text!a}: {error}") from error
    if not words or not all(words) or not all(word.isprintable() for word in words):
        raise CommandError(f"--ssh {text!a}: name a program, such as 'ssh -F FILE'")
    return words


def remote_words(text: str) -> tuple[str, ...]:
    """Return the words of `--remote-command`. Raises CommandError.

    A leading "~/" is left out: a command of ssh starts in the home folder, and quoted words are
    not expanded there.
    """
    words = text.split()
    for word in words:
        if not _REMOTE_WORD.fullmatch(word):
            raise CommandError(
                f"--remote-command: {word!a} has characters that a shell might read; "
                "use a plain path such as ~/venv/bin/topsmon"
            )
    if not words or words[0].startswith("-"):
        raise CommandError("--remote-command: name the program, such as ~/venv/bin/topsmon")
    words = [f"./{word[2:]}" if word.startswith("~/") else word for word in words]
    if any("~" in word for word in words):
        raise CommandError("--remote-command: '~' stands for the home folder only as in ~/path")
    return tuple(words)


def command(host: str, options: LinkOptions) -> list[str]:
    """Return the words that start a stream on `host`. Raises HostNameError."""
    there = [*options.remote, "stream", "--until-stdin-closes", "--interval", f"{options.interval}"]
    for selection in options.only:
        there += ["--only", selection]
    if options.only_visible:
        there.append("--only-visible")
    if options.simulated is not None:
        there += ["--simulate", options.simulated]
    # The other side joins these words and hands them to a shell.
    return [*options.ssh, *SSH_OPTIONS, "--", ssh_name(check(host)), shlex.join(there)]


def explain(host: str, code: int | None, stderr: Sequence[str], options: LinkOptions) -> Ending:
    """Say how the stream of a host ended, and what to do. `code` None: ssh could not be started."""
    last = next((line for line in reversed(stderr) if line.strip()), "")
    words = plain(last.strip(), 300)
    if code is None:
        return Ending("refused", f"{words}; install OpenSSH's client, or name yours with --ssh")
    if code in EXITS_WITHOUT_PROGRAM:
        program = plain(options.remote[0], 100)
        return Ending(
            "refused",
            f"{program} cannot be run there{_said(words)}; install topsmon on {host}, or say where "
            "it is with --remote-command ~/path/to/topsmon",
        )
    if code == EXIT_USAGE:
        return Ending("refused", f"topsmon there refuses{_said(words)}")
    if code == EXIT_SSH and _UNTRUSTED.search(last):
        return Ending("refused", f"{words}; run `ssh {host}` once in a terminal")
    return Ending("gone", _gone(code, words))


def _gone(code: int, words: str) -> str:
    if code == EXIT_SSH:
        return words or "ssh ended without a message"
    if code < 0:
        return f"ssh was ended by {_signal(-code)}"
    return f"topsmon there ended with exit code {code}{_said(words)}"


def _said(words: str) -> str:
    return f" ({words})" if words else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

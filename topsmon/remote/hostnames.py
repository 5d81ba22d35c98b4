"""Host names as the user gives them: validated, expanded, counted.

A name becomes a word of ssh's command line and of what ssh itself runs (ProxyCommand), so it is
taken only if it can be nothing but a name: never an option, never anything a shell could read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from topsmon.files import read_regular

MAX_HOSTS = 200
"""More ssh processes than this are no way to look at a cluster."""
MAX_FILE_BYTES = 1_000_000
MAX_FILE_HOSTS = 1000
MAX_NAME_LENGTH = 255
MANY_HOSTS = (
    f"topsmon reads at most {MAX_HOSTS} hosts through ssh; for more, let Prometheus scrape "
    "`topsmon export --prometheus` and use topsmon fleet --prometheus URL"
)

_WORD = r"[A-Za-z0-9._][A-Za-z0-9._-]*"
_NAME = re.compile(rf"(?:{_WORD}@)?{_WORD}")
_ADDRESS = re.compile(rf"(?:{_WORD}@)?\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?\]")
_RANGES = re.compile(r"\[([0-9,-]+)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SLOTS = re.compile(r"[A-Za-z_-]+=[0-9]+")
"""What an MPI host file may say after a name, such as "slots=8"."""


class HostNameError(ValueError):
    """A host name, or a list of them, that cannot be used. The text is one line for the user."""


def gather(hosts: Sequence[str], hostfile: Path | None = None) -> tuple[str, ...]:
    """Return the hosts of `--host` and `--hostfile` in order, each once. Raises HostNameError."""
    found: dict[str, None] = {}
    for text in hosts:
        found.update(dict.fromkeys(parse(text)))
    if hostfile is not None:
        found.update(dict.fromkeys(read_file(hostfile)))
    if len(found) > MAX_HOSTS:
        raise HostNameError(f"{len(found)} hosts: {MANY_HOSTS}")
    if not found:
        raise HostNameError("no host named: give --host NAME[,NAME...]")
    return tuple(found)


def parse(text: str) -> list[str]:
    """Return the hosts of a list such as "a,me@b,node[01-12],[fe80::1]". Raises HostNameError."""
    names: list[str] = []
    for part in _split(text):
        names += _expanded(part)
        if len(names) > MAX_FILE_HOSTS:
            raise HostNameError(f"more than {MAX_FILE_HOSTS} hosts: {MANY_HOSTS}")
    return names


def check(name: str) -> str:
    """Return a name that is safe to hand to ssh. Raises HostNameError."""
    if len(name) <= MAX_NAME_LENGTH and (_NAME.fullmatch(name) or _ADDRESS.fullmatch(name)):
        return name
    raise HostNameError(
        f"{_shown(name)} is no host name: letters, digits, '.', '_' and '-' (not first), "
        "optionally user@ before or [IPv6]; ports and the rest belong in ~/.ssh/config"
    )


def ssh_name(name: str) -> str:
    """Return a checked name as ssh wants it: without the brackets of an IPv6 address."""
    return name.replace("[", "").replace("]", "")


def read_file(path: Path) -> list[str]:
    """Return the hosts of a file, one or one list a line, `#` begins a comment.

    Raises HostNameError.
    """
    try:
        content = read_regular(path, MAX_FILE_BYTES + 1)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HostNameError(f"--hostfile {path}: not text in UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise HostNameError(f"--hostfile {path}: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise HostNameError(f"--hostfile {path}: over 1 MB, so it is no list of hosts")
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            names += _of_line(line)
        except HostNameError as error:
            raise HostNameError(f"--hostfile {path}, line {number}: {error}") from error
        if len(names) > MAX_FILE_HOSTS:
            raise HostNameError(f"--hostfile {path}: over {MAX_FILE_HOSTS} hosts: {MANY_HOSTS}")
    if not names:
        raise HostNameError(f"--hostfile {path}: no host in it")
    return names


def _of_line(line: str) -> list[str]:
    words = line.partition("#")[0].split()
    if not words:
        return []
    for word in words[1:]:
        if not _SLOTS.fullmatch(word):
            raise HostNameError(f"{_shown(word)} after the host name: one host a line")
    return parse(words[0])


def _split(text: str) -> Iterator[str]:
    """The parts between commas; a comma within brackets is part of a range."""
    depth, part = 0, ""
    for char in text:
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield part
            part = ""
        else:
            part += char
    yield part


def _expanded(pattern: str) -> list[str]:
    """The names of a SLURM-style pattern: node[01-03,7]-ib. Counted before anything is built."""
    pieces = _RANGES.split(pattern)
    if len(pieces) == 1:
        return [check(pattern)]
    # A name with every range replaced by a digit must already be a name.
    check("0".join(pieces[::2]))
    ranges = [_bounds(text, pattern) for text in pieces[1::2]]
    count = 1
    for bounds in ranges:
        count *= sum(last - first + 1 for first, last, _ in bounds)
    if count > MAX_FILE_HOSTS:
        raise HostNameError(f"{_shown(pattern)} names {count} hosts: {MANY_HOSTS}")
    choices = [
        [f"{value:0{width}}" for first, last, width in bounds for value in range(first, last + 1)]
        for bounds in ranges
    ]
    fixed = pieces[::2]
    return [
        check("".join(itertools.chain(*zip(fixed, (*numbers, ""), strict=True))))
        for numbers in itertools.product(*choices)
    ]


def _bounds(text: str, pattern: str) -> list[tuple[int, int, int]]:
    """First, last and width of each range of "01-03,7"."""
    bounds = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(last) < int(first):
            raise HostNameError(f"{_shown(pattern)}: [{text}] is no range such as [01-12] or [1,3]")
        bounds.append((int(first), int(last), len(first)))
    return bounds


def _shown(text: str) -> str:
    """Outside text for a message: quoted, on one line, without control characters."""
    shown = ascii(text[:60])
    return f"{shown}..." if len(text) > 60 else shown

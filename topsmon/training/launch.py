"""What `topsmon run` gives a command: the environment that lets the recorder in, and its options.

Python looks for `sitecustomize` on PYTHONPATH at every start, so one folder in front of it reaches
the command's own children as well: torchrun's ranks, spawned workers, launchers that start Python.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topsmon.training.places import with_absolute_folder

BOOT = str(Path(__file__).resolve().parent / "recorder" / "boot")
OFF = "TOPSMON_OFF"
_PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?\Z")
_WITH_VALUE = "WX"
"""Python's short options that take a value; after -c and -m the program's own words begin."""
_SHUT_OUT = "EIS"
_ENV_WITH_VALUE = frozenset({"-u", "--unset", "-C", "--chdir"})
_ENV_SHORT = re.compile(r"-[0v]*i[0v]*")
_FIRST_LINE_BYTES = 256


@dataclass(frozen=True)
class Options:
    """What a run is told to record beside its steps; None: by itself or not at all.

    `flops` is "sample" or a number of FLOPs per optimizer step, `profile_step` the step to profile.
    """

    flops: str | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    profile_step: int | None = None
    debug: bool = False


def new_launch() -> str:
    """A name that no other launch on any host has."""
    return secrets.token_hex(8)


def environment(outer: Mapping[str, str], launch: str, options: Options) -> dict[str, str]:
    """The command's environment: ours in front of the user's PYTHONPATH, and the options."""
    inner = dict(outer)
    theirs = outer.get("PYTHONPATH", "")
    if theirs.split(os.pathsep)[0] == BOOT:  # one `topsmon run` inside another
        theirs = theirs[len(BOOT) + len(os.pathsep) :]
    # An empty entry would put the working folder on the search path.
    inner["PYTHONPATH"] = BOOT + os.pathsep + theirs if theirs else BOOT
    inner["TOPSMON_LAUNCH"] = launch
    inner["TOPSMON_ENTRY"] = "run"
    if "TOPSMON_DIR" in outer:
        inner["TOPSMON_DIR"] = with_absolute_folder(outer)["TOPSMON_DIR"]
    for field, name in _NAMES.items():
        value = getattr(options, field)
        if value:
            inner[name] = "1" if value is True else str(value)
    return inner


_NAMES = {
    "flops": "TOPSMON_FLOPS",
    "tokens_per_step": "TOPSMON_TOKENS_PER_STEP",
    "samples_per_step": "TOPSMON_SAMPLES_PER_STEP",
    "profile_step": "TOPSMON_PROFILE_STEP",
    "debug": "TOPSMON_DEBUG",
}


def shut_out(words: Sequence[str], path: str, outer: Mapping[str, str]) -> str | None:
    """Why the recorder cannot get into this command, in words; None if nothing is seen against it.

    `path` is the file that the command names. Only the command itself is looked at: what it starts
    in turn is not known yet.
    """
    if outer.get(OFF, "") not in {"", "0"}:
        return f"{OFF}={outer[OFF]} is set"
    for line in (words, _first_line(path)):
        flag = python_flag(line)
        if flag is not None:
            return f"Python's {flag} keeps it out"
        if wipes_environment(line):
            return "env -i takes PYTHONPATH away, by which it gets in"
    return None


def python_flag(words: Sequence[str]) -> str | None:
    """The option -I, -E or -S of the first Python among some words, None without one."""
    start = next((at for at, word in enumerate(words) if _PYTHON.match(Path(word).name)), None)
    if start is None:
        return None
    rest = iter(words[start + 1 :])
    for word in rest:
        if not word.startswith("-") or word in {"-", "--"}:
            return None
        if word.startswith("--"):
            continue
        for at, letter in enumerate(word[1:], 1):
            if letter in _SHUT_OUT:
                return f"-{letter}"
            if letter in "cm":
                return None
            if letter in _WITH_VALUE:
                if at == len(word) - 1:
                    next(rest, None)
                break
    return None


def wipes_environment(words: Sequence[str]) -> bool:
    """True for env(1) that empties the environment before what it starts."""
    start = next((at for at, word in enumerate(words) if Path(word).name == "env"), None)
    if start is None:
        return False
    rest = iter(words[start + 1 :])
    for word in rest:
        if word in _ENV_WITH_VALUE:
            next(rest, None)
        elif word in {"-", "--ignore-environment"} or _ENV_SHORT.fullmatch(word):
            return True
        elif not word.startswith("-") and "=" not in word:
            return False
    return False


def _first_line(path: str) -> list[str]:
    """The words of a script's "#!" line."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(_FIRST_LINE_BYTES)
    except OSError:
        return []
    if not start.startswith(b"#!"):
        return []
    return start[2:].partition(b"\n")[0].decode("utf-8", "replace").split()

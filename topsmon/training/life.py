"""Whether a run lives, and how it ended: from its process where that can be seen, else by age."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from topsmon import events
from topsmon.training.reader import Happening, ProcessFacts
from topsmon.training.recorder import process
from topsmon.units import duration

SILENT_SECONDS = 10.0
SILENT_STEPS = 20.0
"""A run is silent after this long, or this many of its slowest usual steps, whichever is more."""
SILENT_AT_START_SECONDS = 60.0
"""While no step's time is known: the first ones compile, and load data."""
STOPPED_SECONDS = 2.0
STOPPED = "stopped (Ctrl-Z or SIGSTOP)"
GONE_SECONDS = 900.0
GONE_STEPS = 60.0
"""The same for when a run whose process cannot be seen from here counts as ended."""
_DEAD_STATES = frozenset("ZXx")
_WITHOUT_A_WORD = "ended without a word: killed, out of memory, or crashed"


@dataclass(frozen=True)
class Here:
    """What this process knows of where it runs; `booted` in s since the epoch."""

    boot_id: str
    pid_namespace: str
    booted: float | None
    proc: str = "/proc"

    @classmethod
    def read(cls) -> Here:
        """Read it from the kernel."""
        return cls(process.boot_id(), process.pid_namespace(), process.booted())


@dataclass(frozen=True)
class Life:
    """A run's condition. `certain` is False where it was judged by age alone."""

    condition: events.RunCondition
    since: float
    detail: str = ""
    exit_code: int | None = None
    certain: bool = True

    @property
    def ended(self) -> bool:
        """True once the run has ended, as far as can be told."""
        return self.condition not in {"running", "silent"}


def visible(facts: ProcessFacts, here: Here) -> bool:
    """True where the run's PID means a process that can be seen from here."""
    return facts.boot_id == here.boot_id and facts.pid_namespace == here.pid_namespace


def process_lives(facts: ProcessFacts, here: Here) -> bool | None:
    """Whether the run's process is there and no zombie; None where it cannot be seen from here.

    A PID is given anew in time: the start must match too.
    """
    if facts.boot_id != here.boot_id:
        before = here.booted is not None and facts.started < here.booted
        return False if before else None
    if not visible(facts, here):
        return None
    if facts.process_started is None:
        return _signalled(facts.pid)
    found = process.status_of(facts.pid, here.proc)
    return found is not None and found[0] not in _DEAD_STATES and found[1] == facts.process_started


def life(
    facts: ProcessFacts,
    stepped_at: float | None,
    high_step_seconds: float | None,
    happenings: Sequence[Happening],
    here: Here,
    now: float,
) -> Life:
    """Judge a run by its process, its newest step and its last words; times in s since the epoch.

    Words that the run has outlived (steps came after them) are not its last.
    """
    last = facts.started if stepped_at is None else stepped_at
    words = [happening for happening in happenings if happening.time >= last]
    end, exception = _last(words, "end"), _last(words, "exception")
    if exception is not None and exception.values.get("handled"):
        exception = None
    if end is not None:
        return _ended(end, exception)
    alive = process_lives(facts, here)
    if alive is False:
        if exception is not None:
            return Life("failed", exception.time, _exception_words(exception))
        restarted = facts.boot_id != here.boot_id
        return Life("gone", last, "the machine was restarted" if restarted else _WITHOUT_A_WORD)
    age = now - last
    usual = high_step_seconds or 0.0
    if alive is None and age > max(GONE_SECONDS, GONE_STEPS * usual):
        words_of_age = f"no step for {duration(age)}; its process is not to be seen from here"
        return Life("gone", last, words_of_age, certain=False)
    stopped = alive is True and age > STOPPED_SECONDS and _stopped(facts, here)
    least = SILENT_SECONDS if high_step_seconds else SILENT_AT_START_SECONDS
    if stopped or age > max(least, SILENT_STEPS * usual):
        return Life("silent", last, STOPPED if stopped else "", certain=alive is not None)
    return Life("running", facts.started, certain=alive is not None)


def _last(happenings: Sequence[Happening], kind: str) -> Happening | None:
    """The last event of a kind; of several ends one that knows the exit code."""
    found = [happening for happening in happenings if happening.kind == kind]
    known = [happening for happening in found if "exit_code" in happening.values]
    return next(reversed(known or found), None)


def _ended(end: Happening, exception: Happening | None) -> Life:
    code = end.values.get("exit_code")
    exit_code = int(code) if code is not None and math.isfinite(code) else None
    if end.message.startswith("signal"):
        return Life("killed", end.time, end.message, exit_code)
    if exit_code == 0 or (exit_code is None and exception is None):
        return Life("finished", end.time, end.message, exit_code)
    if exception is None:
        return Life("failed", end.time, end.message, exit_code)
    how = f" ({end.message})" if end.message else ""
    return Life("failed", end.time, _exception_words(exception) + how, exit_code)


def _exception_words(exception: Happening) -> str:
    name = exception.names[0] if exception.names else "exception"
    return f"{name}: {exception.message}" if exception.message else name


def _stopped(facts: ProcessFacts, here: Here) -> bool:
    found = process.status_of(facts.pid, here.proc)
    return found is not None and found[0] == "T"


def _signalled(pid: int) -> bool:
    """Whether a process is there, where there is no /proc to ask."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError, ValueError):
        return False
    return True

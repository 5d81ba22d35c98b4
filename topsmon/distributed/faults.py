"""Faults for tests and demonstrations: a rank that is slow, that hangs, that dies."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from typing import NamedTuple

VARIABLE = "TOPSMON_RANK_FAULT"
"""For example "slow=1:0.03" (each GEMM of rank 1 takes 0.03 s more), "hang=1@all-reduce",
"stop=1@all-gather", "die=0@gemm"."""
_FORM = re.compile(r"(slow|hang|stop|die)=(\d+)(?::(\d+(?:\.\d+)?))?(?:@([a-z-]+))?")


class Fault(NamedTuple):
    """`kind` "slow", "hang", "stop", "die" or "" for none; `stage` where it strikes."""

    kind: str = ""
    seconds: float = 0.0
    stage: str = ""

    def lag(self) -> None:
        """Compute for nothing as long as a slow rank does: a rank that slept would seem idle."""
        until = time.perf_counter() + self.seconds
        while self.kind == "slow" and time.perf_counter() < until:
            pass

    def strike(self, stage: str) -> None:
        """Hang, stop or die if the time has come."""
        if self.kind in ("", "slow") or not stage.startswith(self.stage):
            return
        if self.kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(60.0)


def fault_of(rank: int, environment: Mapping[str, str]) -> Fault:
    """The fault of this rank. ValueError: the variable is not understood."""
    text = environment.get(VARIABLE, "")
    if not text:
        return Fault()
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f'{VARIABLE}={text!r}: not of the form "slow=1:0.03" or "hang=1@gemm"')
    kind, who, seconds, stage = found.groups()
    return Fault(kind, float(seconds or 0.0), stage or "") if int(who) == rank else Fault()

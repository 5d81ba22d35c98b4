"""The end of a launch: which rings it has made, and how its runs ended, written into them.

A process that was killed cannot say so itself; the one that started it has its exit status.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from topsmon.training import discovery
from topsmon.training.foreground import Ended
from topsmon.training.life import Here, process_lives, visible
from topsmon.training.places import own_places
from topsmon.training.reader import Identity, RingReader, RingReadError
from topsmon.training.recorder.folder import FolderError
from topsmon.training.recorder.ring import RingError, RingWriter

SIGKILL = 9
CLOCK_STEP_SECONDS = 5.0
_SHELL_SIGNALS = range(129, 193)


def rings(launch: str, environment: Mapping[str, str], began: float) -> list[Path]:
    """The rings of a launch, the oldest first. `began` is its start, s since the epoch."""
    return _rings(environment, began, lambda identity: identity.run.launch == launch)


def rings_of_process(environment: Mapping[str, str], pid: int, started: int) -> list[Path]:
    """The rings of one process, which `started` so many clock ticks after the boot."""
    return _rings(
        environment,
        0.0,
        lambda identity: (identity.process.pid, identity.process.process_started) == (pid, started),
    )


def _rings(
    environment: Mapping[str, str], began: float, wanted: Callable[[Identity], bool]
) -> list[Path]:
    found = []
    for place in own_places(environment):
        with contextlib.suppress(FolderError, OSError):
            for name in discovery.names(place):
                path = Path(place.path, name)
                with contextlib.suppress(RingReadError, OSError):
                    if path.lstat().st_mtime < began - CLOCK_STEP_SECONDS:
                        continue
                    with contextlib.closing(RingReader(path, place.owner)) as reader:
                        if wanted(reader.identity()):
                            found.append(path)
    return sorted(found)


def write(paths: list[Path], pid: int, ended: Ended, out_of_memory: str) -> None:
    """Write into the rings of ended runs how they ended, as far as it is known.

    `pid` is the command's own process. Of the others a shell's exit code 128 + N tells the signal
    of what it has run.
    """
    for path in paths:
        with contextlib.suppress(RingReadError, RingError, OSError):
            _write(path, pid, ended, out_of_memory)


def _write(path: Path, pid: int, ended: Ended, out_of_memory: str) -> None:
    with contextlib.closing(RingReader(path)) as reader:
        facts = reader.identity().process
        records = reader.window()
        ends = [happening for _, happening in reader.happenings() if happening.kind == "end"]
    here = Here.read()
    if facts.pid == pid and visible(facts, here):
        if any(end.values.get("exit_code") == ended.code for end in ends):
            return
    elif ends or ended.code not in _SHELL_SIGNALS or process_lives(facts, here) is not False:
        return
    else:
        ended = Ended(signal=ended.code - 128)
    words = ended.words
    if ended.signal == SIGKILL and out_of_memory:
        words += f"; {out_of_memory}"
    writer = RingWriter.reopen(str(path))
    try:
        step = records[-1].step if records else 0
        writer.event("end", step, words, values={"exit_code": float(ended.code)})
    finally:
        writer.close()

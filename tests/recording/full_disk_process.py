"""A recorder whose files may not grow over a limit for a while.

Arguments: FILE, bytes. Prints each problem that it is told, then how many lines were lost.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from topsmon import events
from topsmon.recording import writer as writer_module
from topsmon.recording.writer import RecordingWriter

MOST_SECONDS = 60.0


def wait(writer: RecordingWriter, *, problem: bool) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while (writer.condition.problem is not None) != problem:
        if time.monotonic() > deadline:
            raise SystemExit(f"never: {writer.condition}")
        time.sleep(0.01)
    print(writer.condition.problem, flush=True)


def write(writer: RecordingWriter, begin: int, count: int) -> None:
    for number in range(begin, begin + count):
        noise = f"{number * 2654435761 % 2**32:x}{number * 40503 % 65536:x}" * 3
        writer.write(
            events.ProberIdle(
                time=time.time(),
                monotonic=time.monotonic(),
                source="a",
                device=str(number),
                reason=noise,
            )
        )


def main() -> None:
    path, most = Path(sys.argv[1]), int(sys.argv[2])
    unlimited = resource.RLIM_INFINITY
    writer_module.FLUSH_SECONDS = 0.02
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, unlimited))
    writer = RecordingWriter(path)
    write(writer, 0, 100)
    while writer.condition.size == 0:
        time.sleep(0.01)
    write(writer, 100, 5000)
    wait(writer, problem=True)
    write(writer, 5100, 100)
    time.sleep(0.2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    wait(writer, problem=False)
    write(writer, 5200, 100)
    print(writer.close(MOST_SECONDS), writer.condition.lost_lines, flush=True)


main()

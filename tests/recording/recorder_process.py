"""A recorder to be killed: writes a numbered event every 10 ms and prints each number."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from topsmon import events
from topsmon.recording.writer import RecordingWriter


def main() -> None:
    writer = RecordingWriter(Path(sys.argv[1]))
    number = 0
    while True:
        number += 1
        writer.write(
            events.ProberIdle(
                time=time.time(),
                monotonic=time.monotonic(),
                source="a",
                device=str(number),
                reason="",
            )
        )
        print(number, flush=True)
        time.sleep(0.01)


main()

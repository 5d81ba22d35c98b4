"""A prober as its parent sees it, and its lines read with the stream's vocabulary."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from pathlib import Path

import msgspec

import topsmon
from topsmon import events

PROBES = Path(topsmon.__file__).parent / "probes"


def decode(line: bytes) -> events.AnyEvent:
    """Decode a line as the parent would, and prove that no field got lost on the way."""
    decoder = events.LineDecoder()
    event = decoder.decode(line)
    assert (decoder.malformed, decoder.skipped, decoder.last_error) == (0, 0, None)
    written = json.loads(line)
    read = json.loads(msgspec.json.encode(event))
    assert set(written) <= set(read)
    assert {name: read[name] for name in written} == written
    return event


class Child:
    """A prober as its parent sees it. Every line is checked against the vocabulary."""

    def __init__(self, command: list[str], **options) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        self.seen: list[events.AnyEvent] = []
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def say(self, **command) -> None:
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def wait_for(self, kind, seconds: float = 400.0, **fields):
        """The next event of a kind with these field values."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"the prober ended: {self.process.stderr.read().decode()}"
            event = decode(line)
            self.seen.append(event)
            if isinstance(event, kind) and all(
                getattr(event, name) == value for name, value in fields.items()
            ):
                return event

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

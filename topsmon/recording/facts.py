"""What a reader of a recording knows after damage: which lines that are told again are news.

A recording tells what is known at the head of each file, and again now and then. A reader that has
read everything passes over these lines; after a loss it takes those that it may not have seen.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topsmon import events

HELLO = b'{"type":"hello"'
IDENTITIES = tuple(b'{"type":"%s"' % tag for tag in (b"host", b"device", b"ceilings", b"run"))
"""How lines begin that tell what a thing is: whoever has them can read all that follows."""
STAND_IN = "name lost"
"""What a device is called of which no more than samples is left."""
MOST_READ_LINES = 1_000_000
"""Lines noted after a loss: a minute of a large machine; without a repetition there is no end."""
_SAMPLE = b'{"type":"sample"'
_DEVICE = b'{"type":"device"'


class _Timed(msgspec.Struct):
    time: float


_timed = msgspec.json.Decoder(_Timed)


class Facts:
    """Whether all that was told up to here has been read.

    `since` is None where it has, else the wall-clock time after which something is missing. `lossy`
    where it was there, and could not be read.
    """

    def __init__(self, since: float | None = float("-inf")) -> None:
        self.since = since
        self.lossy = False
        self._left = 0
        self._taking = False
        self._before = since
        self._last: bytes | None = None
        self._read: set[int] = set()

    def read(self, line: bytes) -> None:
        """Note a line that is no repetition: after a loss the next repetition may tell it again."""
        if self.lossy and len(self._read) < MOST_READ_LINES:
            self._read.add(hash(line))

    def lose(self, last: bytes | None) -> bool:
        """Note that something is missing after the line `last`, None where nothing came before.

        True for the first loss since all was known.
        """
        first, self.lossy = not self.lossy, True
        if self._left and self._taking:  # a part of what was told again is gone
            self.since = float("-inf") if self._before is None else self._before
        elif self.since is None:
            self.since = float("-inf") if last is None else time_of(last)
            self._last = last
        self._left = 0
        return first

    def begin(self, count: int, *, needed: bool) -> None:
        """The next `count` lines tell what is known; they are `needed` where nothing told it."""
        self._before, self._left = self.since, count
        self._taking = needed or self.since is not None
        self.since = float("-inf") if needed else self.since
        if not count:
            self._end()

    def passes_over(self, line: bytes) -> bool:
        """Tell whether a line is told again and was read before."""
        if not self._left:
            return False
        known = self._knows(line)
        self._left -= 1
        if not self._left:
            self._end()
        return known

    def _knows(self, line: bytes) -> bool:
        if not self._taking or self.since is None:
            return True
        if line.startswith(IDENTITIES):
            return False
        return time_of(line) < self.since or line == self._last or hash(line) in self._read

    def _end(self) -> None:
        self.since, self.lossy = None, False
        self._read.clear()


def time_of(line: bytes) -> float:
    """The wall-clock time of a line, minus infinity where it tells none."""
    try:
        return _timed.decode(line).time
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return float("-inf")


class Names:
    """Which devices have been told by name, so that others can be made up for their samples."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._numbers: set[int] = set()

    def take(self, line: bytes) -> None:
        """Note the device of a line, if it tells one."""
        event = events.LineDecoder().decode(line) if line.startswith(_DEVICE) else None
        if isinstance(event, events.Device):
            self._keys.add(event.device)
            if event.kind == "gpu":
                self._numbers.add(event.index)

    def made_up(self, lines: Iterable[bytes]) -> list[bytes]:
        """A device for each key whose samples are among the lines and that nothing names.

        What it is called and its number in the machine are lost: it gets the next free one.
        """
        samples: dict[str, events.DeviceSample] = {}
        for line in lines:
            self.take(line)
            event = events.LineDecoder().decode(line) if line.startswith(_SAMPLE) else None
            if isinstance(event, events.DeviceSample):
                samples.setdefault(event.device, event)
        found = [self._stand_in(sample) for key, sample in samples.items() if key not in self._keys]
        return [events.encode(device).rstrip(b"\n") for device in found]

    def _stand_in(self, sample: events.DeviceSample) -> events.Device:
        cpu = sample.device == "cpu"
        number = 0
        while not cpu and number in self._numbers:
            number += 1
        if not cpu:
            self._numbers.add(number)
        self._keys.add(sample.device)
        return events.Device(
            time=sample.time,
            monotonic=sample.monotonic,
            source=sample.source,
            device=sample.device,
            kind="cpu" if cpu else "gpu",
            index=number,
            name=STAND_IN,
            uuid=sample.device if sample.device.startswith("GPU-") else None,
        )

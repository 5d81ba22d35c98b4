"""Events as JSON lines, and back."""

from __future__ import annotations

import msgspec

from topsmon.events.base import Event
from topsmon.events.machine import (
    Ceilings,
    Device,
    DeviceSample,
    DeviceStatus,
    Hello,
    Host,
    HostSample,
    Problem,
    Processes,
    Slices,
    Worker,
    Xid,
)
from topsmon.events.measuring import (
    ProbeResult,
    ProberIdle,
    ProberReady,
    ProbeStarted,
    ProbeUnsupported,
    RateMeasured,
)
from topsmon.events.recording import Recording
from topsmon.events.training import Run, RunEvent, RunHistory, RunSample, RunStatus
from topsmon.events.verdicts import CheckResult, Finding

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning; new fields and new tags do not raise it."""

AnyEvent = (
    Hello
    | Host
    | HostSample
    | Problem
    | Device
    | Ceilings
    | DeviceSample
    | DeviceStatus
    | Processes
    | Slices
    | Xid
    | Worker
    | ProberReady
    | ProbeStarted
    | RateMeasured
    | ProbeResult
    | ProbeUnsupported
    | ProberIdle
    | Finding
    | CheckResult
    | Run
    | RunSample
    | RunHistory
    | RunEvent
    | RunStatus
    | Recording
)


class _Tag(msgspec.Struct):
    type: str


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_tag_decoder = msgspec.json.Decoder(_Tag)
KNOWN_TAGS: frozenset[str] = frozenset(
    str(kind.__struct_config__.tag) for kind in Event.__subclasses__()
)
MAX_LINE_BYTES = 1 << 20


def encode(event: Event) -> bytes:
    """Return the event as one JSON line with its newline. Infinities and NaN become null."""
    return _encoder.encode(event) + b"\n"


class LineDecoder:
    """Decode a stream line by line and count what could not be read.

    `skipped` counts lines with a tag of a newer version, `malformed` the lines that are no event;
    `last_error` names the latest of those. Neither is ever raised: one bad line must not end a
    stream.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self.malformed = 0
        self.last_error: str | None = None

    def decode(self, line: bytes) -> AnyEvent | None:
        """Return the event of a line, or None if there is none (empty, unknown or malformed)."""
        stripped = line.strip()
        if not stripped:
            return None
        if len(stripped) > MAX_LINE_BYTES:
            self._reject(f"line of {len(stripped)} bytes is over {MAX_LINE_BYTES}")
            return None
        try:
            return _decoder.decode(stripped)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._explain(stripped, error)
            return None

    def _explain(self, line: bytes, error: Exception) -> None:
        try:
            tag = _tag_decoder.decode(line).type
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._reject(str(error))
            return
        if tag in KNOWN_TAGS:
            self._reject(f"{tag}: {error}")
        else:
            self.skipped += 1

    def _reject(self, error: str) -> None:
        self.malformed += 1
        self.last_error = error

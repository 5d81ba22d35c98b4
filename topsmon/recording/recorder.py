"""Records a session: its events, when sampling pauses, which findings begin and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from topsmon import events
from topsmon.recording import names
from topsmon.recording.known import known_events
from topsmon.recording.writer import (
    CLOSE_SECONDS,
    Condition,
    Limits,
    RecordingError,
    RecordingWriter,
)
from topsmon.state import State

LOOK_SECONDS = 0.45
"""Findings are compared this often at the most; they are made twice a second."""


class Recorded(Protocol):
    """What the recorder needs of a session."""

    listeners: list[Callable[[events.AnyEvent], None]]

    @property
    def state(self) -> State:
        """Everything that is known now."""


class Recorder:
    """A recording of a session, from its creation until `close`. Call `look` now and then."""

    def __init__(
        self, session: Recorded, path: Path, limits: Limits | None = None, *, force: bool = False
    ) -> None:
        """Begin to record into a file; raises RecordingError."""
        state = session.state
        self._session = session
        self._sampling = (state.interval, state.sampling_since)
        self._active: dict[tuple[str | None, ...], events.Finding] = {}
        self._looked = float("-inf")
        self._part = 1
        self.began = time.monotonic()
        self.writer = RecordingWriter(
            path, known_events(state), limits, force=force, sampling=self._sampling
        )
        session.listeners.append(self.writer.write)

    @property
    def path(self) -> Path:
        """The newest file of the recording."""
        return self.writer.path

    @property
    def condition(self) -> Condition:
        """How the recording stands."""
        return self.writer.condition

    def look(self, findings: Iterable[events.Finding]) -> None:
        """Write what changed that no child tells: findings, and whether sampling goes on."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        sampling = (self._session.state.interval, self._session.state.sampling_since)
        if sampling != self._sampling:
            self._sampling = sampling
            self.writer.tell_sampling(*sampling)
        if self.condition.part != self._part:  # the new file has to stand alone
            self._part = self.condition.part
            self._active.clear()
        current = {_identity(finding): finding for finding in findings}
        for key, finding in current.items():
            before = self._active.get(key)
            if before is None or before.severity != finding.severity:
                self.writer.write(_now(finding, ended=False))
                self._active[key] = finding
        for key in [key for key in self._active if key not in current]:
            self.writer.write(_now(self._active.pop(key), ended=True))

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """End the recording; False where the disk did not let us within so many seconds."""
        if self.writer.write in self._session.listeners:
            self._session.listeners.remove(self.writer.write)
        return self.writer.close(seconds)


def _identity(finding: events.Finding) -> tuple[str | None, ...]:
    """What makes two findings the same one; numbers in a title change while it lasts."""
    return finding.code, finding.device, finding.run


def _now(finding: events.Finding, *, ended: bool) -> events.Finding:
    return msgspec.structs.replace(
        finding, time=time.time(), monotonic=time.monotonic(), ended=ended
    )


def in_state_directory() -> Path:
    """A new name in the state directory, which is made; raises RecordingError."""
    directory = names.default_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RecordingError(f"{directory}: {error.strerror or error}") from error
    return names.dated(directory, time.time())

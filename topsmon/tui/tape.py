"""The recording that the key R begins and ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from topsmon import events
from topsmon.tui.options import SessionLike

if TYPE_CHECKING:
    from topsmon.recording.recorder import Recorder


class Tape:
    """Holds the recorder while there is one. What it returns is a message, and whether it is good.

    A second recording may be made after the first.
    """

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._told: str | None = None

    @property
    def words(self) -> str:
        """How the recording goes: "REC 1.2 MB"; "" where none is made."""
        if self._recorder is None:
            return ""
        from topsmon.recording.words import size

        condition = self._recorder.condition
        return f"REC {'STUCK' if condition.problem else size(condition.size)}"

    def toggle(self, session: SessionLike) -> tuple[str, bool]:
        """Begin to record, or end it; neither waits for the disk longer than it takes."""
        from topsmon.recording.recorder import Recorder, in_state_directory
        from topsmon.recording.words import size
        from topsmon.recording.writer import RecordingError

        if self._recorder is None:
            try:
                self._recorder = Recorder(session, in_state_directory())
            except RecordingError as error:
                return f"not recording: {error}", False
            self._told = None
            return f"recording into {self._recorder.path}; R ends it", True
        recorder, self._recorder = self._recorder, None
        whole = recorder.close(0.1)
        condition = recorder.condition
        if condition.problem is not None or condition.lost_lines:
            return (
                f"{recorder.path} is not complete: {condition.problem or 'lines were lost'}",
                False,
            )
        ending = "" if whole else " (the disk is slow: its end is still being written)"
        return f"recorded {size(condition.size)} in {recorder.path}{ending}", True

    def look(self, findings: Iterable[events.Finding]) -> tuple[str, bool] | None:
        """Record what changed in the findings; return trouble with the disk, once."""
        if self._recorder is None:
            return None
        self._recorder.look(findings)
        problem = self._recorder.condition.problem
        if problem == self._told:
            return None
        self._told = problem
        if problem is None:
            return "the recording is written again", True
        return f"{self._recorder.path}: {problem}; trying again", False

    def close(self) -> None:
        """End the recording if there is one; may wait for the disk a moment."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

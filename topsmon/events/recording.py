"""What a recording says of itself."""

from __future__ import annotations

from topsmon.events.base import Event


class Recording(Event, frozen=True, kw_only=True, tag="recording"):
    """Second line of each file of a recording, and wherever one of these facts changes.

    `recording` is shared by the files of one recording, `part` counts them from 1. `began` is the
    wall-clock time of its start. The next `repeated` lines tell what was known before the file
    began; `again`: these files have told it already, so that it is of use after damage alone.
    `interval` is the sampling period in s; `sampling_since` the monotonic time from which on
    samples are due, None while sampling is paused. `lost_lines` were not written since the event
    before, because `lost_reason`. `ended`: nothing follows, and nothing is missing at the end.
    """

    recording: str
    part: int
    began: float
    repeated: int = 0
    again: bool = False
    interval: float | None = None
    sampling_since: float | None = None
    lost_lines: int = 0
    lost_reason: str = ""
    ended: bool = False

"""The time of a recording: the monotonic clock of the machine that wrote it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

MOST_JUMP_SECONDS = 3600.0
CLOCKS_AGREE_SECONDS = 60.0
"""A later jump is believed where the wall clock went as far, give or take this."""
SAME_OFFSET_SECONDS = 0.5


class Timed(Protocol):
    """What is needed of an event."""

    @property
    def time(self) -> float: ...  # noqa: D102  # a protocol's member
    @property
    def monotonic(self) -> float: ...  # noqa: D102  # a protocol's member


class Moment(NamedTuple):
    """A time of a recording in s: monotonic, and what the wall clock said then."""

    now: float
    wall: float


def after(before: Moment | None, event: Timed, *, remembered: bool = False) -> Moment:
    """Return the time once an event has come; it never goes back.

    `remembered` events are of an earlier session, whose monotonic clock was another one. A time
    that cannot be is not believed.
    """
    if before is None:
        return Moment(event.monotonic, event.time)
    step = event.monotonic - before.now
    if remembered or step <= 0:
        return before
    moved = event.time - before.wall
    if step > MOST_JUMP_SECONDS and abs(moved - step) > CLOCKS_AGREE_SECONDS:
        return before
    return Moment(event.monotonic, event.time)

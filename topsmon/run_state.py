"""One training run's events folded into what the views show."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from topsmon import events

EVENTS_KEPT = 256
RUN_EVENTS = (events.RunSample, events.RunHistory, events.RunEvent, events.RunStatus)
AnyRunEvent = events.RunSample | events.RunHistory | events.RunEvent | events.RunStatus
ENDED = frozenset({"finished", "failed", "killed", "gone"})


@dataclass
class RunState:
    """One run (one rank): identity, newest sample, history, what happened, energy.

    `buckets` are by first step, in order. `happened` is in order of `number`. `seen` times are this
    process's monotonic clock. `joules_per_step` and `joules_per_token` come from the energy counter
    of a GPU that this run alone uses, None where that is not so.
    """

    identity: events.Run
    sample: events.RunSample | None = None
    sample_seen: float | None = None
    status: events.RunStatus | None = None
    stride: int = 1
    buckets: dict[int, events.HistoryBucket] = field(default_factory=dict)
    happened: deque[events.RunEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    joules_per_step: float | None = None
    joules_per_token: float | None = None

    @property
    def key(self) -> str:
        """The run's key in events."""
        return self.identity.run

    @property
    def condition(self) -> events.RunCondition:
        """What was last reported of its life; "running" before anything was."""
        return self.status.condition if self.status is not None else "running"

    @property
    def ended(self) -> bool:
        """True once the process is known to have ended."""
        return self.condition in ENDED

    def latest(self, kind: str) -> events.RunEvent | None:
        """The newest event of a kind, None if none is kept."""
        return next((event for event in reversed(self.happened) if event.kind == kind), None)

    def apply(self, event: AnyRunEvent, now: float) -> None:
        """Fold one event in. `now` is this process's monotonic clock, in seconds."""
        match event:
            case events.RunSample():
                self.sample, self.sample_seen = event, now
            case events.RunHistory():
                if event.stride != self.stride:
                    self.stride, self.buckets = event.stride, {}
                self.buckets.update({bucket.first_step: bucket for bucket in event.buckets})
            case events.RunEvent():
                if not self.happened or event.number > self.happened[-1].number:
                    self.happened.append(event)
            case events.RunStatus():
                self.status = event

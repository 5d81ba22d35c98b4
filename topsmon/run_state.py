"""One training run's events folded into what the views show."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from topsmon import events
from topsmon.run_energy import EnergyMeter
from topsmon.units import command_words

EVENTS_KEPT = 256
RUN_EVENTS = (events.RunSample, events.RunHistory, events.RunEvent, events.RunStatus)
AnyRunEvent = events.RunSample | events.RunHistory | events.RunEvent | events.RunStatus
ENDED = frozenset({"finished", "failed", "killed", "gone"})
ASKED_TO_END = frozenset({130, 143})
"""Exit codes after SIGINT and SIGTERM: someone ended it."""
_DEMO = re.compile(r"/topsmon/demo/(\w+)\.py$")


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
    status_seen: float | None = None
    energy: EnergyMeter = field(default_factory=EnergyMeter)

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

    @property
    def name(self) -> str:
        """What is trained, as people call it: "train.py", the script without its interpreter.

        A demonstration says how it is broken: "demo amp --break clip".
        """
        words = script_words(self.identity.command) or [""]
        demo = _DEMO.search(words[0])
        if demo is not None:
            broken = [f"--break {kind}" for option, kind in pairwise(words) if option == "--break"]
            return " ".join(["demo", demo[1], *broken[:1]])
        name = words[0].rpartition("/")[2] or words[0]
        return name[:40] or f"PID {self.identity.pid}"

    @property
    def demonstrates(self) -> bool:
        """True for a run of `topsmon demo`."""
        return self.name.startswith("demo ")

    @property
    def label(self) -> str:
        """The name with the rank where there are several: "train.py rank 3"."""
        rank = self.identity.rank
        alone = rank is None or (self.identity.world_size or 1) < 2
        return self.name if alone else f"{self.name} rank {rank}"

    @property
    def group(self) -> str:
        """What the ranks of one launch share; the run's own key where it was not launched."""
        return self.identity.launch or self.key

    def ended_for(self, now: float) -> float | None:
        """Seconds since its end, None while it lives. `now` is this process's monotonic clock.

        What had ended before it was first reported has that time counted too.
        """
        if not self.ended or self.status is None or self.status_seen is None:
            return None
        return max(0.0, now - self.status_seen) + max(0.0, self.status.time - self.status.since)

    def latest(self, kind: str) -> events.RunEvent | None:
        """The newest event of a kind, None if none is kept."""
        return next((event for event in reversed(self.happened) if event.kind == kind), None)

    @property
    def last_error(self) -> events.RunEvent | None:
        """The newest exception that nothing has caught."""
        raised = [event for event in self.happened if event.kind == "exception"]
        return next((one for one in reversed(raised) if not one.values.get("handled")), None)

    @property
    def interrupted(self) -> bool:
        """True where someone ended it: Ctrl-C, SIGINT or SIGTERM."""
        if self.status is None or self.condition not in {"failed", "killed"}:
            return False
        if self.status.exit_code in ASKED_TO_END:
            return True
        error = self.last_error
        name = error.names[0] if error is not None and error.names else self.status.detail
        return name.startswith("KeyboardInterrupt")

    @property
    def scale_highest(self) -> float | None:
        """The highest loss scale so far, the first one included where the first step was skipped.

        What is recorded is the scale after each step, when a skip has lowered it.
        """
        highest = self.sample.totals.scale_highest if self.sample is not None else None
        scaler = self.identity.scaler
        if self.sample is None or highest is None or scaler is None or scaler.init_scale is None:
            return highest
        began_with_skip = self.sample.totals.calibration_skips > 0
        fallen = scaler.init_scale * (scaler.backoff_factor or 0.5)
        return scaler.init_scale if began_with_skip and highest == fallen else highest

    def bad_weights(self) -> events.RunEvent | None:
        """Where weights that are not finite were first seen, since the losses were last all finite.

        None if none are known.
        """
        seen = [event for event in self.happened if event.kind == "nonfinite-weights"]
        found = next(reversed(seen), None)
        for earlier in reversed(seen):
            if found is not None and self.recovered(earlier.step, found.step):
                break
            found = earlier
        return found

    def recovered(self, after: int, before: int) -> bool:
        """True if some losses between two steps are known, and all of them were finite."""
        return any(
            bucket.first_step > after
            and bucket.first_step + bucket.steps <= before
            and bucket.loss_mean is not None
            and not bucket.nonfinite_losses
            for bucket in self.buckets.values()
        )

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
                self.status, self.status_seen = event, now


def started_as(command: str) -> list[str]:
    """The words that it was started with, without an interpreter; of a demonstration topsmon's.

    "python3 .../topsmon/demo/amp.py --break clip" -> ["demo", "amp", "--break", "clip"].
    """
    words = script_words(command)
    demo = _DEMO.search(words[0]) if words else None
    return ["demo", demo[1], *words[1:]] if demo is not None else words


def script_words(command: str) -> list[str]:
    """The words of a command line without its interpreter and the interpreter's own options.

    "python3 -u -m package.train --lr 1" -> ["package.train", "--lr", "1"].
    """
    words = command_words(command, 400).split()
    if not words or not words[0].lower().startswith(("python", "pypy")):
        return words
    valued = False
    for place, word in enumerate(words[1:], start=1):
        if word == "-m":
            return words[place + 1 :] or words
        if word == "-c":
            return words
        if not word.startswith("-") and not valued:
            return words[place:]
        valued = word in {"-W", "-X"}
    return words
